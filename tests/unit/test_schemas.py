"""Requests that would cost the engine memory or stack without a bound are refused; what is usual is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from guanaco.server import grammars, schemas
from guanaco.server.schemas import ChatRequest, CompletionRequest, EmbeddingRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
DEEP = "(" * (grammars.MOST_DEPTH + 1)


def check(schema: type[BaseModel], fields: dict[str, Any]) -> None:
    schema.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repeat_last_n", schemas.MOST_LAST_TOKENS + 1),
        ("dry_penalty_last_n", schemas.MOST_LAST_TOKENS + 1),
        ("samplers", ["dry"] * (schemas.MOST_SAMPLERS + 1)),
        ("grammar", "#" * (grammars.MOST_CHARS + 1)),
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
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:"}}], "leave out the part of type 'image_url'"),
        ([{"type": "input_audio"}], "served for text only"),
        ([{"type": "text", "text": 5}], "needs its text as a string"),
        ([{"type": "text"}], "needs its text as a string"),
    ],
)
def test_parts_of_a_message_are_texts(content: list[Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        check(ChatRequest, {"messages": [{"role": "user", "content": content}]})
    check(ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})


def test_tools_are_a_list_of_objects() -> None:
    check(ChatRequest, {**CHAT, "tools": [{"type": "function"}]})
    for tools in (5, [5], "x"):
        with pytest.raises(ValidationError):
            check(ChatRequest, {**CHAT, "tools": tools})
