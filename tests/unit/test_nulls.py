"""Nulls that clients send for what they do not give: left out, and nothing else touched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from guanaco.server.nulls import left_out
from guanaco.server.schemas import ChatRequest

ASKED = {"role": "user", "content": "hi"}


def passed_on(**body: Any) -> bytes:
    content = json.dumps(body, ensure_ascii=False).encode()
    return left_out(content, ChatRequest.model_validate_json(content))


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"messages": [{**ASKED, "name": None, "tool_calls": None}]}, {"messages": [ASKED]}),
        (
            {
                "messages": [
                    {"role": "assistant", "content": None, "tool_calls": [{"id": None, "type": "function"}]}
                ]
            },
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}]},
        ),
        (
            {
                "messages": [ASKED],
                "tools": [{"function": {"name": "f", "description": None, "strict": None}}],
            },
            {"messages": [ASKED], "tools": [{"function": {"name": "f"}}]},
        ),
        (
            {"messages": [ASKED], "tools": [{"type": None, "function": None}]},
            {"messages": [ASKED], "tools": [{}]},
        ),
    ],
)
def test_optional_fields_that_are_null_are_left_out(given: dict[str, Any], taken: dict[str, Any]) -> None:
    assert json.loads(passed_on(**given, seed=None)) == {**taken, "seed": None}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [ASKED], "tools": None, "stop": None},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [5, {"function": "x"}]}]},
        {
            "messages": [{"role": "user", "content": "\N{LLAMA}"}],
            "tools": [{"function": {"parameters": {"default": None}}}],
        },
    ],
)
def test_a_body_without_them_stays_byte_for_byte(body: dict[str, Any]) -> None:
    assert passed_on(**body) == json.dumps(body, ensure_ascii=False).encode()
