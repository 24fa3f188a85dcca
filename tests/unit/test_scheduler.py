"""Who is let into the engine's slots, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from guanaco.errors import EngineError
from guanaco.server import scheduler
from guanaco.server.problems import RequestError
from guanaco.server.prompts import Ask
from guanaco.server.scheduler import Scheduler, Seen

SHORT, LONG = Ask(1, 10), Ask(1, 4096)
ENGINE_CHOOSES = Ask(1, 10, engine_chooses=True)
N_BATCH = 512


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_POLL_S", 0.001)
    monkeypatch.setattr(scheduler, "_SETTLE_S", 0.0)


class Engine:
    """Which slots are busy although nobody waits any more, and which prompts have been read."""

    def __init__(self, n_slots: int) -> None:
        self.begun: set[int] = set()
        self.lingering: set[int] = set()
        self.asked = 0
        self._n_slots = n_slots
        self.scheduler = Scheduler(n_slots, N_BATCH, self._look)
        self.let_in: list[tuple[str, int | None]] = []
        self.answered = asyncio.Event()

    async def _look(self) -> list[Seen]:
        self.asked += 1
        return [Seen(n in self.lingering or n in self.begun, n in self.begun) for n in range(self._n_slots)]

    def ask(self, name: str, ask: Ask | None) -> asyncio.Task[None]:
        async def request() -> None:
            async with self.scheduler.slot(ask) as index:
                self.let_in.append((name, index))
                await self.answered.wait()

        return asyncio.create_task(request())


async def leave(*clients: asyncio.Task[None]) -> None:
    for client in clients:
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0.002)


def run(n_slots: int, scenario: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        engine = Engine(n_slots)
        await scenario(engine)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await engine.scheduler.aclose()

    asyncio.run(whole())


def test_a_short_one_beside_a_long_one_and_the_next_long_one_when_that_is_read() -> None:
    async def scenario(engine: Engine) -> None:
        first = engine.ask("long", LONG)
        await settled()
        engine.ask("second long", LONG)
        await settled()
        short = engine.ask("short", SHORT)
        await settled()
        assert engine.let_in == [("long", 3), ("short", 0)]
        assert engine.scheduler.n_waiting == 1
        engine.begun.add(3)  # the first answers now
        await settled()
        assert engine.let_in[2:] == [("second long", 2)]
        await leave(first, short)

    run(4, scenario)


def test_a_long_one_that_leaves_makes_room_for_the_next() -> None:
    async def scenario(engine: Engine) -> None:
        first = engine.ask("long", LONG)
        await settled()
        engine.ask("second long", LONG)
        await settled()
        await leave(first)
        await settled()
        assert engine.let_in == [("long", 1), ("second long", 1)]

    run(2, scenario)


def test_the_engine_is_asked_only_while_somebody_waits() -> None:
    async def scenario(engine: Engine) -> None:
        engine.ask("long", LONG)
        await settled()
        assert engine.asked == 0
        second = engine.ask("second long", LONG)
        await settled()
        asked = engine.asked
        assert asked > 0
        await leave(second)
        await settled()
        after = engine.asked
        await settled()
        assert engine.asked == after

    run(2, scenario)


def test_slots_are_given_in_the_order_of_asking() -> None:
    async def scenario(engine: Engine) -> None:
        held = [engine.ask(f"{n}", SHORT) for n in range(2)]
        await settled()
        for n in range(2, 6):
            engine.ask(f"{n}", SHORT)
            await settled()
        assert engine.scheduler.n_waiting == 4
        for task in held:
            await leave(task)
            await settled()
        assert [name for name, _ in engine.let_in] == ["0", "1", "2", "3"]

    run(2, scenario)


def test_short_ones_do_not_starve_a_long_one_that_may_be_read() -> None:
    async def scenario(engine: Engine) -> None:
        shorts = [engine.ask(f"{n}", SHORT) for n in range(2)]
        await settled()
        engine.ask("long", LONG)
        await settled()
        engine.ask("late", SHORT)
        await settled()
        await leave(shorts[0])
        await settled()
        assert engine.let_in[2:] == [("long", 0)], "it came before the late one"

    run(2, scenario)


def test_several_sequences_wait_for_as_many_slots_and_the_engine_chooses() -> None:
    async def scenario(engine: Engine) -> None:
        one = engine.ask("one", SHORT)
        await settled()
        engine.ask("three", Ask(3, 10, engine_chooses=True))
        await settled()
        engine.ask("late", SHORT)
        await settled()
        assert [name for name, _ in engine.let_in] == ["one"]
        await leave(one)
        await settled()
        assert engine.let_in[1:] == [("three", None)]

    run(3, scenario)


def test_more_sequences_than_slots_take_all_of_them() -> None:
    async def scenario(engine: Engine) -> None:
        many = engine.ask("many", Ask(10, 10, engine_chooses=True))
        await settled()
        assert engine.let_in == [("many", None)]
        engine.ask("late", SHORT)
        await settled()
        assert engine.scheduler.n_waiting == 1
        await leave(many)
        await settled()
        assert engine.let_in[1][0] == "late"

    run(2, scenario)


def test_while_the_engine_chooses_for_one_it_chooses_for_all() -> None:
    async def scenario(engine: Engine) -> None:
        named = engine.ask("named", ENGINE_CHOOSES)
        await settled()
        engine.ask("short", SHORT)
        engine.ask("late", SHORT)
        await settled()
        assert engine.let_in == [("named", None), ("short", None)], "its slot is not known: only the number"
        await leave(named)
        await settled()
        assert engine.let_in[2:] == [("late", None)], "the short one is where the engine put it"

    run(2, scenario)


def test_more_answers_than_slots_are_left_to_the_engine_to_refuse() -> None:
    async def scenario(engine: Engine) -> None:
        for n in range(2):
            engine.ask(f"{n}", SHORT)
        await settled()
        engine.ask("nine", Ask(9, 10, n_answers=9, engine_chooses=True))
        await settled()
        assert engine.let_in[2:] == [("nine", None)]

    run(2, scenario)


def test_a_slot_is_busy_until_the_engine_has_noticed_that_its_client_left() -> None:
    async def scenario(engine: Engine) -> None:
        clients = [engine.ask(f"{n}", SHORT) for n in range(2)]
        await settled()
        engine.lingering.add(0)
        await leave(*clients)
        await settled()
        engine.ask("next", SHORT)
        engine.ask("last", SHORT)
        await settled()
        assert engine.let_in[2:] == [("next", 1)], "the other one still computes for nobody"
        engine.lingering.clear()
        await settled()
        assert engine.let_in[3:] == [("last", 0)]

    run(2, scenario)


def test_slots_the_engine_chose_are_free_when_no_more_are_busy_than_are_waited_for() -> None:
    async def scenario(engine: Engine) -> None:
        two = engine.ask("two", Ask(2, 10, n_answers=2, engine_chooses=True))
        await settled()
        engine.lingering |= {1, 2}
        await leave(two)
        await settled()
        engine.ask("three", Ask(3, 10, n_answers=3, engine_chooses=True))
        await settled()
        assert [name for name, _ in engine.let_in] == ["two"]
        engine.lingering.clear()
        await settled()
        assert [name for name, _ in engine.let_in] == ["two", "three"]

    run(3, scenario)


def test_what_a_cancelled_request_had_said_is_no_sign_that_the_next_prompt_is_read() -> None:
    async def scenario(engine: Engine) -> None:
        before = engine.ask("answered", LONG)
        await settled()
        engine.begun.add(1)
        await leave(before)
        await settled()
        engine.ask("long", LONG)
        engine.ask("second long", LONG)
        await settled()
        # Slot 1 still belongs to the one that left; the first long one took the other.
        assert engine.let_in[1:] == [("long", 0)]
        engine.begun.clear()
        await settled()
        assert engine.let_in[1:] == [("long", 0)], "it has not begun"
        engine.begun.add(0)
        await settled()
        assert engine.let_in[2:] == [("second long", 1)]

    run(2, scenario)


def test_who_waits_hears_why_the_server_ends() -> None:
    async def scenario(engine: Engine) -> None:
        for n in range(2):
            engine.ask(f"{n}", SHORT)
        await settled()
        waiting = [engine.ask(f"w{n}", SHORT) for n in range(3)]
        await settled()
        engine.scheduler.close(EngineError("the server is shutting down"))
        for task in [*waiting, engine.ask("late", SHORT)]:
            with pytest.raises(EngineError, match="shutting down"):
                await task
        assert engine.scheduler.n_waiting == 0

    run(2, scenario)


def test_one_slot_and_what_needs_none_are_left_to_the_engine() -> None:
    async def scenario(engine: Engine) -> None:
        for ask in (SHORT, LONG, None):
            engine.ask("x", ask)
        await settled()
        assert [index for _, index in engine.let_in] == [None] * 3

    run(1, scenario)

    async def embeddings(engine: Engine) -> None:
        for _ in range(5):
            engine.ask("x", None)
        await settled()
        assert len(engine.let_in) == 5

    run(2, embeddings)


def test_who_leaves_the_queue_holds_nothing() -> None:
    async def scenario(engine: Engine) -> None:
        held = [engine.ask(f"{n}", SHORT) for n in range(2)]
        await settled()
        waiting = [engine.ask(f"w{n}", SHORT) for n in range(5)]
        await settled()
        await leave(*waiting[:4])
        assert engine.scheduler.n_waiting == 1
        # Let in and gone in the same turn of the loop.
        held[0].cancel()
        await asyncio.sleep(0)
        waiting[4].cancel()
        await settled()
        engine.ask("late", SHORT)
        await settled()
        assert engine.let_in[-1][0] == "late"
        assert engine.scheduler.n_waiting == 0

    run(2, scenario)


def test_too_many_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MOST_WAITING", 1)

    async def scenario(engine: Engine) -> None:
        for n in range(3):
            engine.ask(f"{n}", SHORT)
        await settled()
        with pytest.raises(RequestError, match="send this one again later") as refused:
            await engine.ask("late", SHORT)
        assert refused.value.status == 503

    run(2, scenario)
