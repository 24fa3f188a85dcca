"""Typed metadata access."""

from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.errors import ModelError
from guanaco.gguf.types import ArrayInfo
from guanaco.model.meta import Meta

META = Meta(
    Path("m.gguf"),
    "llama",
    {
        "general.name": "tiny",
        "tokenizer.ggml.tokens": ArrayInfo("str", 1000),
        "tokenizer.ggml.scores": (0.0, 1.0),
        "llama.int": 7,
        "llama.float": 0.5,
        "llama.bool": True,
        "llama.flags": (True, False),
        "llama.sections": (1, 2, 3, 4),
        "llama.long": ArrayInfo("u32", 5000),
    },
)


def test_values() -> None:
    assert META.get_int("int") == 7
    assert META.get_float("int") == 7.0
    assert META.get_float("float") == 0.5
    assert META.get_bool("bool") is True
    assert META.get_str("general.name") == "tiny"
    assert META.get_ints("int", 3) == (7, 7, 7)
    assert META.get_ints("flags", 2) == (1, 0)
    assert META.get_list("sections") == (1, 2, 3, 4)
    assert META.get_count("tokenizer.ggml.tokens") == 1000
    assert META.get_count("tokenizer.ggml.scores") == 2
    assert META.has("int") and META.has("general.name") and not META.has("name")


def test_defaults() -> None:
    assert META.get_int("none", 3) == 3
    assert META.get_float("none", 0.25) == 0.25
    assert META.get_bool("none", False) is False
    assert META.get_str("none", "x") == "x"
    assert META.get_ints("none", 2, 0) == (0, 0)
    assert META.get_list("none") == ()
    assert META.get_count("none") == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: META.get_int("none"), "m.gguf: llama.none is missing; "),
        (lambda: META.get_int("float"), "llama.float is 0.5, but should be one whole number; "),
        (lambda: META.get_int("general.name"), "general.name is 'tiny', but should be one whole number; "),
        (
            lambda: META.get_int("sections"),
            "llama.sections is (1, 2, 3, 4), but should be one whole number; ",
        ),
        (lambda: META.get_float("general.name"), "but should be one number; "),
        (lambda: META.get_bool("int"), "llama.int is 7, but should be true or false; "),
        (lambda: META.get_str("int"), "llama.int is 7, but should be a text; "),
        (lambda: META.get_ints("sections", 3), "should be one whole number or 3, not 4; "),
        (lambda: META.get_ints("long", 3), "llama.long is ArrayInfo("),
        (lambda: META.get_list("tokenizer.ggml.scores"), "should be a list of whole numbers; "),
        (lambda: META.get_count("int"), "llama.int is 7, but should be a list; "),
    ],
)
def test_wrong_kinds(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ModelError) as caught:
        call()
    assert message in caught.value.message
