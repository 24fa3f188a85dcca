"""``lru``: the expert that was not used for longest leaves.

Exactly useless below one token cycle: each layer's experts leave just before they are asked for again.
"""

from __future__ import annotations

from guanaco.cache.policy import Selection
from guanaco.cache.ranking import RankedPolicy


class Lru(RankedPolicy):
    def learn(self, selection: Selection) -> None:
        """The stamps are all it needs."""

    def rank(self, group: int, expert: int) -> tuple[float, ...]:
        return (self.stamps[group][expert],)
