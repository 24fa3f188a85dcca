"""The owner loop with workers of its own making, at random speeds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from guanaco.errors import EngineError
from guanaco.node.instance import Instance, State
from guanaco.node.node import Node, RefusedError
from guanaco.node.scheduler import Limits, Scheduler

_SIZES = {"a": 6, "b": 6, "c": 3, "huge": 11, "broken": 1}
_ROOM = 10


class FakeWorker:
    def __init__(self, world: World, model: str) -> None:
        self.world, self.model = world, model
        self.gone = asyncio.Event()
        self.n_running = 0
        self.has_died = False

    async def answer(self) -> str:
        if self.has_died:
            raise EngineError("it died")
        assert not self.gone.is_set(), "asked after it was stopped"
        self.n_running += 1
        try:
            await self.world.moment()
        finally:
            self.n_running -= 1
        return self.model

    async def ended(self) -> None:
        await self.gone.wait()

    async def stop(self) -> None:
        if self.gone.is_set():
            return
        await self.world.moment()
        if not self.world.is_closing:
            assert self.n_running == 0, "stopped while it answers"
        self.world.held.pop(self.model, None)
        self.gone.set()

    def die(self) -> None:
        self.has_died = True
        self.world.held.pop(self.model, None)
        self.gone.set()


class World:
    """Starts workers, and has memory for so many."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.held: dict[str, int] = {}
        self.n_loads: dict[str, int] = {}
        self.is_closing = False

    async def moment(self) -> None:
        await asyncio.sleep(self.rng.choice([0, 0, 0.001, 0.003]))

    async def start(self, model: str) -> FakeWorker:
        assert model not in self.held, "loaded twice"
        self.held[model] = _SIZES[model]
        assert sum(self.held.values()) <= _ROOM, "more than there is"
        self.n_loads[model] = self.n_loads.get(model, 0) + 1
        try:
            await self.moment()
            if model == "broken":
                raise EngineError("it is damaged")
        except BaseException:
            del self.held[model]
            raise
        return FakeWorker(self, model)


def _node(world: World, limits: Limits | None = None) -> Node[FakeWorker]:
    def fits(model: str, others: frozenset[str]) -> bool:
        return _SIZES[model] + sum(_SIZES[other] for other in others) <= _ROOM

    scheduler = Scheduler([Instance(name, size) for name, size in _SIZES.items()], fits, limits)
    return Node(scheduler, world, asyncio.get_running_loop().time)


def _run(work: Callable[[Node[FakeWorker], World], Awaitable[Any]], seed: int = 0, **limits: Any) -> Any:
    async def main() -> Any:
        world = World(seed)
        node = _node(world, Limits(**limits) if limits else None)
        node.start()
        try:
            return await asyncio.wait_for(work(node, world), 20)
        finally:
            world.is_closing = True
            await node.close()
            assert not world.held, "workers are left"

    return asyncio.run(main())


async def _ask(node: Node[FakeWorker], model: str) -> str:
    async with node.turn(model) as worker:
        return await worker.answer()


def test_a_turn_loads_the_model_once() -> None:
    async def work(node: Node[FakeWorker], world: World) -> None:
        assert await asyncio.gather(*(_ask(node, "a") for _ in range(20))) == ["a"] * 20
        assert world.n_loads == {"a": 1}

    _run(work)


@pytest.mark.parametrize("seed", range(50))
def test_everybody_is_answered_in_the_end(seed: int) -> None:
    """Models that do not fit beside each other, clients that leave, workers that die."""

    async def client(node: Node[FakeWorker], world: World, number: int) -> str:
        rng = random.Random(seed * 1000 + number)
        await asyncio.sleep(rng.random() * 0.02)
        model = rng.choice(["a", "b", "c"])
        try:
            answer = await asyncio.wait_for(_ask(node, model), rng.choice([0.002, 60]))
        except TimeoutError:
            return "left"
        except EngineError:
            return "broken"
        assert answer == model
        if rng.random() < 0.1 and (worker := node.worker(model)) is not None and worker.n_running == 0:
            worker.die()
        return "answered"

    async def work(node: Node[FakeWorker], world: World) -> None:
        ends = await asyncio.gather(*(client(node, world, number) for number in range(30)))
        assert ends.count("answered") > 0

    _run(work, seed, patience_s=0.01)


def test_who_cannot_be_served_is_told_why() -> None:
    async def work(node: Node[FakeWorker], world: World) -> None:
        with pytest.raises(RefusedError, match="it is damaged"):
            await _ask(node, "broken")
        with pytest.raises(RefusedError, match="it does not fit") as error:
            await _ask(node, "huge")
        assert (error.value.status, error.value.retry_after_s) == (507, None)
        with pytest.raises(KeyError):
            await _ask(node, "unknown")

    _run(work)


def test_a_full_queue_says_when_to_come_again() -> None:
    async def work(node: Node[FakeWorker], world: World) -> None:
        ends = await asyncio.gather(*(_ask(node, "a") for _ in range(5)), return_exceptions=True)
        refused = [end for end in ends if isinstance(end, RefusedError)]
        assert len(refused) == 2
        assert [end.retry_after_s for end in refused] == [9, 9]

    _run(work, most_waiting=3, retry_after_s=9)


def test_changes_can_be_watched() -> None:
    async def work(node: Node[FakeWorker], world: World) -> None:
        async with node.watch() as changes:
            node.load("a")
            seen = [await changes.get() for _ in range(2)]
            node.unload("a")
            seen += [await changes.get() for _ in range(2)]
        assert [change.state for change in seen] == [
            State.LOADING, State.READY, State.UNLOADING, State.ABSENT,
        ]  # fmt: skip
        async with node.watch() as changes:
            node.load("broken")
            assert (await changes.get()).state is State.LOADING
            failed = await changes.get()
        assert (failed.state, failed.failure) == (State.ABSENT, "it is damaged")

    _run(work)


def test_closing_refuses_who_waits() -> None:
    async def main() -> None:
        world = World()
        node = _node(world)
        node.start()
        waiting = asyncio.ensure_future(_ask(node, "a"))
        await asyncio.sleep(0)
        world.is_closing = True
        await node.close()
        with pytest.raises(RefusedError, match="shutting down"):
            await waiting
        with pytest.raises(RefusedError, match="shutting down"):
            await _ask(node, "a")

    asyncio.run(main())
