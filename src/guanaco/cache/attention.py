"""Attention over the recent past: which past tokens the current one resembles, and what they used next.

Owns the routing of the last tokens and the votes drawn from it. Sees selections only: no hidden state, no
weights of the model. Leaves what a vote is worth to ``policies.recall``.
"""

from __future__ import annotations

import math
from collections import deque

from guanaco.cache.policy import PolicyShape, Selection

N_TOKENS = 256  # remembered, the current one among them
_CARRIED = 0.6  # of a resemblance, to the token after
_FADING = 0.9  # of a resemblance, a layer
_NEGLIGIBLE = 1e-30  # below it a resemblance is none: denormal numbers are slow
_N_KEPT = 16
_SHARPNESS = 1.3
_SMEAR = 0.4  # of a weight, to the token after


class RoutingAttention:
    """Who was used when, and how much the current token resembles each past one."""

    def __init__(self, shape: PolicyShape) -> None:
        self._top_k = list(shape.top_k)  # 0 until it is known
        self._uses: list[list[deque[int]]] = [[deque() for _ in range(n)] for n in shape.n_expert]  # tokens
        self._token = -1
        self._n_started = 1  # tokens that started with the current one
        self._group = -1
        self._first = 0  # the oldest token remembered
        self._resemblance: list[float] = []  # of the tokens from the first to the one before this
        self._weights: list[float] | None = None  # of the same tokens, once asked for

    def learn(self, selection: Selection, token: int) -> None:
        """Compares the selection with what past tokens used in its layer, then remembers it.

        ``token``: the current one, the last of a batch.
        """
        if token != self._token:
            self._n_started = token - self._token
        while self._token < token:
            self._start_token(self._token + 1)
        group, used = selection.group, selection.tokens[-self._n_started :]
        demand = used[-1]
        if not self._top_k[group] and (selection.rows or not selection.n_transient):
            self._top_k[group] = len(demand)
        k = self._top_k[group] or len(demand)
        for index, experts in enumerate(used[:-1]):
            for expert in experts:
                self._uses[group][expert].append(token - len(used) + 1 + index)
        shared = [0] * len(self._resemblance)
        for expert in demand:
            for past in self._recent_uses(group, expert):
                shared[past - self._first] += 1
            self._uses[group][expert].append(token)
        for index, before in enumerate(self._resemblance):
            value = _FADING * before
            if shared[index]:
                value += shared[index] / k
            self._resemblance[index] = value if value >= _NEGLIGIBLE else 0.0
        self._group = group
        self._weights = None

    def vote(self, group: int, expert: int) -> float:
        """The weight of the tokens that used the expert after ones like this: 0 to 1.

        In a layer still to come a past token says what it used itself, in one served already what the token
        after it used.
        """
        if self._weights is None:
            self._weights = self._weigh()
        first = self._first + (0 if group > self._group else 1)
        total = 0.0
        for token in self._recent_uses(group, expert):
            if token >= first:
                total += self._weights[token - first]
        return total

    def _recent_uses(self, group: int, expert: int) -> deque[int]:
        uses = self._uses[group][expert]
        while uses and uses[0] < self._first:
            uses.popleft()
        return uses

    def _start_token(self, token: int) -> None:
        before, first_before = self._resemblance, self._first
        self._token, self._first = token, max(0, token - N_TOKENS + 1)
        self._resemblance = []
        for past in range(self._first, token):
            index = past - 1 - first_before
            value = _CARRIED * before[index] if index >= 0 else 0.0
            self._resemblance.append(value if value >= _NEGLIGIBLE else 0.0)

    def _weigh(self) -> list[float]:
        """Of the past tokens, oldest first; they sum to one."""
        if not self._resemblance:
            return []
        best = sorted(enumerate(self._resemblance), key=lambda item: (-item[1], -item[0]))[:_N_KEPT]
        top = best[0][1]
        kept = {index: math.exp(_SHARPNESS * (value - top)) for index, value in sorted(best)}
        total = 0.0  # one by one: sum() rounds otherwise from Python 3.12 on
        for share in kept.values():
            total += share
        weights = []
        weight = total_weight = 0.0
        for index in range(len(self._resemblance)):
            weight = kept.get(index, 0.0) / total + _SMEAR * weight
            total_weight += weight
            weights.append(weight)
        return [weight / total_weight for weight in weights]
