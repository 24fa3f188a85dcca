"""Ratios of paired runs against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from guanaco.bench.ratio import paired_ratio


def test_three_pairs() -> None:
    # Ratios 2, 2 and 16: their logarithms are 1, 1 and 4 times ln 2, mean 2 and deviation sqrt(3) of it. With
    # two degrees of freedom t is 2.920, so the bound lies 2.920 * sqrt(3) / sqrt(3) = 2.920 times ln 2 away.
    ratio = paired_ratio([4.0, 6.0, 16.0], [2.0, 3.0, 1.0])
    assert ratio.pairs == 3
    assert ratio.mean == pytest.approx(4.0)
    assert ratio.lower_90 == pytest.approx(2 ** (2 - 2.920))
    assert ratio.upper_90 == pytest.approx(2 ** (2 + 2.920))


def test_two_pairs() -> None:
    # Ratios 1 and 4: mean 2, deviation sqrt(2) times ln 2, over sqrt(2), times 6.314.
    ratio = paired_ratio([3.0, 4.0], [3.0, 1.0])
    assert ratio.mean == pytest.approx(2.0)
    assert ratio.lower_90 == pytest.approx(2 ** (1 - 6.314))
    assert ratio.upper_90 == pytest.approx(2 ** (1 + 6.314))


def test_equal_ratios_have_no_width() -> None:
    ratio = paired_ratio([2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert ratio.pairs == 7
    for value in (ratio.mean, ratio.lower_90, ratio.upper_90):
        assert value == pytest.approx(2.0)


def test_one_pair_has_no_bounds() -> None:
    ratio = paired_ratio([3.0], [2.0])
    assert ratio.mean == pytest.approx(1.5)
    assert (ratio.pairs, ratio.lower_90, ratio.upper_90) == (1, None, None)


def test_it_is_the_geometric_mean() -> None:
    # Twice as fast and half as fast cancel out; an arithmetic mean would say 1.25.
    assert paired_ratio([2.0, 1.0], [1.0, 2.0]).mean == pytest.approx(1.0)


def test_many_pairs_use_the_last_value_of_the_table() -> None:
    n = 40
    ratio = paired_ratio([math.e if i % 2 else 1.0 for i in range(n)], [1.0] * n)
    deviation = math.sqrt(n * 0.25 / (n - 1))
    assert ratio.lower_90 == pytest.approx(math.exp(0.5 - 1.753 * deviation / math.sqrt(n)))


@pytest.mark.parametrize(
    ("numerators", "denominators", "words"),
    [
        ([], [], "0 and 0 runs are not pairs"),
        ([1.0, 2.0], [1.0], "2 and 1 runs are not pairs"),
        ([1.0, 0.0], [1.0, 1.0], "above zero"),
        ([1.0], [-1.0], "above zero"),
    ],
)
def test_what_is_no_ratio(numerators: list[float], denominators: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_ratio(numerators, denominators)
