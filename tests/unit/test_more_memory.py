"""The order of the ten budgets' runs, and which budget counts as slower than a smaller one."""

from __future__ import annotations

from benchmarks.more_memory import order_of, slower


def test_rounds_turn_round() -> None:
    assert order_of(3, 0) == [0, 1, 2]
    assert order_of(3, 1) == [2, 1, 0]


def test_a_larger_budget_may_be_three_percent_slower_than_any_smaller_one() -> None:
    assert slower([1.0, 2.0, 3.0]) == []
    assert slower([1.0, 0.98, 2.0]) == []
    assert slower([1.0, 0.96, 2.0]) == [(0, 1)]
    assert slower([2.0, 1.97, 1.93]) == [(0, 2)], "against any smaller one, not only its neighbour"
