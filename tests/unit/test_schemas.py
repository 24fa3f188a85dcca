"""Requests that would cost the engine memory or stack without a bound are refused; what is usual is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from guanaco.server import schemas
from guanaco.server.schemas import ChatRequest, CompletionRequest, EmbeddingRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
DEEP = "(" * (schemas.MOST_GRAMMAR_DEPTH + 1)


def check(schema: type[BaseModel], fields: dict[str, Any]) -> None:
    schema.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repeat_last_n", schemas.MOST_LAST_TOKENS + 1),
        ("dry_penalty_last_n", schemas.MOST_LAST_TOKENS + 1),
        ("samplers", ["dry"] * (schemas.MOST_SAMPLERS + 1)),
        ("grammar", "#" * (schemas.MOST_GRAMMAR_CHARS + 1)),
        ("grammar", f"root ::= {DEEP}"),
    ],
)
def test_what_has_no_bound_in_the_engine_has_one_here(field: str, value: object) -> None:
    for schema, fields in ((ChatRequest, CHAT), (CompletionRequest, {"prompt": "a"})):
        with pytest.raises(ValidationError) as caught:
            check(schema, {**fields, field: value})
        assert caught.value.errors()[0]["loc"][0] == field


@pytest.mark.parametrize(
    "fields",
    [
        {"repeat_last_n": -1, "dry_penalty_last_n": schemas.MOST_LAST_TOKENS},
        {"samplers": ["top_k", "temperature"]},
        {"samplers": "kt"},
        {"grammar": f'root ::= "{DEEP}" [{DEEP}] # {DEEP}'},
        {"grammar": "root ::= " + "(a)" * 1000},
        {"grammar": None, "repeat_last_n": None},
    ],
)
def test_usual_values_pass(fields: dict[str, Any]) -> None:
    check(ChatRequest, {**CHAT, **fields})


def test_a_request_holds_a_bounded_number_of_texts() -> None:
    for schema, field in ((CompletionRequest, "prompt"), (EmbeddingRequest, "input")):
        check(schema, {field: ["a"] * schemas.MOST_INPUTS})
        check(schema, {field: list(range(schemas.MOST_INPUTS + 1))})
        for item in ("a", [1]):
            with pytest.raises(ValidationError, match=f"may hold {schemas.MOST_INPUTS} texts"):
                check(schema, {field: [item] * (schemas.MOST_INPUTS + 1)})


@pytest.mark.parametrize(
    ("request_", "letters"),
    [
        (schemas.ChatRequest.model_validate({"messages": [{"role": "user", "content": "abc"}] * 3}), 9),
        (
            schemas.ChatRequest.model_validate(
                {
                    "messages": [
                        {
                            "role": "user",
                            "content": [{"type": "text", "text": "abc"}],
                            "tool_calls": [{"a": "xy"}],
                        }
                    ],
                    "tools": [{"function": {"description": "long"}}],
                }
            ),
            len("textabcxylong"),
        ),
        (schemas.CompletionRequest.model_validate({"prompt": "abcd"}), 4),
        (schemas.CompletionRequest.model_validate({"prompt": ["ab", "abcd", [1, 2, 3]], "grammar": "x"}), 4),
        (schemas.CompletionRequest.model_validate({"prompt": [1, 2, 3]}), 0),
        (schemas.EmbeddingRequest.model_validate({"input": ["a", "abc"]}), 3),
        (schemas.TokenizeRequest.model_validate({"content": "abcde"}), 5),
        (schemas.DetokenizeRequest.model_validate({"tokens": [1]}), 0),
    ],
)
def test_the_letters_that_become_tokens_are_counted(request_: BaseModel, letters: int) -> None:
    assert schemas.text_letters(request_) == letters
