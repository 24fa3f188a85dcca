"""``belady``: the optimum. The expert whose next use lies furthest ahead leaves.

It is given the whole trace, so it cannot run while a model decodes and is no ``Policy``: it replays by
itself. What any policy loses to it is what is left to gain.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from guanaco.cache.policy import PolicyShape, Selection


@dataclass(frozen=True)
class Counts:
    """What a replay came to."""

    hits: int
    misses: int
    evictions: int


class Belady:
    """The fewest misses any policy can have on ``future`` with the slots of ``shape``."""

    def __init__(self, shape: PolicyShape, future: Sequence[Selection]) -> None:
        self._shape = shape
        self._future = future
        self._uses: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        for when, selection in enumerate(future):
            for expert in selection.experts:
                self._uses[selection.group, expert].append(when)

    def replay(self) -> Counts | None:
        """The counts; None when a selection has more experts than slots. Once only: it uses up its future."""
        resident: list[dict[tuple[int, int], int]] = [{} for _ in self._shape.n_slots]  # -> next use
        # Furthest next use first; an entry counts while it says the same as ``resident``.
        heaps: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in self._shape.n_slots]
        misses = evictions = total = 0
        never = len(self._future)
        for when, selection in enumerate(self._future):
            size_class = self._shape.size_class[selection.group]
            held, heap = resident[size_class], heaps[size_class]
            keys = [(selection.group, expert) for expert in selection.experts]
            if len(keys) > self._shape.n_slots[size_class]:
                return None
            total += len(keys)
            new = [key for key in keys if key not in held]
            misses += len(new)
            # Until all of it has a slot, what is being served is used next: it is not evicted.
            for key in keys:
                held[key] = when
            while len(held) > self._shape.n_slots[size_class]:
                next_use, key = heapq.heappop(heap)
                if held.get(key) == -next_use:
                    del held[key]
                    evictions += 1
            for key in keys:
                self._uses[key].popleft()
                next_use = self._uses[key][0] if self._uses[key] else never
                held[key] = next_use
                heapq.heappush(heap, (-next_use, key))
        return Counts(total - misses, misses, evictions)
