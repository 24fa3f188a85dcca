"""More memory is never slower: ``python -m benchmarks.more_memory MODEL``.

Decodes at ten budgets up to the whole model, in interleaved rounds of fresh processes with a cold file cache,
each in a memory cgroup of its plan's total. No budget's median may fall below 0.97 of any smaller budget's.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from guanaco.bench.compare import Budget, budgets_for_shares, run_once
from guanaco.bench.one import RunSpec
from guanaco.bench.replay import replay_file
from guanaco.bench.ways import WAYS
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.model.map import build_model_map
from guanaco.planner.budget import ceiling_of
from guanaco.units import GIB, format_bytes

SLOWEST = 0.97
FIELDS = (
    "budget",
    "run",
    "memory_limit_bytes",
    "slots",
    "decode_tps",
    "hit_rate",
    "bytes_per_token",
    "wait_s",
)


def order_of(n_budgets: int, run: int) -> list[int]:
    """Up, then down: a drive that tires strikes every budget alike."""
    up = list(range(n_budgets))
    return up if run % 2 == 0 else up[::-1]


def slower(medians: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs (smaller, larger) of budgets where the larger one is slower than it may be."""
    pairs = ((i, j) for j in range(len(medians)) for i in range(j))
    return [(i, j) for i, j in pairs if medians[j] < SLOWEST * medians[i]]


def measure(model: Path, replay: str, options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Every run's row, in the order they were run."""
    model_map = build_model_map(read_gguf(model))
    ceiling = ceiling_of(detect())
    base = RunSpec(
        model=str(model),
        way="slots",
        memory_bytes=64 * GIB if ceiling is None else ceiling.limit_bytes,
        max_experts=-1,
        n_prompt=options.prompt,
        n_decode=options.decode,
        n_ctx=options.prompt + options.decode + 64,
        n_threads=None,
        n_ubatch=512,
        replay=str(replay_file(replay, model_map, scratch)),
        replay_start=0,
        seed=1,
    )
    shares = [step / options.steps for step in range(1, options.steps + 1)]
    budgets = budgets_for_shares(model_map, base, shares)
    files = [file.path for file in model_map.files]
    rows = []
    for run in range(options.runs):
        for index in order_of(len(budgets), run):
            row = one(base, budgets[index], files, run)
            rows.append(row)
            print(
                f"run {run}  {row['budget']:>8}  {format_bytes(row['memory_limit_bytes'])}: "
                f"{row['decode_tps']:.2f} tok/s, {row['hit_rate'] or 0:.1%} hits",
                flush=True,
            )
    return rows


def one(base: RunSpec, budget: Budget, files: list[Path], run: int) -> dict[str, Any]:
    """One decode at one budget; all budgets of a round get the same work."""
    spec = replace(
        base,
        memory_bytes=budget.memory_bytes or base.memory_bytes,
        max_experts=budget.max_experts,
        replay_start=run * base.n_prompt,
        seed=base.seed + run,
    )
    return {
        "budget": budget.label,
        "run": run,
        **run_once(spec, WAYS["slots"], files, budget.memory_bytes),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=64, help="tokens")
    parser.add_argument("--decode", type=int, default=32, help="tokens")
    parser.add_argument("--replay", default="qwen3-30b-like")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="guanaco-more-") as scratch:
        rows = measure(options.model, options.replay, options, Path(scratch))
    labels = list(dict.fromkeys(row["budget"] for row in rows if row["run"] == 0))
    medians = [median(row["decode_tps"] for row in rows if row["budget"] == label) for label in labels]
    for label, speed in zip(labels, medians, strict=True):
        print(f"{label:>8}: {speed:.2f} tok/s, median of {options.runs}")
    faults = slower(medians)
    for i, j in faults:
        print(f"{labels[j]} decodes at {medians[j] / medians[i]:.2f} of {labels[i]}'s speed")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    print("more memory is never slower:", "FAILS" if faults else "holds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
