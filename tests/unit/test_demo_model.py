"""The recipe of the demo model: honest answers, the engine's own tokens, a file of the shipped shape."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import pytest
from tools.demo_model import corpus, export, shape
from tools.demo_model.corpus import Turn
from tools.demo_model.vocabulary import Vocabulary, learn

from guanaco.cli.demo import demo_model
from tests.support import capi

N_TURNS = 2_000


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return list(islice(corpus.turns(seed=1), N_TURNS))


@pytest.fixture(scope="module")
def vocabulary(turns: list[Turn]) -> Vocabulary:
    return learn(turns)


@pytest.fixture(scope="module")
def exported(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With random weights: the shape does not depend on training."""
    random = np.random.default_rng(0)
    weights = {
        tensor.name: random.standard_normal(tensor.dims, dtype=np.float32) * np.float32(tensor.std or 1)
        for tensor in shape.tensors()
    }
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    export.write(path, weights, vocabulary)
    return path


def test_the_same_seed_gives_the_same_turns(turns: list[Turn]) -> None:
    assert list(islice(corpus.turns(seed=1), N_TURNS)) == turns
    assert list(islice(corpus.turns(seed=2), N_TURNS)) != turns


def test_turns_are_plain_text_that_fits_the_context(turns: list[Turn], vocabulary: Vocabulary) -> None:
    for turn in turns:
        assert (turn.question + turn.answer).isascii()
        assert "<|" not in turn.question + turn.answer
        assert turn.question[-1] in "?."
        assert len(vocabulary.encode_turn(turn)) < shape.CONTEXT_LENGTH // 4


def test_every_kind_is_there_and_no_other(turns: list[Turn]) -> None:
    kinds = ("story|about a", "weather", "plus|minus", "cook|recipe", "capital", "Python")
    counts = [sum(bool(re.search(kind, turn.question)) for turn in turns) for kind in kinds]
    assert sum(counts) == N_TURNS
    assert all(count > N_TURNS // 16 for count in counts)
    assert counts[0] == max(counts)


def test_sums_are_right(turns: list[Turn]) -> None:
    checked = 0
    for turn in turns:
        terms = re.fullmatch(r"(\d+) (plus|minus) (\d+) is (-?\d+)\.", turn.answer)
        if terms is not None:
            sign = 1 if terms[2] == "plus" else -1
            assert int(terms[1]) + sign * int(terms[3]) == int(terms[4]) >= 0
            assert turn.question == f"What is {terms[1]} {terms[2]} {terms[3]}?"
            checked += 1
    assert checked > N_TURNS // 16


def test_functions_do_what_their_names_say(turns: list[Turn]) -> None:
    expected = {"add": lambda x, n: x + n, "subtract": lambda x, n: x - n, "multiply": lambda x, n: x * n}
    checked = 0
    for turn in turns:
        if "Python" in turn.question:
            scope: dict[str, object] = {}
            exec(turn.answer, scope)  # noqa: S102 - our own text
            name = turn.question.removesuffix(".").split()[-1]
            verb, amount = name.split("_")
            function = scope[name]
            assert callable(function)
            assert function(17) == expected[verb](17, int(amount))
            checked += 1
    assert checked > N_TURNS // 16


def test_a_story_keeps_to_its_question(turns: list[Turn]) -> None:
    for turn in turns:
        asked = [noun for noun in corpus.ANIMALS if noun in turn.question]
        for animal in asked:
            assert re.match(rf"(Long ago|There was once) an? {animal} called \w+ ", turn.answer)
        assert re.search(r"\b(a [aeiou]|an [^aeiou])", turn.question + turn.answer) is None


def test_the_vocabulary_gives_text_back(turns: list[Turn], vocabulary: Vocabulary) -> None:
    assert len(vocabulary.tokens) <= shape.N_VOCAB
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens)
    for turn in turns[:200]:
        for text in (turn.question, turn.answer):
            ids = vocabulary.encode(text)
            assert vocabulary.decode(ids) == text
            assert len(ids) < len(text) / 2


def test_unknown_words_are_spelt_and_other_alphabets_refused(vocabulary: Vocabulary) -> None:
    assert vocabulary.decode(vocabulary.encode("Zyxqwv\n\n  42!")) == "Zyxqwv\n\n  42!"
    with pytest.raises(UnicodeEncodeError):
        vocabulary.encode("Grüße")


def test_the_engine_reads_the_text_as_it_was_trained_on(
    turns: list[Turn], vocabulary: Vocabulary, exported: Path
) -> None:
    with capi.Model(exported) as model:
        assert model.n_vocab == shape.N_VOCAB
        for turn in turns[:200]:
            for text in (turn.question, turn.answer, f"user\n{turn.question}"):
                assert model.tokenize(text, add_special=False) == vocabulary.encode(text)


def test_the_export_has_the_shape_of_the_shipped_file(exported: Path) -> None:
    ours, shipped = gguf.GGUFReader(exported), gguf.GGUFReader(demo_model())
    assert _table(ours) == _table(shipped)
    assert {key: field.types for key, field in ours.fields.items()} == {
        key: field.types for key, field in shipped.fields.items()
    }
    own_words = ("general.description", "tokenizer.chat_template", "_token_id", "GGUF.")
    for key, field in shipped.fields.items():
        if len(field.data) == 1 and not any(words in key for words in own_words):
            assert ours.fields[key].contents() == field.contents(), key
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        assert len(ours.fields[key].data) == len(shipped.fields[key].data) == shape.N_VOCAB


def test_special_tokens_are_where_the_metadata_says(exported: Path) -> None:
    fields = gguf.GGUFReader(exported).fields
    tokens, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    for key, token in (("eos", "<|im_end|>"), ("bos", "<|endoftext|>"), ("padding", "<|endoftext|>")):
        number = fields[f"tokenizer.ggml.{key}_token_id"].contents()
        assert tokens[number] == token
        assert kinds[number] == gguf.TokenType.CONTROL
    assert kinds.count(gguf.TokenType.CONTROL) == 3
    assert kinds[-1] == gguf.TokenType.UNUSED


@pytest.mark.parametrize("fault", ["missing", "of another size"])
def test_weights_that_are_not_the_models_are_refused(
    fault: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    weights = {tensor.name: np.zeros(tensor.dims, np.float32) for tensor in shape.tensors()}
    if fault == "missing":
        del weights["output.weight"]
    else:
        weights["output.weight"] = weights["output.weight"][:-1]
    with pytest.raises(ValueError, match="output" if fault != "missing" else "not the demo model's"):
        export.write(tmp_path / "demo.gguf", weights, vocabulary)
    assert not (tmp_path / "demo.gguf").exists()


def _table(reader: gguf.GGUFReader) -> list[tuple[str, list[int], str]]:
    return [(tensor.name, tensor.shape.tolist(), tensor.tensor_type.name) for tensor in reader.tensors]
