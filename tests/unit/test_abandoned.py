"""The watch over what is computed for clients that have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from guanaco.server import abandoned
from guanaco.server.abandoned import Abandoned


class Worker:
    """Graphs that run, and what was given up."""

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self.given_up: list[int] = []

    def give_up(self, number: int) -> None:
        self.given_up.append(number)
        if self.running == number:
            self.running = 0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(abandoned, "_WATCH_S", 0.4)
    monkeypatch.setattr(abandoned, "_STEP_S", 0.005)


def watched(scenario: Callable[[Worker, Abandoned], Coroutine[Any, Any, None]]) -> Worker:
    worker = Worker()

    async def run() -> None:
        watch = Abandoned(lambda: worker.waiting > 0, lambda: worker.running, worker.give_up)
        await scenario(worker, watch)
        await watch.aclose()

    asyncio.run(run())
    return worker


def test_a_long_graph_that_nobody_waits_for_is_given_up_once() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        worker.running = 7
        watch.client_left()
        await asyncio.sleep(0.3)

    assert watched(scenario).given_up == [7]


def test_short_graphs_run_to_their_end() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        watch.client_left()
        for number in range(1, 20):
            worker.running = number
            await asyncio.sleep(0.015)

    assert watched(scenario).given_up == []


def test_a_graph_that_somebody_waits_for_is_left_alone() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        worker.running, worker.waiting = 7, 1
        watch.client_left()
        await asyncio.sleep(0.2)

    assert watched(scenario).given_up == []


def test_who_comes_later_is_not_in_it() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        worker.running = 7
        watch.client_left()
        await asyncio.sleep(0.02)
        worker.waiting = 1
        await asyncio.sleep(0.06)
        worker.running = 8
        await asyncio.sleep(0.2)

    assert watched(scenario).given_up == [7]


def test_who_comes_later_may_be_in_the_next() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        worker.running = 7
        watch.client_left()
        await asyncio.sleep(0.02)
        worker.waiting, worker.running = 1, 8
        await asyncio.sleep(0.2)

    assert watched(scenario).given_up == []


def test_the_second_to_leave_is_watched_as_long() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        watch.client_left()
        await asyncio.sleep(0.35)
        watch.client_left()
        await asyncio.sleep(0.1)
        worker.running = 8
        await asyncio.sleep(0.2)

    assert watched(scenario).given_up == [8]


def test_the_watch_ends_by_itself() -> None:
    async def scenario(worker: Worker, watch: Abandoned) -> None:
        watch.client_left()
        await asyncio.sleep(0.5)
        worker.running = 9
        await asyncio.sleep(0.2)

    assert watched(scenario).given_up == []
