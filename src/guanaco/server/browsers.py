"""What browsers and monitors ask for beside the routes: other origins, and HEAD. As llama-server does.

Owns the CORS headers of every answer, the answer to a preflight (which carries no key, so none is asked for)
and HEAD for every path that has GET. Leaves everything else to the application inside.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "*",
}


class ForBrowsers:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = Headers(scope=scope).get("origin")

        async def send_allowed(message: Message) -> None:
            if origin is not None and message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Access-Control-Allow-Origin"] = origin
                headers.add_vary_header("Origin")
            await send(message)

        if scope["method"] == "OPTIONS":
            preflight = Response(headers=_PREFLIGHT_HEADERS, media_type="text/html")
            await preflight(scope, receive, send_allowed)
        elif scope["method"] == "HEAD":
            # The server leaves the body out, because its own scope still says HEAD.
            await self._app({**scope, "method": "GET"}, receive, send_allowed)
        else:
            await self._app(scope, receive, send_allowed)
