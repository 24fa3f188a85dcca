"""A stream is kept alive while its request waits: for a slot, for room, for what others left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from guanaco.server.abandoned import Abandoned
from guanaco.server.bodies import Body, BodyRoom
from guanaco.server.prompts import Ask
from guanaco.server.reading import ReadingRoom
from guanaco.server.relay import RelayResponse
from guanaco.server.scheduler import Scheduler
from guanaco.server.state import RequestCounts

EVENTS = b'data: {"a": 1}\n\ndata: [DONE]\n\n'
Answering = Callable[[httpx.Request], httpx.Response]


def stream(_: httpx.Request) -> httpx.Response:
    async def events() -> AsyncIterator[bytes]:
        yield EVENTS

    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=events())


def relayed(
    ask: Ask | None, answering: Answering, *, queue_s: float, ping_s: float = 0.02
) -> list[dict[str, Any]]:
    """What is sent to a client whose request waits ``queue_s`` for a slot."""

    async def run() -> list[dict[str, Any]]:
        serving: Any = SimpleNamespace(
            counts=RequestCounts(),
            scheduler=Scheduler(2, 512),
            reading=ReadingRoom(),
            abandoned=Abandoned(lambda: 0, lambda number: None),
            upstream=lambda: httpx.AsyncClient(
                transport=httpx.MockTransport(answering), base_url="http://worker"
            ),
            engine=SimpleNamespace(watch_faults=lambda: lambda message: message, explain_loss=lambda: None),
            ping_s=ping_s,
        )
        body = Body(BodyRoom())
        body.content = b'{"prompt": "x"}'
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> dict[str, str]:
            await asyncio.Event().wait()
            raise AssertionError

        async def hold() -> None:
            async with serving.scheduler.slot(Ask(2, 1, engine_chooses=True)):
                await asyncio.sleep(queue_s)

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        response: Any = RelayResponse(serving, "/v1/completions", body, None, ask)
        await response({"path": "/v1/completions"}, receive, send)
        await holding
        return sent

    return asyncio.run(run())


def text(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


def test_a_stream_gets_comments_and_then_its_events() -> None:
    sent = relayed(Ask(1, 1, is_stream=True), stream, queue_s=0.1)
    assert sent[0]["status"] == 200
    assert (b"content-type", b"text/event-stream") in sent[0]["headers"]
    assert [message["type"] for message in sent].count("http.response.start") == 1
    comments, events = text(sent).split(b"data: ", 1)
    assert comments.count(b":\n\n") * 3 == len(comments) >= 6
    assert b"data: " + events == EVENTS
    assert not sent[-1].get("more_body", False)


@pytest.mark.parametrize(
    ("ask", "ping_s"),
    [
        (Ask(1, 1), 0.02),
        (Ask(1, 1, is_stream=True), -1),
        (Ask(1, 1, is_stream=True, ping_s=-1), 0.02),
        (Ask(1, 1, is_stream=True), 30),
    ],
)
def test_nothing_is_sent_to_who_wants_no_comments_or_no_stream(ask: Ask, ping_s: float) -> None:
    assert text(relayed(ask, stream, queue_s=0.1, ping_s=ping_s)) == EVENTS


def test_a_request_says_how_often() -> None:
    ask = Ask(1, 1, is_stream=True, ping_s=1)
    assert text(relayed(ask, stream, queue_s=1.2, ping_s=-1)) == b":\n\n" + EVENTS


def refusal(_: httpx.Request) -> httpx.Response:
    return httpx.Response(400, json={"error": {"code": 400, "message": "no"}})


def test_what_is_wrong_is_the_last_event_of_a_stream_that_was_begun() -> None:
    sent = relayed(Ask(1, 1, is_stream=True), refusal, queue_s=0.1)
    assert sent[0]["status"] == 200
    last = text(sent).rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["message"] == "no"
    assert last.endswith(b"\n\n")
    sent = relayed(Ask(1, 1, is_stream=True), refusal, queue_s=0.0)
    assert sent[0]["status"] == 400, "nothing was sent yet"
