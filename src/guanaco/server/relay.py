"""An answer that is passed on from the worker as it comes.

Owns cancellation (a client that leaves ends its generation, during the prompt too) and what a client is told
when a read fails or the worker ends in the middle: an error answer, or an error event in a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from guanaco.engine.client import Explain
from guanaco.errors import GuanacoError
from guanaco.server.bodies import Body
from guanaco.server.costs import Cost
from guanaco.server.problems import RequestError, blamed_on_request, error_body, error_event, problem_body
from guanaco.server.prompts import Ask, with_slot
from guanaco.server.state import Serving

_EVENT_STREAM = "text/event-stream"
_EVENT_END = b"\n\n"
_EVENT_DATA = b"data: "
_PING = b":\n\n"
_ERROR_START = b'data: {"error"'


class RelayResponse(Response):
    """Asks the worker ``path`` with ``body`` when it is sent, and releases the body afterwards.

    It waits first until one of the engine's slots is free, where it needs one, and until the engine has room
    for what the request costs.
    """

    def __init__(
        self,
        serving: Serving,
        path: str,
        body: Body | None = None,
        cost: Cost | None = None,
        ask: Ask | None = None,
    ) -> None:
        super().__init__()
        self._cost = cost or Cost(open=0)
        self._ask = ask
        self._serving = serving
        self._path = path
        self._request_body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = self._serving.counts
        counts.in_flight += 1
        relay = asyncio.create_task(self._relay(send))
        leaving = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({relay, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if relay.done():
                counts.answered[scope["path"], relay.result()] += 1
            else:
                counts.cancelled += 1
        finally:
            counts.in_flight -= 1
            try:
                for task in (relay, leaving):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            finally:
                if self._request_body is not None:
                    self._request_body.release()

    async def _relay(self, send: Send) -> int:
        """Send the whole answer; its status."""
        answer = _Answer(send)
        try:
            self._serving.upstream()  # no queue while there is nobody to ask
            explain = self._serving.engine.watch_faults()
            method = "GET" if self._request_body is None else "POST"
            headers = {"Content-Type": "application/json"}
            content = None if self._request_body is None else self._request_body.content
            waiting = asyncio.create_task(self._keep_alive(answer))
            async with (
                _ends_with(waiting),
                self._serving.scheduler.slot(self._ask) as id_slot,
                self._serving.reading.turn(self._cost.total_bytes) as turn,
                self._serving.abandoned.passed_on(),
                self._serving.upstream().stream(
                    method,
                    self._path,
                    content=content if content is None or id_slot is None else with_slot(content, id_slot),
                    headers=headers,
                ) as source,
            ):
                await _end(waiting)
                kind = source.headers.get("content-type", "application/json")
                if kind.startswith(_EVENT_STREAM):
                    turn.keep(self._cost.answering_bytes)
                    await answer.begin(source.status_code, kind)
                    await answer.pass_on(explained_events(source.aiter_raw(), explain))
                else:
                    await answer.whole(*judged(source.status_code, await source.aread(), explain), kind)
        except RequestError as problem:
            refusal = error_body(problem.status, problem.message, **problem.details)
            await answer.whole(problem.status, json.dumps(refusal).encode())
        except GuanacoError as problem:
            await answer.fail(problem)
        except httpx.HTTPError as problem:
            await answer.fail(await self._serving.explain(problem))
        return answer.status

    async def _keep_alive(self, answer: _Answer) -> None:
        """Comments on a stream until the engine begins it, as the engine sends them afterwards."""
        if self._ask is None or not self._ask.is_stream:
            return
        ping_s = self._serving.ping_s if self._ask.ping_s is None else self._ask.ping_s
        if ping_s <= 0:
            return
        while True:
            await asyncio.sleep(ping_s)
            await answer.ping()


class _Answer:
    """What has been sent so far."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def begin(self, status: int, kind: str, length: int | None = None) -> None:
        if self.status:  # it was kept alive while it waited
            return
        self.status = status
        headers = [(b"content-type", kind.encode("latin-1"))]
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        if length is None:
            headers.append((b"cache-control", b"no-cache"))
        else:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def pass_on(self, chunks: AsyncIterator[bytes]) -> None:
        async for chunk in chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def ping(self) -> None:
        await self.begin(httpx.codes.OK, _EVENT_STREAM)
        await self._send({"type": "http.response.body", "body": _PING, "more_body": True})

    async def whole(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """The answer in one piece; an error after the stream was begun is its last event."""
        if self.status:
            body = _EVENT_DATA + body + _EVENT_END
        await self.begin(status, kind, len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, problem: GuanacoError) -> None:
        if self.status:
            await self._send({"type": "http.response.body", "body": error_event(problem)})
        else:
            body = json.dumps(problem_body(problem)).encode()
            await self.whole(problem.http_status, body)


def judged(status: int, body: bytes, explain: Explain) -> tuple[int, bytes]:
    """The engine's answer as the client gets it: its own faults with the reason, a request's as a 400."""
    if status < httpx.codes.INTERNAL_SERVER_ERROR:
        return status, body
    refusal = blamed_on_request(body)
    return (status, explained(body, explain)) if refusal is None else (int(httpx.codes.BAD_REQUEST), refusal)


def explained(body: bytes, explain: Explain) -> bytes:
    """An error body of the engine with the reason in it; anything else as it is."""
    try:
        content = json.loads(body)
        message = content["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body
    content["error"]["message"] = explain(message)
    return json.dumps(content).encode()


async def explained_events(chunks: AsyncIterator[bytes], explain: Explain) -> AsyncIterator[bytes]:
    """Whole events as they come; the reason is added to an error event."""
    pending = b""
    async for chunk in chunks:
        *events, pending = (pending + chunk).split(_EVENT_END)
        for event in events:
            if event.startswith(_ERROR_START):
                event = _EVENT_DATA + explained(event.removeprefix(_EVENT_DATA), explain)
            yield event + _EVENT_END
    if pending:
        yield pending


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


@contextlib.asynccontextmanager
async def _ends_with(task: asyncio.Task[None]) -> AsyncIterator[None]:
    """The task ends with the ``async with`` block, and before anybody writes what is wrong."""
    try:
        yield
    finally:
        await _end(task)


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
