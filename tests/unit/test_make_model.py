"""Synthetic models: the promised sizes, honest metadata, no two experts alike, loadable."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from benchmarks import make_model
from benchmarks.make_model import STANDARDS, Shape, dense_bytes, narrowed, total_bytes

from guanaco.gguf.reader import read_gguf
from guanaco.model.map import build_model_map
from tests.support import capi

SMALL = replace(STANDARDS["qwen"], n_layer=3, n_expert=8, top_k=2, n_vocab=512)
SMALL_BYTES = 8_000_000


def make(shape: Shape, path: Path, seed: int = 0) -> Path:
    for _ in make_model.write(shape, path, seed=seed):
        pass
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(narrowed(SMALL, SMALL_BYTES), tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.mark.parametrize("name", sorted(STANDARDS))
def test_the_standard_shapes(name: str) -> None:
    shape = STANDARDS[name]
    expected = {"qwen": (48, 128, 6), "kimi": (26, 256, 8)}[name]
    assert (shape.n_layer, shape.n_expert, shape.top_k) == expected
    assert shape.n_vocab == 150_000
    assert dense_bytes(shape) >= 0.9 * 2**30
    assert 7.4 <= total_bytes(shape) / 2**30 <= 8.2
    experts = [item for item in make_model.tensors(shape) if item.is_expert]
    assert len(experts) == 3 * shape.n_layer
    for item in experts:
        assert item.type_name == "MXFP4"
        assert item.nbytes // shape.n_expert % 4096 == 0


def test_header_and_directory(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    fields = reader.fields
    assert fields["guanaco.synthetic"].contents() is True
    assert fields["qwen3moe.expert_used_count"].contents() == 2
    assert len(fields["tokenizer.ggml.tokens"].contents()) == 512
    shape = narrowed(SMALL, SMALL_BYTES)
    plan = {item.name: item for item in make_model.tensors(shape)}
    assert [item.name for item in reader.tensors] == list(plan)
    for item in reader.tensors:
        wanted = plan[item.name]
        assert tuple(int(n) for n in item.shape) == wanted.dims
        assert item.tensor_type.name == wanted.type_name
        assert int(item.n_bytes) == wanted.nbytes


def test_no_two_experts_are_alike(small: Path) -> None:
    digests = [
        hashlib.sha256(one.tobytes()).digest()
        for item in gguf.GGUFReader(small).tensors
        if "_exps" in item.name
        for one in item.data.reshape(8, -1)
    ]
    assert len(digests) == 3 * 3 * 8
    assert len(set(digests)) == len(digests)


def test_it_decodes_with_finite_logits_and_says_printable_text(small: Path) -> None:
    with capi.Model(small, n_ctx=256) as model:
        text = model.greedy(model.tokenize("Hello there"), 200)
        assert np.isfinite(text.logits).all()
        assert 1.0 < text.logits.std() < 10.0
        assert len(set(text.tokens)) > 50
        assert b"".join(model.piece(token) for token in text.tokens).decode("ascii").isprintable()


def test_bytes_depend_on_shape_and_seed_only(small: Path, tmp_path: Path) -> None:
    shape = narrowed(SMALL, SMALL_BYTES)
    assert make(shape, tmp_path / "again.gguf").read_bytes() == small.read_bytes()
    assert make(shape, tmp_path / "other.gguf", seed=1).read_bytes() != small.read_bytes()


@pytest.mark.parametrize("size_bytes", [6_000_000, 20_000_000, 300_000_000, 2_000_000_000])
def test_size_is_met_from_below(size_bytes: int) -> None:
    shape = narrowed(replace(SMALL, n_layer=12, n_expert=32), size_bytes)
    assert 0.75 * size_bytes < total_bytes(shape) <= size_bytes
    assert dense_bytes(shape) <= 0.4 * size_bytes


def test_a_size_too_small_names_one_that_works() -> None:
    with pytest.raises(ValueError, match=r"too small .* at least (\d+) bytes") as caught:
        narrowed(STANDARDS["qwen"], 10_000_000)
    named = int(str(caught.value).split("at least ")[1].split()[0])
    assert total_bytes(narrowed(STANDARDS["qwen"], named)) <= named
    with pytest.raises(ValueError, match="too small"):
        narrowed(STANDARDS["qwen"], named - 1)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    steps = make_model.write(narrowed(SMALL, SMALL_BYTES), tmp_path / "model.gguf")
    next(steps)
    assert [path.name for path in tmp_path.iterdir()] == ["model.partial"]
    steps.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.gguf"
    wanted = ["--layers", "2", "--experts", "4", "--top-k", "2", "--vocab", "300", "--size", "3MB"]
    assert make_model.main([*wanted, "--out", str(out)]) == 0
    assert "2 layers x 4 experts top-2" in capsys.readouterr().out
    assert out.stat().st_size <= 3_000_000


def test_two_quantisations(tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    shape = ["--layers", "4", "--experts", "4", "--top-k", "2", "--vocab", "300", "--size", "3MB"]
    assert make_model.main([*shape, "--second-type", "Q8_0", "--out", str(out)]) == 0
    groups = build_model_map(read_gguf(out)).groups
    assert [group.parts[0].type_name for group in groups] == ["mxfp4", "q8_0", "mxfp4", "q8_0"]
    assert out.stat().st_size <= 3_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--experts", "4", "--top-k", "5"], "top-k 5 of 4 experts"),
        (["--layers", "0"], "0 layers"),
        (["--vocab", "100"], "100 tokens is too small"),
        (["--size", "12parrots"], "'12parrots' is not a size"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        make_model.main([*options, "--out", str(tmp_path / "x.gguf")])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
