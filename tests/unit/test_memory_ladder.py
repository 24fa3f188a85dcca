"""How the memory benchmark judges speed in a cgroup of exactly the budget, with runs that are made up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.memory_contract import Check, in_exactly, names

from guanaco.config import LoadConfig
from guanaco.planner.budget import refusal
from guanaco.units import MIB
from tests.support.plan_models import MODEL_PATH, moe_model

BUDGET = 100


def check(limit_bytes: int, decode_tps: float | None, exit_code: int = 0) -> Check:
    return Check(BUDGET, limit_bytes, exit_code, 90, 10, 10, decode_tps, 1.0, 0.5, 0, "")


def runs(*speeds: float) -> Iterator[float]:
    yield from speeds


@pytest.mark.parametrize(
    ("after_the_roomy_one", "expected"),
    [
        ((9.5,), [0.95]),
        ((8.4, 9.0, 9.0, 9.9, 10.0), [0.84, 1.0, 0.99]),
        ((8.4, 8.0, 10.0, 8.8, 10.0), [0.84, 0.8, 0.88]),
    ],
    ids=["one pair is enough", "a tired drive", "really slower"],
)
def test_two_more_pairs_are_run_where_the_first_is_slow(
    after_the_roomy_one: tuple[float, ...], expected: list[float]
) -> None:
    limits: list[int] = []
    speed = runs(*after_the_roomy_one)

    def run(limit_bytes: int) -> Check:
        limits.append(limit_bytes)
        return check(limit_bytes, next(speed))

    checks, ratios = in_exactly(BUDGET, check(2 * BUDGET, 10.0), run)
    assert ratios == pytest.approx(expected)
    assert [c.limit_bytes for c in checks] == limits
    assert limits == [BUDGET, *([BUDGET, 2 * BUDGET] * (len(expected) - 1))]


def test_a_run_that_failed_is_not_tried_again() -> None:
    checks, ratios = in_exactly(BUDGET, check(2 * BUDGET, 10.0), lambda limit: check(limit, None, 137))
    assert (len(checks), ratios) == (1, [0.0])


def test_a_refusal_names_the_budget_that_works() -> None:
    model, asked_bytes = moe_model([(4096, 4096, 4096)]), 100 * MIB
    config = LoadConfig(MODEL_PATH, memory_bytes=asked_bytes)
    message = refusal(model, config, asked_bytes, 171 * MIB, None).message
    assert names(message, 171 * MIB)
    assert not names(message, 17 * MIB)
    assert not names(message, 172 * MIB)
