"""The HTTP application of one served model. Owns who may ask, and which routes there are."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import httpx
from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.responses import PlainTextResponse

from guanaco import __version__
from guanaco.server import metrics, openai, problems, slots
from guanaco.server.browsers import ForBrowsers
from guanaco.server.openai import Shared
from guanaco.server.problems import RequestError
from guanaco.server.state import Serving

_ENGINE_METRICS_TIMEOUT_S = 2.0
_observed = APIRouter()


def create_app(serving: Serving, api_keys: Sequence[str] = ()) -> FastAPI:
    """All but ``/health`` and the API's own description needs one of ``api_keys``, if there are any."""
    app = FastAPI(title="Guanaco", version=__version__, docs_url=None, redoc_url=None)
    app.state.serving = serving
    app.state.api_keys = tuple(key.encode() for key in api_keys)
    app.add_middleware(ForBrowsers)
    problems.install(app)
    app.include_router(openai.public)
    app.include_router(openai.private, dependencies=[Depends(_authorised)])
    app.include_router(slots.router, dependencies=[Depends(_authorised)])
    app.include_router(_observed, dependencies=[Depends(_authorised)])
    return app


async def _authorised(request: Request) -> None:
    keys: tuple[bytes, ...] = request.app.state.api_keys
    if not keys:
        return
    given = request.headers.get("authorization", "")
    scheme, _, token = given.partition(" ")
    word = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    # Headers arrive as Latin-1, whatever the client wrote.
    # Every key is compared, each in constant time: nothing is learnt from how long it takes.
    if not sum(hmac.compare_digest(word.encode("latin-1"), key) for key in keys):
        raise RequestError(401, "the API key is missing or wrong; send 'Authorization: Bearer KEY'")


@_observed.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(serving: Shared) -> PlainTextResponse:
    """Guanaco's own metrics, then the engine's."""
    engine = serving.engine
    snapshot = metrics.Snapshot(
        model=serving.name,
        is_ready=serving.state == "ready",
        load_s=engine.load_s,
        plan=engine.spec.plan,
        peak_bytes=engine.peak_bytes(),
        stats=engine.stats(),
        counts=serving.counts,
        n_waiting=serving.scheduler.n_waiting,
        drafting=engine.drafting(),
    )
    text = metrics.render(snapshot) + await _engine_metrics(serving)
    return PlainTextResponse(text, media_type=metrics.CONTENT_TYPE)


async def _engine_metrics(serving: Serving) -> str:
    """llama.cpp's own, when it answers in time."""
    if serving.state != "ready":
        return ""
    try:
        answer = await serving.upstream().get("/metrics", timeout=_ENGINE_METRICS_TIMEOUT_S)
    except httpx.HTTPError:
        return ""
    return answer.text if answer.status_code == httpx.codes.OK else ""
