"""The spin of the engine's threads is a time, whatever the processor's loop costs."""

from __future__ import annotations

import pytest

from guanaco.engine.spin import BOUND_SPIN_US, SPIN_US, count_for, spin_count


@pytest.mark.parametrize(("turn_ps", "count"), [(26_600, 6579), (55_000, 3182), (10_000, 17_500)])
def test_the_count_makes_the_same_time(turn_ps: int, count: int) -> None:
    assert count_for(turn_ps, SPIN_US) == count
    assert abs(count * turn_ps / 1e6 - SPIN_US) < 0.1


@pytest.mark.parametrize(("turn_ps", "count"), [(0, 60_000), (1, 60_000), (10**9, 300)])
def test_a_probe_that_went_wrong_stays_within_bounds(turn_ps: int, count: int) -> None:
    assert count_for(turn_ps, SPIN_US) == count


@pytest.mark.parametrize("is_bound", [False, True])
def test_the_probe_measures_this_processor(is_bound: bool) -> None:
    assert 300 <= spin_count(is_bound=is_bound) <= 60_000
    assert spin_count(is_bound=is_bound) == spin_count(is_bound=is_bound)  # every worker spins alike


def test_bound_threads_spin_longer() -> None:
    assert spin_count(is_bound=True) == pytest.approx(
        spin_count(is_bound=False) * BOUND_SPIN_US / SPIN_US, rel=0.01
    )
