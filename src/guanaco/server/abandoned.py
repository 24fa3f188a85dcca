"""What the worker computes for clients that have left: given up when nobody else waits and it takes long.

The engine looks for clients that left between two batches, and keeps their prompt; a batch of a long prompt
takes seconds, and giving it up loses that prompt's place in the cache. Owns the watch after a client left.
Leaves ending a graph to the engine. A batch that others share goes on. One owner: the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_PATIENCE_S = 0.5
_WATCH_S = 2.0  # by then the engine has noticed too
_STEP_S = 0.05


class Abandoned:
    def __init__(
        self,
        is_awaited: Callable[[], bool],
        running_graph: Callable[[], int],
        give_up: Callable[[int], None],
    ) -> None:
        """``is_awaited``: somebody waits for an answer. ``running_graph``: the number of what is computed, 0:
        nothing. ``give_up``: ends the one with this number."""
        self._is_awaited = is_awaited
        self._running_graph = running_graph
        self._give_up = give_up
        self._until_s = 0.0
        self._watch: asyncio.Task[None] | None = None

    def client_left(self) -> None:
        """Its request is off the books already."""
        if self._is_awaited():
            return
        self._until_s = asyncio.get_running_loop().time() + _WATCH_S
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_graphs(self._running_graph()))

    async def _watch_graphs(self, number: int) -> None:
        # What was begun while nobody waited is for one who left: whoever comes later is not in it, but may
        # be in the next.
        clock = asyncio.get_running_loop().time
        since_s = clock()
        while clock() < self._until_s:
            if number and clock() - since_s >= _PATIENCE_S:
                self._give_up(number)
            await asyncio.sleep(_STEP_S)
            now = self._running_graph()
            if now == number:
                continue
            if self._is_awaited():
                return
            number, since_s = now, clock()

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
