"""Who is answered in which of the engine's slots, and who waits. One owner: the event loop's thread.

Owns the queue before the slots, first come, first served, except that a long prompt which waits for another
long one does not hold up short ones while slots are free. Leaves the choice to ``slot_choice``. While a
request is answered whose slots the engine chooses, it chooses for all, and only their number is kept. With
one slot there is nothing to decide, and the engine's own queue is as good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from guanaco.errors import GuanacoError
from guanaco.server.problems import RequestError
from guanaco.server.prompts import Ask
from guanaco.server.reading import MOST_WAITING
from guanaco.server.slot_choice import Slot, choose

_POLL_S = 0.25
_SETTLE_S = 0.2  # what was being read of a request has reached a slot by then


@dataclass(frozen=True)
class Seen:
    """One slot as the engine shows it."""

    is_busy: bool
    has_begun: bool  # to answer: its prompt has been read


Look = Callable[[], Awaitable[Sequence[Seen] | None]]


async def _blind() -> None:
    return None


@dataclass(eq=False)
class _Held:
    """What one request holds: a slot of ours, or some that the engine chose."""

    index: int | None
    count: int
    left_s: float = 0.0


@dataclass(eq=False)
class _Waiting:
    ask: Ask
    let_in: asyncio.Future[_Held] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Scheduler:
    def __init__(self, n_slots: int = 1, n_batch: int = 1, look: Look = _blind) -> None:
        """``look``: what the engine says of its slots, between two batches; None when it says nothing."""
        self._slots = [Slot() for _ in range(n_slots)]
        self._n_batch = n_batch
        self._look = look
        self._waiting: deque[_Waiting] = deque()
        self._chosen_by_engine = 0  # slots
        self._leaving: list[_Held] = []  # their clients left; the engine may not have noticed
        self._clock = 0
        self._watch: asyncio.Task[None] | None = None
        self._closed: GuanacoError | None = None

    @property
    def n_slots(self) -> int:
        return len(self._slots)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def conversation(self, index: int) -> bytes:
        """The digest of what was asked in this slot last; empty when not known."""
        return self._slots[index].digest

    def stamp(self, index: int) -> int:
        """Changes with every request that gets this slot."""
        return self._slots[index].used

    def remember(self, index: int, digest: bytes) -> None:
        """What is in this slot now, unless a request has it already."""
        if not self._slots[index].is_taken:
            self._slots[index].digest = digest

    @contextlib.asynccontextmanager
    async def slot(self, ask: Ask | None) -> AsyncIterator[int | None]:
        """Waits for a slot and holds it for the length of an ``async with`` block.

        Gives the slot to ask the engine for, or None where the engine chooses. Raises RequestError when too
        many wait, and what ``close`` was called with.
        """
        if ask is None or self.n_slots == 1 or ask.n_answers > self.n_slots:
            yield None  # the last are refused by the engine
            return
        held = await self._wait(ask)
        try:
            yield held.index
        except asyncio.CancelledError:
            self._leave(held)
            raise
        except BaseException:
            self._release(held)
            raise
        else:
            self._release(held)

    def close(self, problem: GuanacoError) -> None:
        """Nobody is let in any more; who waits gets ``problem``."""
        self._closed = self._closed or problem
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.let_in.done():
                waiting.let_in.set_exception(self._closed)

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _wait(self, ask: Ask) -> _Held:
        if self._closed is not None:
            raise self._closed
        if len(self._waiting) >= MOST_WAITING:
            raise RequestError(503, f"{MOST_WAITING} requests are waiting already; send this one again later")
        waiting = _Waiting(ask)
        self._waiting.append(waiting)
        self._admit()
        try:
            return await waiting.let_in
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._admit()
            elif not waiting.let_in.cancelled() and waiting.let_in.exception() is None:
                self._release(waiting.let_in.result())  # it was let in at the same moment
            raise

    def _n_free(self) -> int:
        return sum(not slot.is_taken for slot in self._slots) - self._chosen_by_engine

    def _admit(self) -> None:
        for waiting in tuple(self._waiting):
            ask = waiting.ask
            if waiting.let_in.done():
                continue
            n_wanted = min(ask.n_sequences, self.n_slots)
            if self._n_free() < n_wanted:
                return
            if ask.engine_chooses or self._chosen_by_engine:
                held = _Held(None, n_wanted)
                self._chosen_by_engine += n_wanted
                for slot in self._slots:
                    slot.digest = slot.digest if slot.is_taken else b""  # it may get any of these
            else:
                choice = choose(ask.digest, ask.n_tokens, self._slots, self._n_batch)
                if choice is None:
                    self._watch_engine()
                    continue
                held = _Held(choice.index, 1)
                self._take(self._slots[choice.index], ask.digest, is_long=choice.is_long)
            self._waiting.remove(waiting)
            waiting.let_in.set_result(held)

    def _take(self, slot: Slot, digest: bytes, *, is_long: bool) -> None:
        self._clock += 1
        slot.is_taken = True
        slot.is_reading = is_long
        slot.digest, slot.used = digest, self._clock
        slot.taken_s = asyncio.get_running_loop().time()

    def _release(self, held: _Held) -> None:
        if held.index is None:
            self._chosen_by_engine -= held.count
        else:
            self._slots[held.index].is_taken = False
            self._slots[held.index].is_reading = False
        self._admit()

    def _leave(self, held: _Held) -> None:
        """The engine ends what nobody waits for between two batches, or later; until then it is busy."""
        held.left_s = asyncio.get_running_loop().time()
        if held.index is not None:
            self._slots[held.index].digest = b""  # how much was read is not known
        self._leaving.append(held)
        self._watch_engine()

    def _watch_engine(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_slots())

    async def _watch_slots(self) -> None:
        """While a slot is being left, or a long prompt waits until the one before is read."""
        clock = asyncio.get_running_loop().time
        while self._leaving or self._waiting:
            looked_s, seen = clock(), await self._look()
            for held in tuple(self._leaving):
                if seen is None or (looked_s - held.left_s >= _SETTLE_S and self._is_over(held, seen)):
                    self._leaving.remove(held)
                    self._release(held)
            for slot, state in zip(self._slots, seen or (), strict=False):
                if slot.is_reading and state.has_begun and slot.taken_s < looked_s:
                    slot.is_reading = False
            self._admit()
            if not self._leaving and not any(slot.is_reading for slot in self._slots):
                return
            await asyncio.sleep(_POLL_S)

    def _is_over(self, held: _Held, seen: Sequence[Seen]) -> bool:
        if held.index is not None:
            return not seen[held.index].is_busy
        n_stay = sum(slot.is_taken for slot in self._slots) + self._chosen_by_engine
        n_stay -= sum(other.count for other in self._leaving)
        return sum(state.is_busy for state in seen) <= n_stay
