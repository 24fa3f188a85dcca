"""How much the engine may take for requests at once, beyond their bodies.

Owns that room and the order in which requests get into it: first come, first served, so that a long one is
not overtaken for ever. Refuses, with RequestError, what would never fit. One owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from guanaco.planner.plan import Plan
from guanaco.server.bodies import BodyRoom
from guanaco.server.costs import Cost
from guanaco.server.grammars import ENDLESS_BYTES
from guanaco.server.problems import RequestError
from guanaco.units import MIB, format_bytes

MOST_WAITING = 256  # each takes about 50 KiB here


class Turn:
    """What one request holds."""

    def __init__(self, room: ReadingRoom, nbytes: int) -> None:
        self._room = room
        self._held_bytes = nbytes

    def keep(self, nbytes: int) -> None:
        """Give back all but ``nbytes``."""
        spare_bytes = max(0, self._held_bytes - nbytes)
        self._held_bytes -= spare_bytes
        self._room.give_back(spare_bytes)


class ReadingRoom:
    def __init__(self, total_bytes: int = 64 * MIB) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @classmethod
    def of(cls, plan: Plan, bodies: BodyRoom) -> ReadingRoom:
        """What bodies leave of the headroom: half of it or more."""
        return cls(plan.parts.headroom_bytes - bodies.total_bytes)

    def check(self, cost: Cost) -> None:
        """Raises RequestError when there will never be room for it."""
        if cost.total_bytes > self.total_bytes:
            is_endless = cost.total_bytes >= ENDLESS_BYTES
            takes = "memory without end" if is_endless else f"{format_bytes(cost.total_bytes)} of memory"
            raise RequestError(
                413,
                f"this request would take {takes}, most of it for "
                f"{cost.largest}, and there is room for {format_bytes(self.total_bytes)}; ask for less "
                "at once, or start the server with a larger --memory",
            )

    @contextlib.asynccontextmanager
    async def turn(self, nbytes: int) -> AsyncIterator[Turn]:
        """Waits for room for ``nbytes`` and holds it for the length of an ``async with`` block."""
        await self._take(nbytes)
        turn = Turn(self, nbytes)
        try:
            yield turn
        finally:
            turn.keep(0)

    def give_back(self, nbytes: int) -> None:
        self.held_bytes -= nbytes
        self._admit()

    async def _take(self, nbytes: int) -> None:
        if len(self._waiting) >= MOST_WAITING:
            raise RequestError(503, f"{MOST_WAITING} requests are waiting already; send this one again later")
        entry = (nbytes, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self._admit()
        try:
            await entry[1]
        except asyncio.CancelledError:
            if not entry[1].cancelled():  # it was let in at the same moment
                self.give_back(nbytes)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self.held_bytes + self._waiting[0][0] <= self.total_bytes:
            nbytes, entered = self._waiting.popleft()
            if entered.cancelled():
                continue
            self.held_bytes += nbytes
            entered.set_result(None)
