"""The spin of the engine's threads is a time, whatever the processor's loop costs."""

from __future__ import annotations

import pytest

from guanaco.engine.spin import SPIN_US, count_for, spin_count


@pytest.mark.parametrize(("turn_ps", "count"), [(26_600, 6579), (55_000, 3182), (10_000, 17_500)])
def test_the_count_makes_the_same_time(turn_ps: int, count: int) -> None:
    assert count_for(turn_ps) == count
    assert abs(count * turn_ps / 1e6 - SPIN_US) < 0.1


@pytest.mark.parametrize(("turn_ps", "count"), [(0, 20_000), (1, 20_000), (10**9, 300)])
def test_a_probe_that_went_wrong_stays_within_bounds(turn_ps: int, count: int) -> None:
    assert count_for(turn_ps) == count


def test_the_probe_measures_this_processor() -> None:
    assert 300 <= spin_count() <= 20_000
    assert spin_count() == spin_count()  # once a process: every worker spins alike
