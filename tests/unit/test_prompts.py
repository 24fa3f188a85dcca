"""How many slots a request needs, about how much is to be read, and the slot it is sent to."""

from __future__ import annotations

import json

import pytest

from guanaco.server.prompts import Ask, ask_of, with_slot
from guanaco.server.schemas import ChatRequest, CompletionRequest, TokenizeRequest


@pytest.mark.parametrize(
    ("body", "ask"),
    [
        ({"prompt": "word " * 100}, Ask(1, 125)),
        ({"prompt": [1, 2, 3]}, Ask(1, 3)),
        ({"prompt": [1, 2, "four"]}, Ask(1, 3)),
        ({"prompt": ["a" * 40, "b" * 80]}, Ask(2, 20)),
        ({"prompt": [[1, 2], [3, 4, 5]]}, Ask(2, 3)),
        ({"prompt": "", "n": 3}, Ask(3, 0)),
        ({"prompt": "", "id_slot": 2}, Ask(1, 0, 2)),
        ({"prompt": "", "id_slot": -1}, Ask(1, 0)),
        ({"prompt": "", "id_slot": None}, Ask(1, 0)),
    ],
)
def test_completions(body: dict[str, object], ask: Ask) -> None:
    assert ask_of(CompletionRequest.model_validate(body)) == ask


def test_conversations_count_their_messages_and_tools() -> None:
    messages = [{"role": "user", "content": "x" * 96}]
    tools = [{"type": "function", "function": {"name": "look", "description": "y" * 400}}]
    plain = ask_of(ChatRequest.model_validate({"messages": messages}))
    assert plain is not None
    assert 24 <= plain.n_tokens <= 30
    with_tools = ask_of(ChatRequest.model_validate({"messages": messages, "tools": tools}))
    assert with_tools is not None
    assert with_tools.n_tokens >= plain.n_tokens + 100


def test_what_needs_no_slot() -> None:
    assert ask_of(TokenizeRequest.model_validate({"content": "text"})) is None


@pytest.mark.parametrize("content", [b'{"prompt": "{"}', b' \n{"messages": []}'])
def test_the_slot_is_put_into_the_request(content: bytes) -> None:
    assert json.loads(with_slot(content, 3)) == {**json.loads(content), "id_slot": 3}
    assert with_slot(content, None) == content
