"""The turns of the ten budgets, what their speeds are set against, and which is slower than a smaller one."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.more_memory import by_budget, order_of, refuse_too_little, report, set_against_turn, slower

from guanaco.errors import UsageError
from guanaco.units import GIB


def test_turns_go_up_and_down() -> None:
    assert order_of(3, 0) == [0, 1, 2]
    assert order_of(3, 1) == [2, 1, 0]


def test_a_larger_budget_may_be_three_percent_slower_than_any_smaller_one() -> None:
    assert slower([1.0, 2.0, 3.0]) == []
    assert slower([1.0, 0.98, 2.0]) == []
    assert slower([1.0, 0.96, 2.0]) == [(0, 1)]
    assert slower([2.0, 1.97, 1.93]) == [(0, 2)], "against any smaller one, not only its neighbour"


def _rows(*turns: tuple[float, float, float]) -> list[dict[str, Any]]:
    rows = []
    for speeds in turns:
        taken = {index: {"decode_tps": tps, "hit_rate": 0.5} for index, tps in enumerate(speeds)}
        against = set_against_turn(taken)
        rows += [{"budget": f"{50 * index}%", **row} for index, row in against.items()]
    return rows


def test_a_speed_is_a_share_of_the_middle_one_of_its_turn() -> None:
    assert [row["of_turn"] for row in _rows((1.0, 2.0, 3.0), (2.0, 4.0, 6.0))] == [0.5, 1.0, 1.5] * 2


def test_the_verdict_is_of_turns_not_of_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    # Halfway the machine became twice as slow, for all of them.
    rows = _rows((8.0, 8.1, 8.2), (8.0, 8.1, 8.2), (4.0, 4.1, 4.2))
    assert list(by_budget(rows)) == ["0%", "50%", "100%"]
    assert report(rows) == 0
    printed = capsys.readouterr().out
    assert "0%: 0.988" in printed
    assert printed.endswith("holds\n")
    assert report(_rows((8.0, 8.1, 7.5), (8.0, 8.1, 7.5), (4.0, 4.1, 9.0))) == 1, "the median turn"
    printed = capsys.readouterr().out
    assert "100% decodes at 0.926 of 50%'s speed" in printed
    assert printed.endswith("FAILS\n")


def test_too_little_memory_is_refused_with_both_numbers() -> None:
    refuse_too_little(2 * GIB, None)
    refuse_too_little(2 * GIB, 2 * GIB)
    with pytest.raises(UsageError, match=r"need 18.00 GiB, and 17.00 GiB are available; measure a smaller"):
        refuse_too_little(18 * GIB, 17 * GIB)
