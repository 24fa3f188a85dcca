"""``recall``: as ``cycle``, but past tokens that were routed alike vote on what comes next.

The experts picked so far in this token resemble those of some tokens before it. What these used next is
likely to be used next again. The default.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.cache.attention import RoutingAttention
from guanaco.cache.policies.cycle import ring_distance
from guanaco.cache.policy import PolicyShape, Selection
from guanaco.cache.ranking import RankedPolicy
from guanaco.cache.rates import UseRates

_QUICK_WEIGHT, _SLOW_WEIGHT, _PRIOR = 0.25, 0.45, 1e-5
_MOST = 0.98


class Recall(RankedPolicy):
    def __init__(self, shape: PolicyShape) -> None:
        super().__init__(shape)
        self._rates = UseRates(shape.n_expert)
        self._attention = RoutingAttention(shape)

    def prior(self, group: int, use: Sequence[float]) -> None:
        self._rates.prior(group, use)

    def learn(self, selection: Selection) -> None:
        self._rates.learn(selection)
        self._attention.learn(selection, self.token)

    def rank(self, group: int, expert: int) -> tuple[float, ...]:
        quick, slow = self._rates.quick[group][expert], self._rates.slow[group][expert]
        recalled = self._attention.vote(group, expert)
        probability = min(_QUICK_WEIGHT * quick + _SLOW_WEIGHT * slow + recalled + _PRIOR, _MOST)
        return (-(ring_distance(self, group) + 1.0 / probability),)
