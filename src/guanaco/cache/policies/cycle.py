"""``cycle``: the expert whose next use is expected last leaves, by two use rates and the order of layers.

A decoder walks its layers in a ring. An expert that is used with probability p a token is expected after
the way to its layer, in rings, plus 1/p rings more.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.cache.policy import PolicyShape, Selection
from guanaco.cache.ranking import RankedPolicy
from guanaco.cache.rates import UseRates

_QUICK_WEIGHT, _SLOW_WEIGHT, _PRIOR = 0.25, 0.75, 1e-5


class Cycle(RankedPolicy):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__(shape)
        self._rates = UseRates(shape.n_expert)

    def prior(self, group: int, use: Sequence[float]) -> None:
        self._rates.prior(group, use)

    def learn(self, selection: Selection) -> None:
        self._rates.learn(selection)

    def rank(self, group: int, expert: int) -> tuple[float, ...]:
        quick, slow = self._rates.quick[group][expert], self._rates.slow[group][expert]
        probability = _QUICK_WEIGHT * quick + _SLOW_WEIGHT * slow + _PRIOR
        return (-(ring_distance(self, group) + 1.0 / probability),)


def ring_distance(policy: RankedPolicy, group: int) -> float:
    """From the layer being served forward to ``group``, as a share of the ring."""
    n = policy.shape.n_groups
    return ((group - policy.group - 1) % n) / n
