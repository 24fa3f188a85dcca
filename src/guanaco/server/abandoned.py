"""What the worker computes for clients that have left: given up when it takes long.

The engine looks for clients that left between two batches, and keeps their prompt; a batch of a long prompt
takes seconds, and giving it up loses that prompt's place in the cache. Owns the watch after the last client
left, during which requests are not yet passed on: so all that is computed is for one who left. Leaves ending
a graph to the engine. A batch that others share goes on. One owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_PATIENCE_S = 0.5
_QUIET_S = 0.2  # what was being read of a request has become a graph by then
_WATCH_S = 3.0  # by then the engine has noticed too
_STEP_S = 0.02


class Abandoned:
    def __init__(self, running_graph: Callable[[], int], give_up: Callable[[int], None]) -> None:
        """``running_graph``: the number of what is computed, 0: nothing. ``give_up``: ends the one with this
        number."""
        self._running_graph = running_graph
        self._give_up = give_up
        self._passed_on = 0
        self._watch: asyncio.Task[None] | None = None

    async def over(self) -> None:
        """Waits until what others left behind is over."""
        while self._watch is not None and not self._watch.done():
            await asyncio.wait({self._watch})

    @contextlib.asynccontextmanager
    async def passed_on(self) -> AsyncIterator[None]:
        """Around a request that the worker answers. Waits until what others left behind is over."""
        await self.over()
        self._passed_on += 1
        is_cancelled = False
        try:
            yield
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            self._passed_on -= 1
            if is_cancelled and not self._passed_on:
                self._watch = asyncio.create_task(self._watch_graphs())

    async def _watch_graphs(self) -> None:
        clock = asyncio.get_running_loop().time
        number, since_s, until_s = self._running_graph(), clock(), clock() + _WATCH_S
        while clock() < until_s:
            if number and clock() - since_s >= _PATIENCE_S:
                self._give_up(number)
            if not number and clock() - since_s >= _QUIET_S:
                return
            await asyncio.sleep(_STEP_S)
            now = self._running_graph()
            if now != number:
                number, since_s = now, clock()

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
