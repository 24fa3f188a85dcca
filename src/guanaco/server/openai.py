"""The routes clients use: OpenAI's, and llama-server's for tokens and properties.

Owns reading and checking requests. Leaves answering to the worker through ``relay``.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from guanaco.server import nulls
from guanaco.server.bodies import Body
from guanaco.server.costs import Cost, cost_of
from guanaco.server.problems import RequestError
from guanaco.server.prompts import Ask, ask_of
from guanaco.server.relay import RelayResponse
from guanaco.server.rows import model_row
from guanaco.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)
from guanaco.server.state import Serving


def serving_of(request: Request) -> Serving:
    serving = request.app.state.serving
    assert isinstance(serving, Serving)  # noqa: S101
    return serving


Shared = Annotated[Serving, Depends(serving_of)]
# Fields that may hold tokens as numbers.
_TOKEN_FIELDS = ("prompt", "input", "content", "tokens")
# How pydantic names the ways to read a field that may be a text or a list.
_READINGS = (
    "str",
    "list[any]",
    "function-after[_few(), list[any]]",
    "function-after[_texts_only(), list[dict[str,any]]]",
)
_Schema = TypeVar("_Schema", bound=BaseModel)
public = APIRouter()
private = APIRouter()


async def checked_body(
    request: Request, serving: Serving, schema: type[BaseModel]
) -> tuple[Body, Cost, Ask | None]:
    """The body as it came, once it fits ``schema``, what the engine takes for it and which slots it needs.

    Whoever gets the body releases it. Raises RequestError.
    """
    body = Body(serving.bodies)
    try:
        checked = await read_checked(request, body, schema)
        _check_for_model(checked, serving)
        if isinstance(checked, ChatRequest):
            body.content = nulls.left_out(body.content, checked)
        cost = cost_of(checked, serving.sizes)
        serving.reading.check(cost)
        ask = ask_of(checked, serving.scheduler.n_slots)
    except BaseException:
        body.release()
        raise
    return body, cost, ask


async def read_checked(request: Request, body: Body, schema: type[_Schema]) -> _Schema:
    """Reads all of ``body``; what it says, once it fits ``schema``. Raises RequestError."""
    announced = request.headers.get("content-length", "")
    await body.read(int(announced) if announced.isdecimal() else 0, request.stream())
    body.check_parsed()
    return _checked(body.content, schema)


def _checked(content: bytes, schema: type[_Schema]) -> _Schema:
    try:
        return schema.model_validate_json(content)
    except ValidationError as problem:
        errors = problem.errors(include_url=False, include_context=False)
        # Of a field that may be a text or a list, what is wrong with the one it is.
        same = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
        worst = next((error for error in same if error["type"] == "value_error"), errors[0])
        inside = [part for part in worst["loc"] if part not in _READINGS]
        where = ".".join(str(part) for part in inside)
        message = worst["msg"].removeprefix("Value error, ")
        raise RequestError(400, f"{where or 'body'}: {message}", where or None) from None


def _check_for_model(checked: BaseModel, serving: Serving) -> None:
    """What the engine would fail at, or take for something else, with this model. Raises RequestError."""
    for field in _TOKEN_FIELDS:
        check_tokens(getattr(checked, field, None), serving.sizes.n_vocab, field)
    reuse, config = getattr(checked, "n_cache_reuse", None), serving.engine.spec.config
    if reuse and not config.can_shift:
        raise RequestError(
            400,
            f"n_cache_reuse: this server's K cache ({config.cache_type_k}) cannot be shifted by the engine; "
            "leave it out, or start the server with -ctk f16",
            "n_cache_reuse",
        )


def check_tokens(part: object, n_vocab: int, field: str) -> None:
    """Numbers in ``part`` are tokens; the engine would cut larger ones to 32 bits. Raises RequestError."""
    if isinstance(part, list):
        for index, item in enumerate(part):
            check_tokens(item, n_vocab, f"{field}.{index}")
    elif isinstance(part, int) and not 0 <= part < n_vocab:
        raise RequestError(
            400,
            f"{field}: {part} is no token of this model; they go from 0 to {n_vocab - 1}",
            field.partition(".")[0],
        )


def _documented(schema: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _add_relay(path: str, schema: type[BaseModel], summary: str) -> None:
    async def relay(request: Request, serving: Shared) -> Response:
        return RelayResponse(serving, path, *await checked_body(request, serving, schema))

    private.add_api_route(
        path, relay, methods=["POST"], summary=summary, openapi_extra=_documented(schema), response_model=None
    )


_add_relay("/v1/chat/completions", ChatRequest, "Answer a conversation")
_add_relay("/v1/completions", CompletionRequest, "Go on with a text")
_add_relay("/v1/embeddings", EmbeddingRequest, "Embed texts; the server must run with --embeddings")
_add_relay("/tokenize", TokenizeRequest, "Text to tokens")
_add_relay("/detokenize", DetokenizeRequest, "Tokens to text")


@private.get("/props", response_model=None)
async def props(serving: Shared) -> Response:
    """The engine's own properties, as llama-server gives them."""
    return RelayResponse(serving, "/props")


@private.get("/v1/models")
async def models(serving: Shared) -> dict[str, Any]:
    """The model that is served."""
    return {"object": "list", "data": [model_row(serving)]}


@private.get("/v1/models/{name:path}")
async def model(name: str, serving: Shared) -> dict[str, Any]:
    """One model by name."""
    if name != serving.name:
        raise RequestError(404, f"the model {name!r} is not served here; it is {serving.name!r}", "model")
    return model_row(serving)


@public.get("/health", response_model=None)
async def health(serving: Shared) -> Response:
    """200 when requests are answered, 503 while the model loads."""
    if serving.state == "loading":
        raise RequestError(503, "the model is still loading", progress=serving.load_fraction)
    if serving.engine.died is not None:
        raise serving.engine.died
    return JSONResponse({"status": "ok"})
