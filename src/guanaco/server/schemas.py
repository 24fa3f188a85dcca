"""The requests as pydantic models: what is checked here, and what OpenAPI shows.

Only the outline is checked; everything else is passed on as it came, because the engine knows more fields and
judges their values.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


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


class Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(_Generation):
    messages: list[Message] = Field(min_length=1)


class CompletionRequest(_Generation):
    prompt: str | list[Any]


class EmbeddingRequest(_Open):
    input: str | list[Any]


class TokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    content: str | list[Any]


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    tokens: list[int]
