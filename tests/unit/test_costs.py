"""What requests cost the engine: never below what was measured, and little for what is usual."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from guanaco.server import costs, grammars
from guanaco.server.costs import ModelSizes, cost_of, text_bytes
from guanaco.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)
from guanaco.units import GIB, KIB, MIB

SIZES = ModelSizes(n_ctx=1024, n_vocab=1024, n_embd=4096)


def cost(schema: type[BaseModel], **fields: Any) -> costs.Cost:
    return cost_of(schema.model_validate(fields), SIZES)


def chat(**fields: Any) -> costs.Cost:
    return cost(ChatRequest, **{"messages": [{"role": "user", "content": "hi"}], **fields})


@pytest.mark.parametrize(
    ("part", "nbytes"),
    [
        ("abc", 3),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", 2),
        ("\N{LLAMA}" * 10, 40),
        ({"key": ["a", {"b": "cd"}, 5, None, True]}, 7),
        (None, 0),
        ([1, 2], 0),
    ],
)
def test_text_is_counted_in_bytes_with_the_names_in_objects(part: object, nbytes: int) -> None:
    assert text_bytes(part) == nbytes


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "x" * 9000, "content": ""}],
        [{"role": "user", "content": "x" * 9000}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 9000}]}],
        [{"role": "user", "content": "", "tool_calls": [{"x" * 9000: 1}]}],
        [{"role": "user", "content": "xxx"}] * 3000,
    ],
)
def test_every_text_of_a_conversation_counts(messages: list[dict[str, Any]]) -> None:
    assert chat(messages=messages).text >= 85 * 9000


def test_other_fields_count_too_and_of_a_list_of_prompts_the_longest() -> None:
    assert cost(CompletionRequest, prompt="a", logit_bias={"x" * 9000: 1}).text >= 85 * 9000
    assert chat(tools=[{"function": {"parameters": {"properties": {"x" * 9000: {}}}}}]).text >= 85 * 9000
    longest = cost(CompletionRequest, prompt=["x" * 100] * 10)
    assert 85 * 100 <= longest.text <= 100 * 100
    assert longest.texts == 10 * costs._TASK_BYTES
    assert cost(CompletionRequest, prompt=[1, 2, 3]).texts == costs._TASK_BYTES
    assert cost(DetokenizeRequest, tokens=[1]).text == 0


def test_all_texts_to_tokenize_are_in_one_answer() -> None:
    assert cost(TokenizeRequest, content=["x" * 1000] * 20).text >= 58 * 20_000
    assert cost(TokenizeRequest, content=["x" * 1000] * 20, with_pieces=True).text >= 385 * 20_000


def test_embeddings_cost_their_numbers() -> None:
    asked = cost(EmbeddingRequest, input=["a"] * 2048)
    assert asked.embeddings >= 2048 * 4096 * 40
    assert asked.texts >= 2048 * 11 * KIB
    assert cost(EmbeddingRequest, input="a").total_bytes < 2 * MIB


@pytest.mark.parametrize(
    ("fields", "candidates"),
    [
        ({"n_probs": 100_000, "max_tokens": 900}, 1024 * 900),
        ({"logprobs": 5, "max_tokens": 10}, 50),
        ({"logprobs": True, "max_tokens": 10}, 200),
        ({"logprobs": True, "top_logprobs": 3, "max_completion_tokens": 10}, 30),
        ({"top_logprobs": 2}, 2 * 1024),
        ({"n_probs": 1, "n_predict": -1}, 1024),
        ({"n_probs": 1, "max_tokens": 10, "n": 8}, 80),
        ({"n_probs": 1, "max_tokens": 10, "n_cmpl": 8}, 80),
        ({"n_probs": 1, "max_tokens": 10**9}, 1024),
    ],
)
def test_log_probabilities_cost_every_candidate_of_every_token(
    fields: dict[str, Any], candidates: int
) -> None:
    measured = 1530 * candidates
    for asked in (chat(**fields), cost(CompletionRequest, prompt="a", **fields)):
        assert measured <= asked.probabilities <= 3 * measured
        assert asked.answering_bytes >= asked.probabilities


@pytest.mark.parametrize(
    "fields", [{}, {"logprobs": None}, {"n_probs": 0}, {"logprobs": False}, {"n_probs": "x"}]
)
def test_without_log_probabilities_they_cost_nothing(fields: dict[str, Any]) -> None:
    assert chat(**fields).probabilities == 0
    assert chat(**fields).total_bytes < MIB


def test_what_is_usual_costs_little() -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Looks something up. " * 20,
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "maxLength": 200},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
                },
            },
        },
    }
    assert chat(tools=[tool] * 10, logprobs=True, top_logprobs=5, max_tokens=64).total_bytes < 5 * MIB


def test_a_grammar_costs_its_repetitions() -> None:
    letters = "a" * 41
    line = f'"{letters}"{{1999}} '
    assert grammars.grammar_bytes("root ::= " + line * 1000) >= 41 * 1999 * 1000 * 20
    assert grammars.grammar_bytes("root ::= " + line * 1000) < 3 * GIB
    optional = grammars.grammar_bytes('root ::= "a"{0,2000}')
    assert optional >= 2000 * 250
    assert grammars.grammar_bytes('root ::= ("a" "b"){5} | [a-z]* # {2000}') < 8 * KIB
    json_like = 'object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws\n' * 20
    assert grammars.grammar_bytes(json_like) < 64 * KIB


@pytest.mark.parametrize("start", ["", " ", "\n"])
def test_a_grammar_of_another_kind_is_refused(start: str) -> None:
    with pytest.raises(ValidationError, match="in GBNF only"):
        CompletionRequest.model_validate({"prompt": "a", "grammar": f'{start}%llguidance {{}}\nstart: "a"'})


# What goes back over what it has read takes minutes for these; the event loop serves everybody.
@pytest.mark.parametrize(
    "text",
    [
        "{" + "1" * 60_000,
        "{" + " " * 60_000,
        '"a' + '\\"' * 30_000,
        "[" * 60_000,
        "[^" * 30_000,
        "<" * 60_000,
    ],
)
def test_nothing_takes_longer_to_estimate_than_to_read(text: str) -> None:
    began_s = process_time()
    grammars.pattern_bytes(text)
    grammars.grammar_bytes(text)
    grammars.backward(text)
    grammars.too_deep(text)
    assert process_time() - began_s < 2


def test_many_patterns_are_refused_unread() -> None:
    schemas = [{"pattern": "a" * 1000}] * 100
    assert grammars.schema_bytes({"anyOf": schemas}, is_bounded=True) == grammars.ENDLESS_BYTES
    assert grammars.schema_bytes({"anyOf": schemas[:10]}, is_bounded=True) < 4 * MIB


@pytest.mark.parametrize(
    "fields",
    [
        {"n_probs": 10**400},
        {"logprobs": 10**400},
        {"n": 10**400},
        {"n_predict": 10**400},
        {"max_completion_tokens": -(10**400)},
        {"json_schema": {"minItems": float("nan")}},
        {"json_schema": {"minItems": 10**400}},
        {"json_schema": {"pattern": "^a{" + "1" * 5000 + "}$"}},
        {"json_schema": {"pattern": "(" * 2000 + "a" + "){999999999}" * 2000}},
        {"grammar": 'root ::= "a"{' + "1" * 5000 + "}"},
        {"grammar": 'root ::= "a"{1,' + "1" * 5000 + "}"},
    ],
)
def test_numbers_of_any_length_have_a_cost(fields: dict[str, Any]) -> None:
    assert cost(CompletionRequest, prompt="a", **fields).total_bytes < 1 << 80


def test_a_token_in_a_grammar_hides_nothing() -> None:
    assert grammars.too_deep('root ::= <"> ' + "(" * 200 + ' "') == 200
    assert grammars.too_deep("root ::= <(((> " * 200) is None
    assert grammars.backward('root ::= <"> "a"{5,3} "b"') == "{5,3}"


@pytest.mark.parametrize("key", ["minItems", "maxItems"])
@pytest.mark.parametrize("count", [10_000_000, 1e7])
def test_a_schema_costs_the_items_it_asks_for(key: str, count: float) -> None:
    schema = {"type": "array", "items": {"type": "string"}, key: count}
    asked = cost(CompletionRequest, prompt="a", json_schema={"anyOf": [schema]})
    assert asked.grammar >= 2.4 * GIB
    assert asked.largest.startswith("its grammar or JSON schema")
    # The engine's own parser refuses them before it writes anything out.
    assert chat(json_schema=schema).grammar <= 4 * MIB
    assert chat(response_format={"type": "json_schema", "json_schema": {"schema": schema}}).grammar <= 4 * MIB


def test_a_pattern_costs_its_repetitions() -> None:
    assert grammars.pattern_bytes("^(a{1000}){1000}$") >= 210 * 10**6
    assert grammars.pattern_bytes("((((a{100}){100}){100}){100}){100}") >= 210 * 10**10
    assert grammars.pattern_bytes("^[a-z]{1,64}@[a-z.]{1,255}\\\\.[a-z]{2,63}$") < 128 * KIB
    assert grammars.pattern_bytes(r"\{5000\}\(a\)[{5000}]") < 8 * KIB
    assert grammars.pattern_bytes("))((a{3") < 8 * KIB
    schema = {"properties": {"a": {"type": "string", "pattern": "(a{9000}){9000}"}}}
    assert cost(CompletionRequest, prompt="a", json_schema=schema).grammar >= 210 * 81 * 10**6


@pytest.mark.parametrize("pattern", ["^a{3,1}$", "(a{2000, 1})", "a{-5}", "x{ 9 , 8 }"])
def test_a_repetition_that_counts_down_never_fits(pattern: str) -> None:
    assert grammars.pattern_bytes(pattern) > 1 << 50


@pytest.mark.parametrize("pattern", ["^(a{ 1900 }){ 1900 }$", "(a{+1900}){1900 , 1900}"])
def test_blanks_and_signs_hide_no_repetition(pattern: str) -> None:
    assert grammars.pattern_bytes(pattern) >= 210 * 1900**2


@pytest.mark.parametrize(
    ("grammar", "found"),
    [
        ('root ::= "a"{5,3}', "{5,3}"),
        ('root ::= "a"{ 5 , #x\n 3}', "{ 5 ,  \n 3}"),
        ('root ::= "{5,3}" [{5,3}] # {5,3}', None),
        ('root ::= "a"{3,5} "b"{3,} "c"{4}', None),
    ],
)
def test_a_grammar_that_counts_down_is_found(grammar: str, found: str | None) -> None:
    assert grammars.backward(grammar) == found
    if found is not None:
        with pytest.raises(ValidationError, match="ends before it begins"):
            CompletionRequest.model_validate({"prompt": "a", "grammar": grammar})


def test_the_longest_answer_that_any_field_allows_is_counted() -> None:
    def probabilities(**fields: object) -> int:
        request = CompletionRequest.model_validate({"prompt": "a", "n_probs": 10, **fields})
        return cost_of(request, SIZES).probabilities

    assert probabilities(max_tokens=1, n_predict=100) == probabilities(n_predict=100)
    assert probabilities(max_tokens=100, max_completion_tokens=1) == probabilities(max_tokens=100)
    assert probabilities(max_tokens=1, n_predict=-1) == probabilities()


def test_samplers_pay_for_the_tokens_they_look_back_on() -> None:
    def samplers(**fields: object) -> int:
        return cost_of(CompletionRequest.model_validate({"prompt": "a", **fields}), SIZES).samplers

    assert samplers(samplers=["dry"] * 64, dry_penalty_last_n=1 << 18) >= 64 * (1 << 18) * 7
    assert samplers(samplers="e" * 64, repeat_last_n=1 << 18) >= 64 * (1 << 18) * 7
    assert samplers(repeat_last_n=64) < 8 * KIB
    assert samplers() == 0
    with pytest.raises(ValidationError, match="at most 64"):
        CompletionRequest.model_validate({"prompt": "a", "samplers": "e" * 65})


@pytest.mark.parametrize("field", ["grammar_triggers", "grammar_lazy"])
def test_what_is_the_engines_own_is_refused(field: str) -> None:
    value = [{"type": 99, "value": "x"}] if field == "grammar_triggers" else True
    with pytest.raises(ValidationError, match="the engine sets it by itself"):
        CompletionRequest.model_validate({"prompt": "a", field: value})
    CompletionRequest.model_validate({"prompt": "a", field: None})
