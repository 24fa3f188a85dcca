"""Preflights, origins and HEAD, around an application that only takes notes."""

from __future__ import annotations

import asyncio
from typing import cast

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from guanaco.engine.engine import Engine
from guanaco.server.app import create_app
from guanaco.server.browsers import ForBrowsers
from guanaco.server.state import Serving

ORIGIN = {"Origin": "http://page.example:3000"}


class Noting:
    def __init__(self, status: int = 200) -> None:
        self.methods: list[str] = []
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.methods.append(scope["method"])
        await PlainTextResponse("answer", self._status, {"Vary": "Accept"})(scope, receive, send)


def ask(inner: Noting, method: str, **headers: str) -> httpx.Response:
    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(app=ForBrowsers(inner))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, "/any/path", headers=headers)

    return asyncio.run(answer())


def test_a_preflight_is_answered_for_every_path_and_goes_no_further() -> None:
    inner = Noting()
    answer = ask(inner, "OPTIONS", **ORIGIN, **{"Access-Control-Request-Method": "POST"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert answer.headers["access-control-allow-headers"] == "*"
    assert inner.methods == []


@pytest.mark.parametrize("status", [200, 401, 503])
def test_every_answer_names_the_origin_that_asked(status: int) -> None:
    answer = ask(Noting(status), "GET", **ORIGIN)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert answer.headers["vary"] == "Accept, Origin"


def test_without_an_origin_nothing_is_added() -> None:
    answer = ask(Noting(), "GET")
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Accept"


def test_head_is_get_without_its_body() -> None:
    inner = Noting()
    assert ask(inner, "HEAD", **ORIGIN).headers["content-length"] == "6"
    ask(inner, "POST")
    assert inner.methods == ["GET", "POST"]


def test_a_preflight_needs_no_key_and_head_does() -> None:
    app = create_app(Serving(cast(Engine, None)), api_keys=("k",))

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return [
                (await client.request(method, "/v1/models", headers=ORIGIN)).status_code
                for method in ("OPTIONS", "HEAD", "GET")
            ]

    assert asyncio.run(statuses()) == [200, 401, 401]
