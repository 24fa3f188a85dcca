"""Interleaved comparison of ways: A B, then B A, each run in a fresh process and a memory cgroup of its own.

Owns: the order of runs, the caches and limits around them, and the ratios. Leaves one run to ``one``.
Refuses where no child memory cgroup can be made, unless told to run without a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guanaco.bench.drive import drive_limit, drop_file_cache, read_ahead
from guanaco.bench.one import RunSpec, plan_for, to_json
from guanaco.bench.ratio import Ratio, paired_ratio
from guanaco.bench.ways import WAYS, Way
from guanaco.errors import EngineError
from guanaco.hardware.child_cgroup import ChildCgroup, create_child
from guanaco.model.map import ModelMap

RUN_TIMEOUT_S = 1800
RunOnce = Callable[[RunSpec, Way, Sequence[Path], int | None], dict[str, Any]]
_PLAN_ROUNDS = 4


@dataclass(frozen=True)
class Budget:
    """One step of the ladder: the limit of every way, and the experts per layer of the streamed ones."""

    label: str
    memory_bytes: int | None  # None: no limit, whole model in memory
    max_experts: int


def budgets_for_shares(model: ModelMap, base: RunSpec, shares: Sequence[float]) -> list[Budget]:
    """Budgets that hold these shares of the experts: the plan's total is everybody's limit."""
    ladder = []
    for share in shares:
        max_experts = max(1, round(share * model.n_expert))
        spec = replace(base, max_experts=max_experts)
        # The headroom is a share of the budget: plan again for the total until it is its own budget.
        for _ in range(_PLAN_ROUNDS):
            _, plan = plan_for(spec, WAYS["slots"], model)
            spec = replace(spec, memory_bytes=plan.parts.total_bytes)
        ladder.append(Budget(f"{share:.2%}", spec.memory_bytes, max_experts))
    return ladder


def run_once(
    spec: RunSpec,
    way: Way,
    files: Sequence[Path],
    limit_bytes: int | None,
    *,
    module: str = "guanaco.bench.one",
) -> dict[str, Any]:
    """One run of ``module``, with a cold file cache where memory is limited.

    Raises EngineError with its own words.
    """
    if limit_bytes is not None:  # what is in memory whole is the same wherever it was loaded from
        drop_file_cache(files)
    with (
        read_ahead(files[0], way.read_ahead_kib) as ahead_kib,
        _cgroup(limit_bytes) as cgroup,
        drive_limit(files[0], spec.drive_limit_bytes_per_s, cgroup) as slowed,
    ):
        command = [sys.executable, "-P", "-m", module, to_json(spec), str(os.getpid())]
        for child in (cgroup, slowed):
            command = child.wrap(command) if child else command
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
        lines = done.stdout.strip().splitlines()
        result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if done.returncode != 0 or "error" in result:
            reason = result.get("error", {}).get("message") or done.stderr.strip()[-500:]
            raise EngineError(f"the run of {way.title} failed ({done.returncode}): {reason}")
        result["cgroup_peak_bytes"] = cgroup.peak_bytes if cgroup else None
        result["memory_limit_bytes"] = limit_bytes
        result["read_ahead_kib"] = ahead_kib
        result["drive_limit_bytes_per_s"] = spec.drive_limit_bytes_per_s
    return result


@contextlib.contextmanager
def _cgroup(limit_bytes: int | None) -> Iterator[ChildCgroup | None]:
    if limit_bytes is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            child = stack.enter_context(create_child("guanaco-bench", limit_bytes))
        except OSError as problem:
            raise EngineError(
                f"a fair comparison needs a memory cgroup, and none can be made: {problem}"
            ) from None
        yield child


def compare(
    base: RunSpec,
    ways: Sequence[Way],
    budget: Budget,
    files: Sequence[Path],
    *,
    runs: int,
    on_row: Callable[[dict[str, Any]], None],
    run_one: RunOnce = run_once,
    bandwidth: Callable[[], float] | None = None,
) -> list[dict[str, Any]]:
    """``runs`` rounds of every way in alternating order; each round starts elsewhere in the trace.

    ``bandwidth`` measures the drive once a round, in bytes per second.
    """
    rows = []
    for run in range(runs):
        drive = None if bandwidth is None else bandwidth()
        order = ways if run % 2 == 0 else tuple(reversed(ways))
        for way in order:
            spec = replace(
                base,
                way=way.name,
                memory_bytes=budget.memory_bytes or base.memory_bytes,
                max_experts=budget.max_experts,
                replay_start=base.replay_start + run * (base.n_prompt // 2),
                seed=base.seed + run,
            )
            limit_bytes = None if way.all_in_slots else budget.memory_bytes
            measured = run_one(spec, way, files, limit_bytes)
            row = {"budget": budget.label, "run": run, "drive_bytes_per_s": drive, **measured}
            rows.append(row)
            on_row(row)
    return rows


def ratios(rows: Sequence[dict[str, Any]], numerator: str, denominator: str, figure: str) -> Ratio:
    """Paired by run: ``figure`` of the one way over that of the other."""
    by_run = {(row["way"], row["run"]): float(row[figure]) for row in rows}
    runs = sorted({run for way, run in by_run if way == numerator})
    return paired_ratio([by_run[numerator, run] for run in runs], [by_run[denominator, run] for run in runs])
