"""Room in the engine's memory: held, waited for in order, given back however a request ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from guanaco.config import LoadConfig
from guanaco.planner.placement import plan
from guanaco.server.bodies import BodyRoom
from guanaco.server.costs import Cost
from guanaco.server.problems import RequestError
from guanaco.server.reading import MOST_WAITING, ReadingRoom
from guanaco.units import GIB
from tests.support.plan_models import MACHINE, MODEL_PATH, moe_model


def test_what_never_fits_is_refused_with_its_largest_part() -> None:
    room = ReadingRoom(1000)
    room.check(Cost(text=600, probabilities=400, open=0))
    with pytest.raises(RequestError, match="would take 1001 B of memory, most of it for its text") as caught:
        room.check(Cost(text=601, probabilities=400, open=0))
    assert caught.value.status == 413


def test_the_room_is_what_bodies_leave_of_the_headroom() -> None:
    made = plan(moe_model([]), MACHINE, LoadConfig(MODEL_PATH, memory_bytes=1 * GIB))
    for headroom_bytes in (made.parts.headroom_bytes, 8 * GIB):
        larger = replace(made, parts=replace(made.parts, headroom_bytes=headroom_bytes))
        bodies = BodyRoom.of(larger)
        assert ReadingRoom.of(larger, bodies).total_bytes + bodies.total_bytes == headroom_bytes


async def _hold(room: ReadingRoom, nbytes: int) -> None:
    """Until it is cancelled."""
    async with room.turn(nbytes):
        await asyncio.Event().wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_wait_in_the_order_they_came() -> None:
    async def scene() -> None:
        room, entered, leave = ReadingRoom(10), [], {}

        async def request(name: str, nbytes: int) -> None:
            async with room.turn(nbytes):
                entered.append(name)
                leave[name] = asyncio.Event()
                await leave[name].wait()

        tasks = [asyncio.create_task(request(*one)) for one in (("a", 6), ("big", 8), ("small", 1))]
        await _settle()
        assert entered == ["a"], "the small one does not overtake the big one for ever"
        assert room.held_bytes == 6
        leave["a"].set()
        await _settle()
        assert entered == ["a", "big", "small"]
        assert room.held_bytes == 9
        leave["big"].set()
        leave["small"].set()
        await asyncio.gather(*tasks)
        assert room.held_bytes == 0

    asyncio.run(scene())


def test_who_leaves_while_waiting_lets_the_next_one_in() -> None:
    async def scene() -> None:
        room = ReadingRoom(10)

        first, second, third = (asyncio.create_task(_hold(room, nbytes)) for nbytes in (6, 8, 4))
        await _settle()
        assert room.held_bytes == 6
        second.cancel()
        await _settle()
        assert room.held_bytes == 10
        first.cancel()
        third.cancel()
        await _settle()
        assert room.held_bytes == 0

    asyncio.run(scene())


def test_who_is_cancelled_in_the_moment_it_is_let_in_holds_nothing() -> None:
    async def scene() -> None:
        room = ReadingRoom(10)

        first, second = (asyncio.create_task(_hold(room, 10)) for _ in range(2))
        await _settle()
        first.cancel()
        await asyncio.sleep(0)  # the first leaves, which lets the second in; it has not run yet
        second.cancel()
        await _settle()
        assert room.held_bytes == 0

    asyncio.run(scene())


def test_a_part_can_be_given_back_early_and_only_once() -> None:
    async def scene() -> None:
        room = ReadingRoom(10)
        async with room.turn(7) as turn:
            turn.keep(3)
            assert room.held_bytes == 3
            turn.keep(5)
            assert room.held_bytes == 3
        assert room.held_bytes == 0

    asyncio.run(scene())


def test_more_than_so_many_do_not_wait() -> None:
    async def scene() -> None:
        room = ReadingRoom(1)

        tasks = [asyncio.create_task(_hold(room, 1)) for _ in range(MOST_WAITING + 1)]
        await _settle()
        with pytest.raises(RequestError) as caught:
            await _hold(room, 1)
        assert caught.value.status == 503
        for task in tasks:
            task.cancel()
        await _settle()
        assert room.held_bytes == 0

    asyncio.run(scene())
