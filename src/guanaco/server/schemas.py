"""The requests as pydantic models: what is checked here, and what OpenAPI shows.

Only the outline is checked; everything else is passed on as it came, because the engine knows more fields and
judges their values. The exception is what would cost the engine memory or stack without a bound of its own:
one request must not break the memory contract, nor end the server for everybody.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from guanaco.server import grammars, numbers

MOST_LAST_TOKENS = 1 << 18  # the engine keeps that many in a ring, used or not
MOST_SAMPLERS = 64  # each with rings of its own
MOST_BREAKERS = 64  # each is looked for in the whole vocabulary
MOST_INPUTS = 2048  # texts of one request, as at OpenAI
_OTHER_MEDIA = ("image_url", "input_image", "input_audio", "input_video", "file")


def _countable(schema: object) -> object:
    worst = numbers.too_large(schema)
    if worst is not None:
        raise ValueError(f"a schema may hold numbers of 15 digits, not {worst}")
    backward = numbers.backward(schema)
    if backward is not None:
        raise ValueError(f"a schema with {backward} allows nothing")
    if numbers.common_multiple(schema) > numbers.MOST_MULTIPLE:
        raise ValueError(
            f"the least common multiple of all multipleOf may be {numbers.MOST_MULTIPLE}, no more"
        )
    return schema


def _shallow(grammar: str) -> str:
    if grammars.is_foreign(grammar):
        raise ValueError("grammars are taken in GBNF only; send one, or a JSON schema as json_schema")
    deepest = grammars.too_deep(grammar)
    if deepest is not None:
        raise ValueError(f"a grammar may nest {grammars.MOST_DEPTH} parentheses, not {deepest}")
    backward = grammars.backward(grammar)
    if backward is not None:
        raise ValueError(f"the repetition {backward} ends before it begins")
    return grammar


def _of_the_engine(value: object) -> object:
    if value not in (None, False, []):
        raise ValueError("is not accepted: the engine sets it by itself, for tools; leave it out")
    return value


def _texts_only(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for part in parts:
        kind = part.get("type")
        if kind in _OTHER_MEDIA:
            raise ValueError(f"the model is served for text only; leave out the part of type {kind!r}")
        if kind == "text" and not isinstance(part.get("text"), str):
            raise ValueError("a part of type 'text' needs its text as a string")
    return parts


def _few(items: list[Any]) -> list[Any]:
    texts = sum(not isinstance(item, int) for item in items)  # a list of numbers is one text
    if texts > MOST_INPUTS:
        raise ValueError(f"a request may hold {MOST_INPUTS} texts, not {texts}")
    return items


LastTokens = Annotated[int, Field(le=MOST_LAST_TOKENS)]
Grammar = Annotated[str, Field(max_length=grammars.MOST_CHARS), AfterValidator(_shallow)]
Parts = Annotated[list[dict[str, Any]], AfterValidator(_texts_only)]
OfTheEngine = Annotated[Any, AfterValidator(_of_the_engine)]
Schema = Annotated[Any, AfterValidator(_countable)]
Samplers = (
    Annotated[list[Any], Field(max_length=MOST_SAMPLERS)] | Annotated[str, Field(max_length=MOST_SAMPLERS)]
)
Inputs = Annotated[list[Any], AfterValidator(_few)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = Field(None, description="Any name is accepted: one model is served.")


class Generation(_Open):
    stream: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, allow_inf_nan=False)
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_last_n: LastTokens | None = None
    dry_penalty_last_n: LastTokens | None = None
    samplers: Samplers | None = None
    dry_sequence_breakers: Annotated[list[Any], Field(max_length=MOST_BREAKERS)] | None = None
    grammar: Grammar | None = None
    json_schema: Schema = None
    response_format: Schema = None
    # Its assertions and its regular expressions would end the engine.
    grammar_lazy: OfTheEngine = None
    grammar_triggers: OfTheEngine = None
    n_cache_reuse: int | None = None
    tools: Annotated[list[dict[str, Any]], AfterValidator(_countable)] | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | Parts | None = None


class ChatRequest(Generation):
    messages: list[Message] = Field(min_length=1)


class CompletionRequest(Generation):
    prompt: str | Inputs


class EmbeddingRequest(_Open):
    input: str | Inputs


class TokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    content: str | list[Any]


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    tokens: list[int]
