"""Who is answered in which of the engine's slots, and who waits. One owner: the event loop's thread.

Owns the queue before the slots, first come, first served, except that a long prompt which waits for another
long one does not hold up short ones while slots are free. Leaves the choice to ``slot_choice``. With one slot
there is nothing to decide, and the engine's own queue is as good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from guanaco.server.problems import RequestError
from guanaco.server.prompts import Ask
from guanaco.server.reading import MOST_WAITING
from guanaco.server.slot_choice import Slot, choose, digest_of

_POLL_S = 0.25


async def _never(index: int) -> bool:
    del index
    return False


@dataclass(eq=False)
class _Waiting:
    ask: Ask
    digest: bytes
    let_in: asyncio.Future[tuple[int, ...]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Scheduler:
    def __init__(
        self, n_slots: int = 1, n_batch: int = 1, has_begun: Callable[[int], Awaitable[bool]] = _never
    ) -> None:
        """``has_begun``: whether the engine has read the prompt in a slot and is answering."""
        self._slots = [Slot() for _ in range(n_slots)]
        self._n_batch = n_batch
        self._has_begun = has_begun
        self._waiting: deque[_Waiting] = deque()
        self._clock = 0
        self._asking: asyncio.Task[None] | None = None

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def slot(self, ask: Ask | None, content: bytes) -> AsyncIterator[int | None]:
        """Waits for a slot and holds it for the length of an ``async with`` block.

        Gives the slot to ask the engine for, or None where the engine chooses: a request of several
        sequences, one that names its slot, or only one slot. Raises RequestError when too many wait.
        """
        if ask is None or len(self._slots) == 1:
            yield None
            return
        digest = digest_of(content)
        if ask.id_slot is not None:
            held: tuple[int, ...] = (ask.id_slot % len(self._slots),)
            self._take(held, digest, is_long=ask.n_tokens > self._n_batch)
        else:
            held = await self._wait(ask, digest)
        try:
            yield held[0] if ask.id_slot is None and ask.n_sequences == 1 else None
        finally:
            self._release(held)

    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _wait(self, ask: Ask, digest: bytes) -> tuple[int, ...]:
        if len(self._waiting) >= MOST_WAITING:
            raise RequestError(503, f"{MOST_WAITING} requests are waiting already; send this one again later")
        waiting = _Waiting(ask, digest)
        self._waiting.append(waiting)
        self._admit()
        try:
            return await waiting.let_in
        except asyncio.CancelledError:
            if not waiting.let_in.cancelled():  # it was let in at the same moment
                self._release(waiting.let_in.result())
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
                self._admit()
            raise

    def _admit(self) -> None:
        for waiting in tuple(self._waiting):
            if waiting.let_in.cancelled():
                continue
            free = tuple(index for index, slot in enumerate(self._slots) if not slot.n_requests)
            n_wanted = min(waiting.ask.n_sequences, len(self._slots))
            if len(free) < n_wanted:
                return
            held, is_long = free[:n_wanted], waiting.ask.n_tokens > self._n_batch
            if n_wanted == 1:
                choice = choose(waiting.digest, waiting.ask.n_tokens, self._slots, self._n_batch)
                if choice is None:
                    self._ask_engine()
                    continue
                held, is_long = (choice.index,), choice.is_long
            self._waiting.remove(waiting)
            self._take(held, waiting.digest, is_long=is_long)
            waiting.let_in.set_result(held)

    def _take(self, held: tuple[int, ...], digest: bytes, *, is_long: bool) -> None:
        self._clock += 1
        for index in held:
            slot = self._slots[index]
            slot.n_requests += 1
            slot.is_reading |= is_long
            slot.digest = digest
            slot.used = self._clock

    def _release(self, held: tuple[int, ...]) -> None:
        for index in held:
            slot = self._slots[index]
            slot.n_requests -= 1
            slot.is_reading &= slot.n_requests > 0
        self._admit()

    def _ask_engine(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._watch_reading())

    async def _watch_reading(self) -> None:
        """While somebody waits for a long prompt to be read: whether it has been."""
        while self._waiting:
            reading = [index for index, slot in enumerate(self._slots) if slot.is_reading]
            if not reading:
                return
            for index in reading:
                used = self._slots[index].used
                if await self._has_begun(index) and self._slots[index].used == used:
                    self._slots[index].is_reading = False
            self._admit()
            await asyncio.sleep(_POLL_S)
