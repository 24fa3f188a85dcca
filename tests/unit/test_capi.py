"""The ctypes mirror of llama.cpp's C interface: right for the pinned engine, loud for any other."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import capi, capi_structs

DEMO = Path(__file__).parents[2] / "src" / "guanaco" / "data" / "guanaco-demo-q8_0.gguf"


@pytest.fixture(scope="module")
def model() -> Iterator[capi.Model]:
    with capi.Model(DEMO, n_ctx=256, n_batch=16, n_ubatch=16) as loaded:
        yield loaded


def test_layout_of_the_pinned_engine_matches() -> None:
    assert capi_structs.layout_faults(capi.engine()) == []


def test_a_moved_field_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ct.Structure):
        _fields_ = [("inserted", ct.c_uint32), *capi_structs.ContextParams._fields_]

    private = ct.CDLL(str(capi.engine_library()))
    monkeypatch.setattr(capi_structs, "ContextParams", Longer)
    faults = capi_structs.layout_faults(private)
    assert any("n_ctx reads" in fault for fault in faults)
    assert any("the engine writes" in fault for fault in faults)


def test_rows_of_a_prompt_equal_its_last_row(model: capi.Model) -> None:
    tokens = model.tokenize("What is the capital of Greece?" * 4)
    assert len(tokens) > model.n_batch, "the prompt must take several batches"
    model.clear()
    last = model.decode(tokens)
    model.clear()
    rows = model.decode(tokens, all_rows=True)
    assert rows.shape == (len(tokens), model.n_vocab)
    # Close, not equal: the last layer runs on the asked rows only, and kernels differ with the row count.
    np.testing.assert_allclose(rows[-1], last, atol=1e-4)
    assert rows[-1].argmax() == last.argmax()


def test_greedy_is_repeatable_bit_for_bit(model: capi.Model) -> None:
    prompt = model.tokenize("Hello")
    first, second = model.greedy(prompt, 12), model.greedy(prompt, 12)
    assert first.tokens == second.tokens
    np.testing.assert_array_equal(first.logits, second.logits)
    assert [int(row.argmax()) for row in first.logits] == first.tokens


def test_text_survives_the_tokenizer(model: capi.Model) -> None:
    text = "The capital of Greece is Athens."
    pieces = b"".join(model.piece(token) for token in model.tokenize(text, add_special=False))
    assert pieces.decode() == text


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(capi.EngineFaultError, match=r"cannot load .*no\.gguf"):
        capi.Model(path)
