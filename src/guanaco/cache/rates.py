"""How often each expert was used lately: two decayed rates, a quick one and a slow one.

Owns the rates. Leaves what they mean to the policies.
"""

from __future__ import annotations

from collections.abc import Sequence

from guanaco.cache.policy import Selection

_QUICK, _SLOW = 0.5, 0.97
_QUICK_GAIN, _SLOW_GAIN = 0.5, 0.03


class UseRates:
    """Per expert, at each selection of its layer: ``rate <- decay * rate + (1 - decay) * [used]``."""

    def __init__(self, n_expert: tuple[int, ...]) -> None:
        self.quick = [[0.0] * n for n in n_expert]
        self.slow = [[0.0] * n for n in n_expert]

    def prior(self, group: int, use: Sequence[float]) -> None:
        """Where the slow rates start."""
        self.slow[group] = list(use)

    def learn(self, selection: Selection) -> None:
        for used in selection.tokens:
            self._used(selection.group, used)

    def _used(self, group: int, experts: Sequence[int]) -> None:
        quick = [_QUICK * rate for rate in self.quick[group]]
        slow = [_SLOW * rate for rate in self.slow[group]]
        for expert in experts:
            quick[expert] += _QUICK_GAIN
            slow[expert] += _SLOW_GAIN
        self.quick[group], self.slow[group] = quick, slow
