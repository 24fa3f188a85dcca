"""What all policies share: who sits in which slot, when each expert was used, and picking the worst.

Owns slots, use stamps, the position in the layer cycle and the token clock. Leaves to each policy a rank:
what has the smallest leaves first. Ties go to the least recently used, then to the lowest slot.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence

from guanaco.cache.attention import N_TOKENS
from guanaco.cache.policy import PolicyShape, Selection

# A slot waiting to be reused: rank, stamp, slot, and whose rank it is.
_Candidate = tuple[tuple[float, ...], int, int, tuple[int, int]]


class RankedPolicy(ABC):
    """A policy that is a rank of experts, which may change at selections only."""

    def __init__(self, shape: PolicyShape) -> None:
        self.shape = shape
        self.group = -1  # of the last selection
        self.token = -1
        self.stamps = [[0] * n for n in shape.n_expert]  # 0: never used
        self._clock = 0
        self._slots: list[list[tuple[int, int] | None]] = [[None] * n for n in shape.n_slots]
        self._heaps: list[list[_Candidate] | None] = [None] * len(shape.n_slots)

    @abstractmethod
    def rank(self, group: int, expert: int) -> tuple[float, ...]:
        """As things stand after the last selection; the smallest leaves first."""

    @abstractmethod
    def learn(self, selection: Selection) -> None:
        """Takes in a selection; position, token and stamps are up to date already."""

    def prior(self, group: int, use: Sequence[float]) -> None:  # noqa: B027 - no duty
        """A policy without rates has no use for it."""

    def worth(self, group: int, expert: int) -> float:
        return self.rank(group, expert)[0]

    def selected(self, selection: Selection) -> None:
        if self.token < 0 or selection.group <= self.group:
            self.token += min(max(len(selection.rows), 1), N_TOKENS - 1)
        self.group = selection.group
        for expert in selection.demand:
            self._clock += 1
            self.stamps[selection.group][expert] = self._clock
        self.learn(selection)
        self._heaps = [None] * len(self._heaps)

    def placed(self, group: int, expert: int, slot: int, transient: bool) -> None:
        size_class = self.shape.size_class[group]
        self._slots[size_class][slot] = (group, expert)
        heap = self._heaps[size_class]
        if heap is not None:
            heapq.heappush(heap, self._candidate(slot, (group, expert)))

    def emptied(self, size_class: int, slot: int) -> None:
        self._slots[size_class][slot] = None

    def victim(self, size_class: int, pins: Sequence[int]) -> int | None:
        slots, heap = self._slots[size_class], self._heaps[size_class]
        if heap is None:
            heap = [self._candidate(slot, key) for slot, key in enumerate(slots) if key is not None]
            heapq.heapify(heap)
            self._heaps[size_class] = heap
        passed_over: list[_Candidate] = []
        found = None
        while heap and found is None:
            candidate = heapq.heappop(heap)
            _, _, slot, key = candidate
            if slots[slot] != key:
                continue  # given away since
            passed_over.append(candidate)  # stays a candidate: naming it does not evict it
            if not pins[slot]:
                found = slot
        for candidate in passed_over:
            heapq.heappush(heap, candidate)
        return found

    def served(self, group: int) -> None:  # noqa: B027 - no duty
        """Most policies have nothing to do here."""

    def _candidate(self, slot: int, key: tuple[int, int]) -> _Candidate:
        group, expert = key
        return self.rank(group, expert), self.stamps[group][expert], slot, key
