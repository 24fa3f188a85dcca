"""The order of a comparison's runs and what each is told, with a runner that only takes notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from guanaco.bench import compare as comparison
from guanaco.bench.compare import Budget, budgets_for_shares, compare, ratios
from guanaco.bench.one import RunSpec, plan_for
from guanaco.bench.ways import WAYS, Way, find_ways
from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from guanaco.errors import EngineError
from guanaco.units import GIB, MIB

FILES = (Path("model.gguf"),)
BASE = RunSpec(
    model=str(demo_model()),
    way="slots",
    memory_bytes=8 * GIB,
    max_experts=-1,
    n_prompt=100,
    n_decode=32,
    n_ctx=512,
    n_threads=2,
    n_ubatch=512,
    replay=None,
    replay_start=7,
    seed=3,
)


class Runner:
    """Every way decodes at a speed of its own."""

    def __init__(self, speeds: dict[str, float]) -> None:
        self.speeds = speeds
        self.calls: list[tuple[RunSpec, Way, Sequence[Path], int | None]] = []

    def __call__(
        self, spec: RunSpec, way: Way, files: Sequence[Path], limit_bytes: int | None
    ) -> dict[str, Any]:
        self.calls.append((spec, way, files, limit_bytes))
        return {"way": way.name, "decode_tps": self.speeds[way.name] * (1 + spec.seed)}


def run(ways: str, runs: int, budget: Budget) -> tuple[Runner, list[dict[str, Any]], list[dict[str, Any]]]:
    runner = Runner({"slots": 6.0, "mmap": 2.0, "pagecache": 3.0})
    told: list[dict[str, Any]] = []
    rows = compare(BASE, find_ways(ways), budget, FILES, runs=runs, on_row=told.append, run_one=runner)
    return runner, rows, told


def test_the_order_turns_round_every_time() -> None:
    runner, rows, told = run("slots,mmap", 3, Budget("25%", 100 * MIB, 32))
    assert [row["way"] for row in rows] == ["slots", "mmap", "mmap", "slots", "slots", "mmap"]
    assert [row["run"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert told == rows
    assert [way.name for _, way, _, _ in runner.calls] == [row["way"] for row in rows]


def test_both_of_a_pair_get_the_same_work_and_limit() -> None:
    runner, _, _ = run("slots,mmap", 2, Budget("25%", 100 * MIB, 32))
    for spec, way, files, limit_bytes in runner.calls:
        assert spec.way == way.name
        assert (spec.memory_bytes, spec.max_experts, limit_bytes, files) == (100 * MIB, 32, 100 * MIB, FILES)
    work = [(spec.replay_start, spec.seed) for spec, _, _, _ in runner.calls]
    assert work == [(7, 3), (7, 3), (57, 4), (57, 4)], "another place of the trace each round"


def test_without_a_limit_the_machine_is_the_budget() -> None:
    runner, _, _ = run("slots,mmap", 1, Budget("whole", None, -1))
    assert {(spec.memory_bytes, limit) for spec, _, _, limit in runner.calls} == {(8 * GIB, None)}


def test_ratios_are_taken_within_a_round() -> None:
    _, rows, _ = run("slots,pagecache,mmap", 4, Budget("25%", 100 * MIB, 32))
    # Rounds differ in speed by a factor of 1.75; within each, the ways keep their ratio exactly.
    ratio = ratios(rows, "slots", "mmap", "decode_tps")
    assert ratio.pairs == 4
    for value in (ratio.mean, ratio.lower_90, ratio.upper_90):
        assert value == pytest.approx(3.0)
    assert ratios(rows, "slots", "pagecache", "decode_tps").mean == pytest.approx(2.0)


def test_a_budget_is_what_the_plan_for_that_share_takes() -> None:
    model = read_model(demo_model())
    budgets = budgets_for_shares(model, BASE, [0.5, 0.25])
    assert [(budget.label, budget.max_experts) for budget in budgets] == [("50.00%", 16), ("25.00%", 8)]
    for budget in budgets:
        assert budget.memory_bytes is not None
        spec = RunSpec(
            **{**vars(BASE), "memory_bytes": budget.memory_bytes, "max_experts": budget.max_experts}
        )
        _, plan = plan_for(spec, WAYS["slots"], model)
        assert plan.parts.total_bytes <= budget.memory_bytes
        assert plan.slots == 4 * budget.max_experts
    assert (budgets[0].memory_bytes or 0) > (budgets[1].memory_bytes or 0)


def test_without_a_cgroup_there_is_no_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise OSError("no memory cgroup is mounted here")

    monkeypatch.setattr(comparison, "create_child", refuse)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x")
    with pytest.raises(EngineError, match="needs a memory cgroup, and none can be made: no memory cgroup"):
        comparison.run_once(BASE, WAYS["slots"], [model], 100 * MIB)


def test_a_run_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    missing = RunSpec(**{**vars(BASE), "model": str(tmp_path / "none.gguf")})
    model = tmp_path / "model.gguf"
    model.write_bytes(b"x")
    with pytest.raises(EngineError, match=r"the run of guanaco, expert slots failed \(3\): .*none\.gguf"):
        comparison.run_once(missing, WAYS["slots"], [model], None)
