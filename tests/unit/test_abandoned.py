"""The watch over what is computed for clients that have left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from guanaco.server import abandoned
from guanaco.server.abandoned import Abandoned


class Worker:
    """Graphs that run, and what was given up."""

    def __init__(self) -> None:
        self.running = 0
        self.given_up: list[int] = []
        self.watch = Abandoned(lambda: self.running, self._give_up)

    def _give_up(self, number: int) -> None:
        self.given_up.append(number)
        if self.running == number:
            self.running = 0

    def ask(self, answer_s: float = 10.0) -> asyncio.Task[float]:
        """A request; when it was passed on, on the loop's clock."""

        async def request() -> float:
            async with self.watch.passed_on():
                began_s = asyncio.get_running_loop().time()
                await asyncio.sleep(answer_s)
            return began_s

        return asyncio.create_task(request())


async def leave(client: asyncio.Task[float]) -> None:
    client.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await client


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PATIENCE", 0.1), ("QUIET", 0.05), ("WATCH", 0.6), ("STEP", 0.005)):
        monkeypatch.setattr(abandoned, f"_{name}_S", value)


def watched(scenario: Callable[[Worker], Coroutine[Any, Any, None]]) -> list[int]:
    """The graphs that were given up."""

    async def run() -> list[int]:
        worker = Worker()
        await scenario(worker)
        await worker.watch.aclose()
        return worker.given_up

    return asyncio.run(run())


def test_a_long_graph_that_nobody_waits_for_is_given_up_once() -> None:
    async def scenario(worker: Worker) -> None:
        client = worker.ask()
        await asyncio.sleep(0)
        worker.running = 7
        await leave(client)
        await asyncio.sleep(0.3)

    assert watched(scenario) == [7]


def test_one_that_begins_after_its_client_left_too() -> None:
    async def scenario(worker: Worker) -> None:
        client = worker.ask()
        await asyncio.sleep(0)
        await leave(client)
        await asyncio.sleep(0.03)
        worker.running = 8
        await asyncio.sleep(0.3)

    assert watched(scenario) == [8]


def test_short_graphs_run_to_their_end() -> None:
    async def scenario(worker: Worker) -> None:
        client = worker.ask()
        await asyncio.sleep(0)
        await leave(client)
        for number in range(1, 15):
            worker.running = number
            await asyncio.sleep(0.02)
        worker.running = 0
        await asyncio.sleep(0.1)
        worker.running = 99  # the watch is over
        await asyncio.sleep(0.2)

    assert watched(scenario) == []


def test_a_graph_that_somebody_else_waits_for_is_left_alone() -> None:
    async def scenario(worker: Worker) -> None:
        client, other = worker.ask(), worker.ask()
        await asyncio.sleep(0)
        worker.running = 7
        await leave(client)
        await asyncio.sleep(0.3)
        assert worker.given_up == []
        await leave(other)
        await asyncio.sleep(0.2)

    assert watched(scenario) == [7]


def test_an_answer_that_came_leaves_nothing_behind() -> None:
    async def scenario(worker: Worker) -> None:
        client = worker.ask(answer_s=0.0)
        worker.running = 7
        await client
        await asyncio.sleep(0.3)

    assert watched(scenario) == []


def test_who_comes_later_is_passed_on_when_that_is_over() -> None:
    async def scenario(worker: Worker) -> None:
        client = worker.ask()
        await asyncio.sleep(0)
        worker.running = 7
        left_s = asyncio.get_running_loop().time()
        await leave(client)
        later = [worker.ask(answer_s=0.0) for _ in range(3)]
        assert all(0.14 < began_s - left_s < 0.4 for began_s in await asyncio.gather(*later))

    assert watched(scenario) == [7]


def test_the_watch_ends_by_itself() -> None:
    async def scenario(worker: Worker) -> None:
        client = worker.ask()
        await asyncio.sleep(0)
        await leave(client)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 1.0
        later = worker.ask(answer_s=0.0)
        while not later.done() and loop.time() < end_s:
            worker.running += 1  # an engine that never stops
            await asyncio.sleep(0.01)
        assert later.done()

    assert watched(scenario) == []
