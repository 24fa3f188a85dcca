"""The memory promise, checked from outside: ``python -m benchmarks.memory_contract MODEL``.

Runs the real ``guanaco run`` (parent and worker) in a memory cgroup, cold: model and engine libraries are
not cached. In a cgroup of twice the budget the peak must stay within the budget; in one of exactly the
budget, without swap, the same run must complete and be at most 10 % slower. A drive that tires makes one pair
of runs tell little: where the first is slower, two more decide, in turned order, by the median. Below the
minimum it must be refused with a number, and that number must work.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from guanaco.bench.drive import drop_file_cache
from guanaco.bench.residency import cached_expert_bytes
from guanaco.engine import native
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.child_cgroup import create_child
from guanaco.model.map import ModelMap, build_model_map
from guanaco.units import MIB, format_bytes

SLOWEST_IN_EXACT = 0.9
MOST_PAIRS = 3
WORD = " the"  # two tokens in the synthetic vocabulary


@dataclass(frozen=True)
class Check:
    budget_bytes: int
    limit_bytes: int
    exit_code: int
    peak_bytes: int | None
    prompt_n: int | None
    decode_n: int | None
    decode_tps: float | None
    prompt_tps: float | None
    hit_rate: float | None
    cached_expert_bytes: int
    message: str

    @property
    def holds(self) -> bool:
        return self.exit_code == 0 and self.peak_bytes is not None and self.peak_bytes <= self.budget_bytes


def library_files() -> Iterator[Path]:
    """The engine's and ours: their first use is charged to whoever uses them."""
    import importlib.util

    spec = importlib.util.find_spec("xllamacpp")
    if spec is not None and spec.submodule_search_locations:
        yield from Path(next(iter(spec.submodule_search_locations))).glob("*.so")
    yield native.library_path()


def run_in_cgroup(
    model: ModelMap,
    budget_bytes: int,
    limit_bytes: int,
    *,
    n_words: int,
    n_predict: int,
    flags: Sequence[str] = (),
) -> Check:
    """One ``guanaco run`` under a limit, everything cold."""
    drop_file_cache([file.path for file in model.files])
    drop_file_cache(library_files())
    command = [
        sys.executable, "-m", "guanaco.cli.main", "run", str(model.files[0].path), WORD * n_words, "--json",
        "--memory", str(budget_bytes), "--load-mode", "streaming", "-n", str(n_predict), "--temp", "0",
        *flags,
    ]  # fmt: skip
    with create_child("guanaco-memory", limit_bytes) as child:
        done = subprocess.run(child.wrap(command), capture_output=True, text=True, timeout=1800, check=False)
        peak = child.peak_bytes
    lines = done.stdout.strip().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    timings, streaming = answer.get("timings") or {}, answer.get("streaming") or {}
    accesses = streaming.get("hits", 0) + streaming.get("misses", 0)
    error = answer.get("error", {}).get("message") or (done.stderr.strip()[-300:] if done.returncode else "")
    return Check(
        budget_bytes=budget_bytes,
        limit_bytes=limit_bytes,
        exit_code=done.returncode,
        peak_bytes=peak,
        prompt_n=timings.get("prompt_n"),
        decode_n=timings.get("decode_n"),
        decode_tps=timings.get("decode_tps"),
        prompt_tps=timings.get("prompt_tps"),
        hit_rate=streaming["hits"] / accesses if accesses else None,
        cached_expert_bytes=cached_expert_bytes(model),
        message=error,
    )


def smallest_budget(model: ModelMap, flags: Sequence[str]) -> tuple[int, Check]:
    """The number that the refusal of a hopeless budget names, and the refusal."""
    command = [
        sys.executable, "-m", "guanaco.cli.main", "plan", str(model.files[0].path), "--json",
        "--memory", "1MiB", "--load-mode", "streaming", *flags,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    needed = int(json.loads(done.stdout)["error"]["needed_bytes"])
    # The number is rounded up to whole MiB.
    return needed, run_in_cgroup(model, needed - 2 * MIB, 2 * needed, n_words=4, n_predict=4, flags=flags)


def ladder(model: ModelMap, smallest: int, steps: int) -> list[int]:
    """Budgets from 60 % of the file down to the smallest the plan accepts, evenly spaced."""
    largest = sum(file.size_bytes for file in model.files) * 6 // 10
    return [smallest + (largest - smallest) * step // max(1, steps - 1) for step in reversed(range(steps))]


def in_exactly(budget: int, roomy: Check, run: Callable[[int], Check]) -> tuple[list[Check], list[float]]:
    """Runs in a cgroup of the budget, with those in a roomy one that go with them; speeds of each pair."""
    checks = [run(budget)]
    speeds = [speed_ratio(checks[0], roomy)]
    while checks[0].holds and speeds[0] < SLOWEST_IN_EXACT and len(speeds) < MOST_PAIRS:
        exact, again = run(budget), run(2 * budget)
        checks += [exact, again]
        speeds.append(speed_ratio(exact, again))
    return checks, speeds


def speed_ratio(exact: Check, roomy: Check) -> float:
    return exact.decode_tps / roomy.decode_tps if exact.decode_tps and roomy.decode_tps else 0.0


def names(refusal: str, budget_bytes: int) -> bool:
    """Whether a refusal says which budget works, as it would be typed."""
    return f"use --memory {budget_bytes // MIB}MiB," in refusal


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens")
    parser.add_argument("--predict", type=int, default=256)
    parser.add_argument("--roomy-only", action="store_true", help="only the peak in twice the budget")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    model = build_model_map(read_gguf(options.model))
    flags = ["-c", str(options.prompt + options.predict + 256)]
    n_words = options.prompt // 2
    smallest, refused = smallest_budget(model, flags)
    good, rows = refused.exit_code != 0 and names(refused.message, smallest), []
    print(f"two MiB below the smallest: exit {refused.exit_code}: {refused.message}", flush=True)
    for budget in ladder(model, smallest, options.steps):
        roomy = run_in_cgroup(
            model, budget, 2 * budget, n_words=n_words, n_predict=options.predict, flags=flags
        )
        rows.append(roomy)
        good = good and roomy.holds
        print(
            f"budget {format_bytes(budget)}: peak {format_bytes(roomy.peak_bytes)} in twice the budget "
            f"({roomy.prompt_n} + {roomy.decode_n} tokens, {roomy.prompt_tps or 0:.2f} and "
            f"{roomy.decode_tps or 0:.2f} tok/s), expert bytes cached {roomy.cached_expert_bytes} "
            f"-> {'holds' if roomy.holds else 'FAILS'} {roomy.message}",
            flush=True,
        )
        if options.roomy_only:
            continue
        run = partial(run_in_cgroup, model, budget, n_words=n_words, n_predict=options.predict, flags=flags)
        more, speeds = in_exactly(budget, roomy, run)
        rows += more
        is_fast = all(check.holds for check in more) and median(speeds) >= SLOWEST_IN_EXACT
        good = good and is_fast
        print(
            f"  in exactly the budget: exit {more[0].exit_code}, "
            f"{', '.join(f'{speed:.2f}' for speed in speeds)} of the speed "
            f"-> {'holds' if is_fast else 'FAILS'} {more[0].message}",
            flush=True,
        )
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(replace(row, message="")) for row in rows)
    print("memory contract:", "holds" if good else "FAILS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
