"""``lfu``: the expert that was used least often leaves; among equals the least recently used.

Counts outlive eviction. It never forgets, so it follows a change of topic slowly.
"""

from __future__ import annotations

from guanaco.cache.policy import PolicyShape, Selection
from guanaco.cache.ranking import RankedPolicy


class Lfu(RankedPolicy):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__(shape)
        self._counts = [[0] * n for n in shape.n_expert]

    def learn(self, selection: Selection) -> None:
        for expert in selection.demand:
            self._counts[selection.group][expert] += 1

    def rank(self, group: int, expert: int) -> tuple[float, ...]:
        return (self._counts[group][expert],)
