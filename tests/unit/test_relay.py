"""The reason that is added to the engine's error answers and error events, and to nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from guanaco.server.relay import explained, explained_events, judged

ERROR = b'{"error":{"code":500,"message":"Compute error.","type":"server_error"}}'


def because(message: str) -> str:
    return f"{message} Because."


def relayed(*chunks: bytes) -> list[bytes]:
    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[bytes]:
        return [chunk async for chunk in explained_events(source(), because)]

    return asyncio.run(collect())


def test_an_error_body_keeps_its_other_fields() -> None:
    assert json.loads(explained(ERROR, because)) == {
        "error": {"code": 500, "message": "Compute error. Because.", "type": "server_error"}
    }


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b'{"error": "x"}', b'{"a": 1}', b"\xff"])
def test_other_bodies_stay_as_they_are(body: bytes) -> None:
    assert explained(body, because) == body


@pytest.mark.parametrize(
    "message",
    [
        "Failed to parse messages: Missing tool call name: {}",
        "Unknown reasoning format: x",
        "Cannot use both json_schema and grammar",
        "While executing CallExpression at line 1: Error: Jinja Exception: roles must alternate",
    ],
)
def test_a_request_that_the_engine_cannot_read_is_not_the_engines_fault(message: str) -> None:
    body = json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()
    status, answer = judged(500, body, because)
    assert status == 400
    assert json.loads(answer)["error"] == {
        "code": 400,
        "message": message,
        "type": "invalid_request_error",
        "param": None,
    }


@pytest.mark.parametrize("message", ["Compute error.", "failed to get logits", "got exception: x", 5])
def test_what_fails_in_the_engine_stays_its_fault(message: object) -> None:
    body = json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()
    assert judged(500, body, because)[0] == 500
    assert judged(503, b"<html>", because) == (503, b"<html>")
    assert judged(200, body, because) == (200, body)


def test_events_pass_as_they_come() -> None:
    assert relayed(b'data: {"a":1}\n\n', b": ping\n\n") == [b'data: {"a":1}\n\n', b": ping\n\n"]


def test_an_error_event_is_explained_wherever_it_is_cut() -> None:
    stream = b'data: {"a":"{\\"error\\""}\n\n' + b"data: " + ERROR + b"\n\n"
    whole = relayed(stream)
    assert whole[0] == b'data: {"a":"{\\"error\\""}\n\n'
    assert json.loads(whole[1].removeprefix(b"data: "))["error"]["message"] == "Compute error. Because."
    for cut in range(1, len(stream)):
        assert b"".join(relayed(stream[:cut], stream[cut:])) == b"".join(whole)


def test_a_tail_without_an_end_is_not_lost() -> None:
    assert relayed(b"data: [DO", b"NE]") == [b"data: [DONE]"]
