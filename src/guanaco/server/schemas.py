"""The requests as pydantic models: what is checked here, and what OpenAPI shows.

Only the outline is checked; everything else is passed on as it came, because the engine knows more fields and
judges their values. The exception is what would cost the engine memory or stack without a bound of its own:
one request must not break the memory contract, nor end the server for everybody.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MOST_LAST_TOKENS = 1 << 18  # the engine keeps that many in a ring, used or not
MOST_SAMPLERS = 64  # each with rings of its own
MOST_INPUTS = 2048  # texts of one request, as at OpenAI
MOST_GRAMMAR_CHARS = 1 << 16
MOST_GRAMMAR_DEPTH = 128  # the engine's parser recurses
_GRAMMAR_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')


def _shallow(grammar: str) -> str:
    depth = deepest = 0
    for letter in _GRAMMAR_LITERAL.sub("", grammar):
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    if deepest > MOST_GRAMMAR_DEPTH:
        raise ValueError(f"a grammar may nest {MOST_GRAMMAR_DEPTH} parentheses, not {deepest}")
    return grammar


def _few(items: list[Any]) -> list[Any]:
    texts = sum(not isinstance(item, int) for item in items)  # a list of numbers is one text
    if texts > MOST_INPUTS:
        raise ValueError(f"a request may hold {MOST_INPUTS} texts, not {texts}")
    return items


LastTokens = Annotated[int, Field(le=MOST_LAST_TOKENS)]
Grammar = Annotated[str, Field(max_length=MOST_GRAMMAR_CHARS), AfterValidator(_shallow)]
Inputs = Annotated[list[Any], AfterValidator(_few)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = Field(None, description="Any name is accepted: one model is served.")


class _Generation(_Open):
    stream: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, allow_inf_nan=False)
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_last_n: LastTokens | None = None
    dry_penalty_last_n: LastTokens | None = None
    samplers: Annotated[list[Any], Field(max_length=MOST_SAMPLERS)] | str | None = None
    grammar: Grammar | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(_Generation):
    messages: list[Message] = Field(min_length=1)


class CompletionRequest(_Generation):
    prompt: str | Inputs


class EmbeddingRequest(_Open):
    input: str | Inputs


class TokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    content: str | list[Any]


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    tokens: list[int]


def text_letters(request: BaseModel) -> int:
    """Letters that the engine turns into tokens at once: a conversation with its tools, a list's longest."""
    more = _letters(request.model_extra)
    if isinstance(request, ChatRequest):
        return more + sum(_letters(part) for m in request.messages for part in (m.content, m.model_extra))
    if isinstance(request, CompletionRequest):
        return more + _longest(request.prompt)
    if isinstance(request, EmbeddingRequest):
        return _longest(request.input)
    return _longest(request.content) if isinstance(request, TokenizeRequest) else 0


def _longest(texts: object) -> int:
    return max(map(_letters, texts), default=0) if isinstance(texts, list) else _letters(texts)


def _letters(part: object) -> int:
    """Of a text, or of all texts in a list or object."""
    if isinstance(part, str):
        return len(part)
    if isinstance(part, dict):
        return sum(map(_letters, part.values()))
    return sum(map(_letters, part)) if isinstance(part, list) else 0
