"""Ratios of paired runs, with a bound that the noise of a drive cannot talk up. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# 95th percentile of Student's t by degrees of freedom: both ends of a two-sided 90 % interval.
_T_95 = (
    6.314,
    2.920,
    2.353,
    2.132,
    2.015,
    1.943,
    1.895,
    1.860,
    1.833,
    1.812,
    1.796,
    1.782,
    1.771,
    1.761,
    1.753,
)


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of paired ratios and the ends of its 90 % interval; bounds are None below two pairs."""

    pairs: int
    mean: float
    lower_90: float | None
    upper_90: float | None


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Ratio of the i-th numerator to the i-th denominator, averaged over their logarithms.

    Raises ValueError for unequal lengths, no pairs or values that are not above zero.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} runs are not pairs")
    if min(*numerators, *denominators) <= 0:
        raise ValueError("speeds must be above zero")
    logs = [math.log(a / b) for a, b in zip(numerators, denominators, strict=True)]
    n = len(logs)
    mean = sum(logs) / n
    if n == 1:
        return Ratio(1, math.exp(mean), None, None)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    reach = _T_95[min(n - 2, len(_T_95) - 1)] * deviation / math.sqrt(n)
    return Ratio(n, math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
