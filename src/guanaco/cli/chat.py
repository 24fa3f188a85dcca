"""One question and its answer, from a loaded model. Owns the shape of the two requests and of an answer.

Text is streamed where somebody watches; where a program reads, one request brings the token ids as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from guanaco.engine.client import EngineClient

_STOP_REASONS = {"eos": "stop", "word": "stop", "limit": "length", "none": None}


@dataclass(frozen=True)
class Answer:
    text: str
    reasoning: str
    tokens: tuple[int, ...]  # empty when streamed
    finish_reason: str | None
    prompt_n: int
    prompt_tps: float | None
    decode_n: int
    decode_tps: float | None


@dataclass(frozen=True)
class Question:
    """Turns of a conversation or, with ``raw``, a text to go on with."""

    messages: tuple[dict[str, str], ...]
    raw: bool = False

    @property
    def prompt(self) -> str:
        return self.messages[-1]["content"]


def ask(client: EngineClient, question: Question) -> Answer:
    """The whole answer at once, with its tokens."""
    if question.raw:
        answer = client.call("/completion", {"prompt": question.prompt, "return_tokens": True})
        return _answer(
            answer["content"], "", answer["tokens"], _STOP_REASONS.get(answer["stop_type"]), answer
        )
    body = {"messages": list(question.messages), "return_tokens": True, "verbose": True}
    answer = client.call("/v1/chat/completions", body)
    choice = answer["choices"][0]
    message = choice["message"]
    return _answer(
        message.get("content") or "",
        message.get("reasoning_content") or "",
        answer["__verbose"]["tokens"],
        choice["finish_reason"],
        answer,
    )


def ask_streaming(
    client: EngineClient,
    question: Question,
    write: Callable[[str], None],
    write_reasoning: Callable[[str], None],
) -> Answer:
    """The answer piece by piece."""
    text: list[str] = []
    reasoning: list[str] = []
    reason: str | None = None
    last: dict[str, Any] = {}
    path, body = _streaming_request(question)
    for event in client.stream(path, body):
        last = {**last, **event}
        piece, thought, ended = _pieces(event, question.raw)
        if piece:
            text.append(piece)
            write(piece)
        if thought:
            reasoning.append(thought)
            write_reasoning(thought)
        reason = ended or reason
    return _answer("".join(text), "".join(reasoning), (), reason, last)


def _streaming_request(question: Question) -> tuple[str, dict[str, Any]]:
    if question.raw:
        return "/completion", {"prompt": question.prompt}
    return "/v1/chat/completions", {"messages": list(question.messages)}


def _pieces(event: dict[str, Any], raw: bool) -> tuple[str, str, str | None]:
    if raw:
        return event["content"], "", _STOP_REASONS.get(event.get("stop_type", "none"))
    if not event["choices"]:
        return "", "", None
    choice = event["choices"][0]
    delta = choice["delta"]
    return delta.get("content") or "", delta.get("reasoning_content") or "", choice["finish_reason"]


def _answer(
    text: str, reasoning: str, tokens: Any, finish_reason: str | None, source: dict[str, Any]
) -> Answer:
    timings = source.get("timings", {})
    return Answer(
        text=text,
        reasoning=reasoning,
        tokens=tuple(tokens),
        finish_reason=finish_reason,
        prompt_n=int(timings.get("prompt_n", 0)),
        prompt_tps=timings.get("prompt_per_second"),
        decode_n=int(timings.get("predicted_n", 0)),
        decode_tps=timings.get("predicted_per_second"),
    )
