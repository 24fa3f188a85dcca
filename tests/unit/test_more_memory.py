"""The order of the ten budgets' loads, their turns, and which budget counts as slower than a smaller one."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.more_memory import one_turn, order_of, refuse_too_little, report, slower

from guanaco.errors import UsageError
from guanaco.units import GIB


def test_rounds_turn_round() -> None:
    assert order_of(3, 0) == [0, 1, 2]
    assert order_of(3, 1) == [2, 1, 0]


def test_a_larger_budget_may_be_three_percent_slower_than_any_smaller_one() -> None:
    assert slower([1.0, 2.0, 3.0]) == []
    assert slower([1.0, 0.98, 2.0]) == []
    assert slower([1.0, 0.96, 2.0]) == [(0, 1)]
    assert slower([2.0, 1.97, 1.93]) == [(0, 2)], "against any smaller one, not only its neighbour"


class _Fake:
    def __init__(self, name: str, tps: float, calls: list[str]) -> None:
        self._name, self._tps, self._calls = name, tps, calls

    def decode(self) -> dict[str, Any]:
        self._calls.append(self._name)
        return {"decode_tps": self._tps, "hit_rate": 0.5}


def test_the_two_take_turns_in_going_first() -> None:
    calls: list[str] = []
    own: Any = _Fake("own", 3.0, calls)
    beside: Any = _Fake("beside", 4.0, calls)
    rows = [one_turn(own, beside, turn) for turn in range(3)]
    assert calls == ["own", "beside", "beside", "own", "own", "beside"]
    assert rows[1] == {"turn": 1, "decode_tps": 3.0, "hit_rate": 0.5, "beside_tps": 4.0}


def _rows(budget: str, speeds: list[float], beside: list[float]) -> list[dict[str, Any]]:
    return [
        {"budget": budget, "decode_tps": own, "beside_tps": other}
        for own, other in zip(speeds, beside, strict=True)
    ]


def test_the_verdict_is_of_the_speed_beside_the_whole_model(capsys: pytest.CaptureFixture[str]) -> None:
    # The machine was twice as fast while the smaller budget was measured: that is no fault of the larger one.
    half, whole = _rows("50%", [8.0, 8.2, 8.1], [8.0, 8.2, 8.1]), _rows("100%", [4.0, 4.0], [4.0, 4.0])
    assert report(half + whole) == 0
    assert "holds" in capsys.readouterr().out
    slow = _rows("100%", [8.0, 8.0], [8.6, 8.6])
    assert report(half + slow) == 1
    printed = capsys.readouterr().out
    assert "100% decodes at 0.930 of 50%'s speed" in printed
    assert printed.endswith("FAILS\n")


def test_too_little_memory_is_refused_with_both_numbers() -> None:
    refuse_too_little(2 * GIB, None)
    refuse_too_little(2 * GIB, 2 * GIB)
    with pytest.raises(UsageError, match=r"need 18.00 GiB.*17.00 GiB are available; measure a smaller model"):
        refuse_too_little(18 * GIB, 17 * GIB)
