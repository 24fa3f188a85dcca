"""Errors as HTTP answers, in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

Owns that mapping for both plain answers and event streams. Status codes come from the errors themselves.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from guanaco.errors import GuanacoError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    501: "not_supported_error",
    503: "unavailable_error",
}

# What the engine says of a request it could not read: it answers 500, though nothing of its own has failed.
_OF_THE_REQUEST = re.compile(
    r"[Ff]ailed to (parse|tokenize|load|download) |Unknown reasoning format|Unable to generate parser"
    r"|Cannot |Unsupported |Only no echo|Invalid |Error: |tools param |tool_choice param |Multimodal "
    r"|\w+ input is not|got exception: .* grammar "
    r'|"|\[json\.'
)


class RequestError(Exception):
    """A request that is answered with an error: status, words, and what is at fault."""

    def __init__(self, status: int, message: str, param: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.details = details


def error_body(
    status: int, message: str, type_name: str | None = None, param: str | None = None, **details: Any
) -> dict[str, Any]:
    return {
        "error": {
            "message": message,
            "type": type_name or _TYPES.get(status, "server_error"),
            "param": param,
            "code": status,
            **details,
        }
    }


def blamed_on_request(body: bytes) -> bytes | None:
    """The engine's error body as a 400, when its words say that the request was at fault; else None."""
    try:
        error = json.loads(body)["error"]
        message = error["message"]
        of_the_request = _OF_THE_REQUEST.match(message) or "Jinja Exception: " in message
    except (ValueError, KeyError, TypeError):
        return None
    return json.dumps(error_body(400, message)).encode() if of_the_request else None


def problem_body(problem: GuanacoError) -> dict[str, Any]:
    return error_body(problem.http_status, problem.message, problem.type, **problem.details)


def error_event(problem: GuanacoError) -> bytes:
    """The last event of a stream that cannot go on."""
    return b"data: " + json.dumps(problem_body(problem)).encode() + b"\n\n"


def install(app: FastAPI) -> None:
    """Every error that leaves a route, in one shape."""

    async def on_request_error(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, RequestError)  # noqa: S101
        headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else None
        if problem.status == 503:
            headers = {"Retry-After": "1"}
        body = error_body(problem.status, problem.message, param=problem.param, **problem.details)
        return JSONResponse(body, problem.status, headers)

    async def on_guanaco_error(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, GuanacoError)  # noqa: S101
        return JSONResponse(problem_body(problem), problem.http_status)

    async def on_http_error(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, HTTPException)  # noqa: S101
        return JSONResponse(error_body(problem.status_code, str(problem.detail)), problem.status_code)

    async def on_invalid(_: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, RequestValidationError)  # noqa: S101
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse(error_body(400, f"{where or 'body'}: {first['msg']}", param=where or None), 400)

    async def on_bug(_: Request, problem: Exception) -> JSONResponse:
        words = f"the server failed at this request ({type(problem).__name__}); please report it"
        return JSONResponse(error_body(500, words), 500)

    async def on_leaving(_: Request, __: Exception) -> Response:
        return Response(status_code=400)  # it left before its request was whole: nobody reads this

    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(ClientDisconnect, on_leaving)
    app.add_exception_handler(GuanacoError, on_guanaco_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Exception, on_bug)
