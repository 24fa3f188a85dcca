"""The owner loop of a node: the scheduler's effects carried out, what comes of them told back.

Owns every worker and who has a turn with it. Runs in one asyncio loop and is used from it only; workers are
started and stopped in tasks of their own. Leaves deciding to ``scheduler`` and starting to ``Workers``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from guanaco.errors import GuanacoError
from guanaco.node.events import (
    Asked,
    Cancel,
    Effect,
    Ended,
    Event,
    Finished,
    Forward,
    Left,
    Load,
    LoadAsked,
    Loaded,
    LoadFailed,
    Refuse,
    Ticked,
    Unload,
    UnloadAsked,
)
from guanaco.node.instance import State
from guanaco.node.scheduler import Scheduler

_TICK_S = 0.5


class Worker(Protocol):
    """A loaded model."""

    async def ended(self) -> None:
        """Returns when it is gone, however that came, and its memory is back."""

    async def stop(self) -> None:
        """Ends it; may be called when it has ended."""


W = TypeVar("W", bound=Worker)
W_co = TypeVar("W_co", bound=Worker, covariant=True)


class Workers(Protocol[W_co]):
    async def start(self, model: str) -> W_co:
        """Returns when the model is ready. Raises GuanacoError when it will not be.

        Then, and when it is cancelled, nothing is left behind.
        """


class RefusedError(Exception):
    """The node cannot serve this request now, or ever."""

    def __init__(self, refused: Refuse) -> None:
        super().__init__(refused.reason)
        self.status = refused.status
        self.retry_after_s = refused.retry_after_s


@dataclass(frozen=True)
class Change:
    """A model has come into another state."""

    model: str
    state: State
    failure: str | None


class Node(Generic[W]):
    """Between ``start`` and ``close``; ``clock`` gives seconds and never goes back."""

    def __init__(self, scheduler: Scheduler, workers: Workers[W], clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._clock = clock
        self._loaded: dict[str, W] = {}
        self._turns: dict[str, asyncio.Future[W]] = {}  # of requests that wait
        self._requests = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Queue[Change]] = set()
        self._states = dict.fromkeys(scheduler.instances, State.ABSENT)
        self._is_closing = False

    def start(self) -> None:
        self._run(self._tick())

    async def close(self) -> None:
        """Refuses who waits, ends every worker and waits until all are gone."""
        self._is_closing = True
        for request, turn in list(self._turns.items()):
            if not turn.done():
                turn.set_exception(RefusedError(Refuse(request, 503, "the node is shutting down")))
        # First what is being loaded: a load that ends meanwhile would be cut off while it is taken back.
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in list(self._loaded.values()):
            await worker.stop()

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[W]:
        """A turn with the model's worker, loaded for it if need be.

        Raises RefusedError, and KeyError for a model that is not in the registry. Who is cancelled while
        waiting, or in the turn, has left.
        """
        if self._is_closing:
            raise RefusedError(Refuse("", 503, "the node is shutting down"))
        request = str(next(self._requests))
        waits: asyncio.Future[W] = asyncio.get_running_loop().create_future()
        self._turns[request] = waits
        try:
            self._tell(Asked(request, model, self._clock()))
            worker = await waits
        except BaseException:
            # Given at the very moment in which it was cancelled: the turn is over before it began.
            has_turn = waits.done() and not waits.cancelled() and waits.exception() is None
            self._turns.pop(request, None)
            self._tell((Finished if has_turn else Left)(request, self._clock()))
            raise
        del self._turns[request]
        try:
            yield worker
        finally:
            self._tell(Finished(request, self._clock()))

    def load(self, model: str) -> None:
        """Wants the model to be ready. Raises KeyError for one that is not in the registry."""
        self._tell(LoadAsked(model, self._clock()))

    def unload(self, model: str) -> None:
        """Wants the model gone when nothing of it runs. Raises KeyError as ``load`` does."""
        self._tell(UnloadAsked(model, self._clock()))

    def worker(self, model: str) -> W | None:
        return self._loaded.get(model)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[asyncio.Queue[Change]]:
        """Every change of a state from now on."""
        changes: asyncio.Queue[Change] = asyncio.Queue()
        self._watchers.add(changes)
        try:
            yield changes
        finally:
            self._watchers.discard(changes)

    def _tell(self, event: Event) -> None:
        effects = self._scheduler.handle(event)
        if self._is_closing:
            return
        for effect in effects:
            self._carry_out(effect)
        for name, instance in self._scheduler.instances.items():
            if instance.state is not self._states[name]:
                self._states[name] = instance.state
                for changes in self._watchers:
                    changes.put_nowait(Change(name, instance.state, instance.failure))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Load(model):
                self._run(self._load(model))
            case Unload(model):
                self._run(self._loaded[model].stop())
            case Forward(request, model):
                turn = self._turns[request]
                if not turn.done():  # else it was cancelled, and is about to say so
                    turn.set_result(self._loaded[model])
            case Refuse(request):
                turn = self._turns[request]
                if not turn.done():
                    turn.set_exception(RefusedError(effect))
            case Cancel(request):
                # Forwarded when it had been cancelled already: it never began.
                self._tell(Finished(request, self._clock()))

    async def _load(self, model: str) -> None:
        try:
            worker = await self._workers.start(model)
        except Exception as problem:  # noqa: BLE001 - else it would load for ever
            reason = problem.message if isinstance(problem, GuanacoError) else repr(problem)
            self._tell(LoadFailed(model, reason, self._clock()))
            return
        if self._is_closing:
            await worker.stop()
            return
        self._loaded[model] = worker
        self._run(self._look_after(model, worker))
        self._tell(Loaded(model, self._clock()))

    async def _look_after(self, model: str, worker: W) -> None:
        await worker.ended()
        del self._loaded[model]
        self._tell(Ended(model, self._clock()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._tell(Ticked(self._clock()))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
