"""How many slots a request needs, about how much is to be read, and the slot it is sent to."""

from __future__ import annotations

import json

import pytest

from guanaco.server.prompts import ask_of, with_slot
from guanaco.server.schemas import ChatRequest, CompletionRequest, TokenizeRequest


@pytest.mark.parametrize(
    ("body", "n_sequences", "n_tokens", "engine_chooses"),
    [
        ({"prompt": "word " * 99}, 1, 165, False),
        ({"prompt": [1, 2, 3]}, 1, 3, False),
        ({"prompt": [1, 2, "six by"]}, 1, 4, False),
        ({"prompt": ["a" * 30, "b" * 60]}, 2, 20, True),
        ({"prompt": [[1, 2], [3, 4, 5]]}, 2, 3, True),
        ({"prompt": "", "n": 3}, 3, 0, True),
        ({"prompt": "", "n_cmpl": 3}, 3, 0, True),
        ({"prompt": "", "id_slot": 2}, 1, 0, True),
        ({"prompt": "", "id_slot": "2"}, 1, 0, True),
        ({"prompt": "", "id_slot": -1}, 1, 0, False),
        ({"prompt": "", "id_slot": None}, 1, 0, False),
    ],
)
def test_completions(body: dict[str, object], n_sequences: int, n_tokens: int, engine_chooses: bool) -> None:
    ask = ask_of(CompletionRequest.model_validate(body), 2)
    assert ask is not None
    assert (ask.n_sequences, ask.n_tokens, ask.engine_chooses) == (n_sequences, n_tokens, engine_chooses)


def test_the_digest_is_of_the_prompt_alone() -> None:
    def digest(**body: object) -> bytes:
        ask = ask_of(CompletionRequest.model_validate(body), 2)
        assert ask is not None
        return ask.digest

    one = digest(prompt="a" * 1000)
    assert len(one) == 3 * 4
    assert digest(prompt="a" * 1000, json_schema={"type": "object"}, max_tokens=5) == one
    assert digest(prompt="b" * 1000)[:4] != one[:4]
    assert digest(prompt="a" * 2000)[: len(one)] == one
    alone = ask_of(CompletionRequest.model_validate({"prompt": "a" * 1000}), 1)
    assert alone is not None
    assert alone.digest == b"", "nothing to choose"


def test_conversations_count_their_messages_and_tools() -> None:
    messages = [{"role": "user", "content": "x" * 96}]
    tools = [{"type": "function", "function": {"name": "look", "description": "y" * 400}}]
    plain = ask_of(ChatRequest.model_validate({"messages": messages}), 2)
    assert plain is not None
    assert 32 <= plain.n_tokens <= 40
    with_tools = ask_of(ChatRequest.model_validate({"messages": messages, "tools": tools}), 2)
    assert with_tools is not None
    assert with_tools.n_tokens >= plain.n_tokens + 100


def test_what_needs_no_slot() -> None:
    assert ask_of(TokenizeRequest.model_validate({"content": "text"}), 2) is None


@pytest.mark.parametrize("content", [b'{"prompt": "{"}', b' \n{"messages": []}'])
def test_the_slot_is_put_into_the_request(content: bytes) -> None:
    assert json.loads(with_slot(content, 3)) == {**json.loads(content), "id_slot": 3}


def test_the_slot_counts_that_is_put_in() -> None:
    assert json.loads(with_slot(b'{"id_slot": -1, "prompt": ""}', 3))["id_slot"] == 3
