"""The routes clients use: OpenAI's, and llama-server's for tokens and properties.

Owns reading and checking requests. Leaves answering to the worker through ``relay``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from guanaco.server.bodies import Body
from guanaco.server.problems import RequestError
from guanaco.server.relay import RelayResponse
from guanaco.server.rows import model_row
from guanaco.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
    text_letters,
)
from guanaco.server.state import Serving


def serving_of(request: Request) -> Serving:
    serving = request.app.state.serving
    assert isinstance(serving, Serving)  # noqa: S101
    return serving


Shared = Annotated[Serving, Depends(serving_of)]
public = APIRouter()
private = APIRouter()


async def checked_body(request: Request, serving: Serving, schema: type[BaseModel]) -> Body:
    """The body as it came, once it fits ``schema``; whoever gets it releases it. Raises RequestError."""
    body = Body(serving.bodies)
    try:
        announced = request.headers.get("content-length", "")
        await body.read(int(announced) if announced.isdecimal() else 0, request.stream())
        body.check_parsed()
        checked = _checked(body.content, schema)
        if isinstance(checked, DetokenizeRequest):
            check_tokens(checked.tokens, serving.engine.spec.model_map.n_vocab)
        body.check_text(text_letters(checked))
    except BaseException:
        body.release()
        raise
    return body


def _checked(content: bytes, schema: type[BaseModel]) -> BaseModel:
    try:
        return schema.model_validate_json(content)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(400, f"{where or 'body'}: {first['msg']}", where or None) from None


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """The engine fails inside on a token that its vocabulary lacks. Raises RequestError."""
    for index, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            raise RequestError(
                400,
                f"tokens.{index}: {token} is no token of this model; they go from 0 to {n_vocab - 1}",
                "tokens",
            )


def _documented(schema: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _add_relay(path: str, schema: type[BaseModel], summary: str) -> None:
    async def relay(request: Request, serving: Shared) -> Response:
        return RelayResponse(serving, path, await checked_body(request, serving, schema))

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
    return RelayResponse(serving, "/props", None)


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
