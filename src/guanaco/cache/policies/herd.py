"""``herd``: watch 200 router calls, then pin the experts that were used most, for good.

The rule of the original description. Each layer gets a budget of pins in proportion to how many different
experts it used while it was watched; what is not pinned leaves first, then the coldest of the pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.cache.policy import PolicyShape, Selection
from guanaco.cache.ranking import RankedPolicy

_DECAY, _GAIN = 0.95, 0.05
_NEGLIGIBLE = 1e-30  # below it heat is none: denormal numbers are slow
_WARM_UP_CALLS = 200


class Herd(RankedPolicy):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__(shape)
        self._heat = [[0.0] * n for n in shape.n_expert]
        self._n_watched = 0
        self._budgets: list[int] | None = None  # None while warming up
        self.pins: list[set[int]] = [set() for _ in shape.n_expert]

    def prior(self, group: int, use: Sequence[float]) -> None:
        """The first heat; what is pinned for good is still among what was used."""
        self._heat[group] = list(use)

    def learn(self, selection: Selection) -> None:
        if not selection.demand:
            return
        group = selection.group
        heat = [_DECAY * value if _DECAY * value >= _NEGLIGIBLE else 0.0 for value in self._heat[group]]
        for expert in selection.demand:
            heat[expert] += _GAIN
        self._heat[group] = heat
        if self._budgets is not None:
            for expert in selection.demand:
                if len(self.pins[group]) < self._budgets[group]:
                    self.pins[group].add(expert)
            return
        self._n_watched += 1
        if self._n_watched == _WARM_UP_CALLS:
            self._budgets = pin_budgets(self.shape, [self._seen(g) for g in range(self.shape.n_groups)])
            for g, budget in enumerate(self._budgets):
                self.pins[g].update(self._hottest(g, budget))

    def rank(self, group: int, expert: int) -> tuple[float, ...]:
        return (expert in self.pins[group], self._heat[group][expert])

    def worth(self, group: int, expert: int) -> float:
        return self._heat[group][expert] + (1.0 if expert in self.pins[group] else 0.0)

    def _seen(self, group: int) -> int:
        return sum(stamp > 0 for stamp in self.stamps[group])

    def _hottest(self, group: int, n: int) -> list[int]:
        seen = [expert for expert, stamp in enumerate(self.stamps[group]) if stamp > 0]
        return sorted(seen, key=lambda e: (-self._heat[group][e], -self.stamps[group][e]))[:n]


def pin_budgets(shape: PolicyShape, demand: list[int]) -> list[int]:
    """Each class's slots shared among its groups in proportion to ``demand``, by largest remainder."""
    budgets = [0] * shape.n_groups
    for size_class, n_slots in enumerate(shape.n_slots):
        groups = [g for g in range(shape.n_groups) if shape.size_class[g] == size_class]
        total = sum(demand[g] for g in groups)
        if total == 0:
            continue
        remainders = {}
        for g in groups:
            budgets[g], remainders[g] = divmod(n_slots * demand[g], total)
        left_over = n_slots - sum(budgets[g] for g in groups)
        for g in sorted(groups, key=lambda g: (-remainders[g], g))[:left_over]:
            budgets[g] += 1
    return [min(budget, n) for budget, n in zip(budgets, shape.n_expert, strict=True)]
