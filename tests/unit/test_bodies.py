"""How much of request bodies is in memory at once, whatever clients announce and however they send."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from guanaco.config import LoadConfig
from guanaco.planner.placement import plan
from guanaco.server.bodies import MAX_BODY_BYTES, MAX_TOTAL_BYTES, Body, BodyRoom, parsed_bytes
from guanaco.server.problems import RequestError
from guanaco.units import GIB, MIB
from tests.support.plan_models import MACHINE, MODEL_PATH, moe_model


def read(body: Body, *chunks: bytes, announced: int = 0) -> None:
    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    asyncio.run(body.read(announced, source()))


def status_of(body: Body, *chunks: bytes, announced: int = 0) -> int:
    with pytest.raises(RequestError) as problem:
        read(body, *chunks, announced=announced)
    body.release()
    return problem.value.status


def test_a_body_is_what_was_sent_and_counts_until_it_is_released() -> None:
    room = BodyRoom(10)
    body = Body(room)
    read(body, b"abc", b"", b"defg")
    assert body.content == b"abcdefg"
    assert room.held_bytes == 7
    body.release()
    body.release()
    assert room.held_bytes == 0
    assert body.content == b""


@pytest.mark.parametrize("limits", [{"pause_s": 0.05}, {"whole_s": 0.05}])
def test_nobody_holds_the_room_with_a_body_that_does_not_come(limits: dict[str, float]) -> None:
    async def drops() -> AsyncIterator[bytes]:
        yield b"123"
        await asyncio.sleep(60)
        yield b"4"

    room = BodyRoom(10)
    body = Body(room, **limits)
    with pytest.raises(RequestError, match="3 bytes of it are here") as problem:
        asyncio.run(body.read(4, drops()))
    assert problem.value.status == 408
    body.release()
    assert room.held_bytes == 0


def test_bodies_share_the_room_and_what_does_not_fit_is_told_to_come_again() -> None:
    room = BodyRoom(10)
    first, second = Body(room), Body(room)
    read(first, b"123456")
    # Chunks that fit are given back when a later one does not.
    assert status_of(second, b"123", b"45") == 503
    assert room.held_bytes == 6
    read(second, b"1234")
    first.release()
    third = Body(room)
    read(third, b"123456")
    assert room.held_bytes == 10


def test_a_body_that_never_fits_is_too_long_not_too_early() -> None:
    room = BodyRoom(10)
    assert status_of(Body(room), b"123456", b"789ab") == 413
    assert status_of(Body(room), announced=11) == 413, "before a byte is read"
    assert status_of(Body(BodyRoom()), announced=MAX_BODY_BYTES + 1) == 413
    read(Body(room), b"1234567890", announced=10)


def test_the_room_is_a_part_of_the_plans_headroom() -> None:
    made = plan(moe_model([]), MACHINE, LoadConfig(MODEL_PATH, memory_bytes=1 * GIB))
    assert BodyRoom.of(made).total_bytes == made.parts.headroom_bytes // 2 == 16 * MIB
    large = replace(made, parts=replace(made.parts, headroom_bytes=8 * GIB))
    assert BodyRoom.of(large).total_bytes == MAX_TOTAL_BYTES


def held_bytes(value: object) -> int:
    """What a parsed value takes in this interpreter; equal numbers and texts may be one object, so less."""
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        return total + sum(held_bytes(key) + held_bytes(item) for key, item in value.items())
    if isinstance(value, list):
        return total + sum(held_bytes(item) for item in value)
    return total


@pytest.mark.parametrize(
    "value",
    [
        "plain " * 10_000,
        "one \N{LLAMA} among " + "many letters " * 10_000,
        "ein \N{LATIN SMALL LETTER O WITH DOUBLE ACUTE} and " + "many letters " * 10_000,
        [100_000 + n for n in range(50_000)],
        [f"{n}" for n in range(50_000)],
        [[] for _ in range(20_000)],
        [{} for _ in range(20_000)],
        [{"role": "user", "content": f"{n}"} for n in range(20_000)],
        {f"key {n}": n / 3 for n in range(20_000)},
    ],
    ids=["plain", "widest", "wide", "numbers", "texts", "lists", "objects", "messages", "keys"],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_estimate_is_not_below_what_parsing_takes(value: object, ascii_only: bool) -> None:
    body = json.dumps({"prompt": value}, ensure_ascii=ascii_only).encode()
    assert held_bytes(json.loads(body)) <= parsed_bytes(body) <= 200 * len(body)


def test_what_would_take_more_than_its_room_when_parsed_is_refused() -> None:
    room = BodyRoom(100_000)
    body = Body(room)
    read(body, b'{"prompt": "' + b"x" * 90_000 + b'"}')
    body.check_parsed()
    body.release()
    read(body, b'{"prompt": [' + b"1," * 2_000 + b"1]}")
    with pytest.raises(
        RequestError, match=r"would take 129\.\d KiB of memory, and there is room for 97\.7 KiB"
    ):
        body.check_parsed()
