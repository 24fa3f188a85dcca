"""More memory is never slower: ``python -m benchmarks.more_memory MODEL``.

Ten budgets up to the whole model are loaded at once, each worker in a memory cgroup of its plan's total, and
take turns at decoding the same stretch of a trace: a virtual machine's speed changes by a tenth from minute
to minute, and no two budgets in a row would see the same machine. A budget's speed is the median of its
turns, each as a share of the middle one of its round; none may fall below 0.97 of any smaller one's.
Everything is loaded anew several times, because loads of one plan differ too. Needs memory for all of them:
``python -m benchmarks.make_model --standard qwen --layers 12 --out qwen-12.gguf``.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from guanaco.bench.compare import Budget, budgets_for_shares
from guanaco.bench.one import RunSpec, engine_spec
from guanaco.bench.ratio import paired_ratio
from guanaco.bench.replay import replay_file
from guanaco.bench.together import REST_S
from guanaco.bench.tokens import plain_tokens
from guanaco.bench.ways import WAYS
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.errors import GuanacoError, UsageError
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.child_cgroup import create_child
from guanaco.hardware.detect import detect
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.budget import ceiling_of, usable_bytes
from guanaco.units import GIB, format_bytes

SLOWEST = 0.97
FIELDS = ("budget", "load", "turn", "slots", "decode_tps", "of_turn", "hit_rate", "bytes_per_token")
_SEED = 1


def order_of(n_budgets: int, turn: int) -> list[int]:
    """Up, then down: a drive that tires strikes every budget alike."""
    up = list(range(n_budgets))
    return up if turn % 2 == 0 else up[::-1]


def slower(speeds: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs (smaller, larger) of budgets where the larger one is slower than it may be."""
    pairs = ((i, j) for j in range(len(speeds)) for i in range(j))
    return [(i, j) for i, j in pairs if speeds[j] < SLOWEST * speeds[i]]


def refuse_too_little(needed_bytes: int, usable: int | None) -> None:
    """Raises UsageError where the budgets do not fit together."""
    if usable is not None and needed_bytes > usable:
        raise UsageError(
            f"all budgets together need {format_bytes(needed_bytes)}, and {format_bytes(usable)} are "
            "available; measure a smaller model (benchmarks.make_model --layers) or fewer --steps"
        )


class Loaded:
    """One engine with its prompt answered, decoding on where the replay stands."""

    def __init__(self, engine: Engine, base: RunSpec) -> None:
        self._engine = engine
        engine.control("replay_position", base.replay_start)
        engine.control("replay_on", 1)
        rng = random.Random(_SEED)
        vocabulary = plain_tokens(engine.spec.model_map.n_vocab)
        self._prompt = [rng.choice(vocabulary) for _ in range(base.n_prompt)]
        self._n_decode = base.n_decode
        self.decode()

    def decode(self) -> dict[str, Any]:
        """One turn: the prompt's keys and values are reused, so all of it is decoding."""
        before = self._engine.stats()
        timings = self._engine.client().call(
            "/completion",
            {
                "temperature": 0,
                "cache_prompt": True,
                "ignore_eos": True,
                "id_slot": 0,
                "prompt": [*self._prompt, self._prompt[0]],
                "n_predict": self._n_decode,
            },
        )["timings"]
        after = self._engine.stats()
        time.sleep(REST_S)
        if before is None or after is None or after.slots == 0 or after.replay_exhausted:
            raise UsageError("the trace is shorter than the run; give --replay more tokens or --turns fewer")
        accesses = after.accesses - before.accesses
        return {
            "slots": after.slots,
            "decode_tps": timings["predicted_per_second"],
            "hit_rate": (after.hits - before.hits) / max(1, accesses),
            "bytes_per_token": (after.bytes_read - before.bytes_read) / max(1, timings["predicted_n"]),
        }


@contextmanager
def loaded(spec: EngineSpec, budget: Budget, base: RunSpec) -> Iterator[Loaded]:
    """``spec``'s model, its worker in a memory cgroup of the budget."""
    with (
        create_child("guanaco-more", budget.memory_bytes) as child,
        Engine(spec) as engine,
    ):
        engine.start()
        # The library hides itself from what its first process starts, so no shell can join first.
        if engine.pid is not None:
            child.add(engine.pid)
        engine.wait_ready()
        yield Loaded(engine, base)


def spec_for(base: RunSpec, budget: Budget, model: ModelMap) -> EngineSpec:
    spec = replace(
        base, memory_bytes=budget.memory_bytes or base.memory_bytes, max_experts=budget.max_experts
    )
    return engine_spec(spec, WAYS["slots"], model)


def measure(model: ModelMap, base: RunSpec, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every turn, in the order they were taken."""
    budgets = budgets_for_shares(model, base, [step / options.steps for step in range(1, options.steps + 1)])
    specs = [spec_for(base, budget, model) for budget in budgets]
    refuse_too_little(sum(spec.plan.parts.total_bytes for spec in specs), usable_bytes(detect()))
    rows = []
    for load in range(options.runs):
        start = replace(base, replay_start=load * base.n_prompt)
        with ExitStack() as stack:
            engines: dict[int, Loaded] = {}
            for index in order_of(len(budgets), load):
                engines[index] = stack.enter_context(loaded(specs[index], budgets[index], start))
            for turn in range(options.turns):
                taken = {index: engines[index].decode() for index in order_of(len(budgets), turn)}
                rows += [
                    {"budget": budgets[index].label, "load": load, "turn": turn, **row}
                    for index, row in sorted(set_against_turn(taken).items())
                ]
        print_load(load, [row for row in rows if row["load"] == load])
    return rows


def set_against_turn(taken: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Each budget's speed in a round of turns as a share of the middle one."""
    middle = median(row["decode_tps"] for row in taken.values())
    return {index: {**row, "of_turn": row["decode_tps"] / middle} for index, row in taken.items()}


def by_budget(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Smallest first, as the rows of each round are."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["budget"], []).append(row)
    return found


def print_load(load: int, rows: Sequence[dict[str, Any]]) -> None:
    speeds = (f"{median(row['of_turn'] for row in taken):.3f}" for taken in by_budget(rows).values())
    print(f"load {load}: {median(row['decode_tps'] for row in rows):.2f} tok/s;", *speeds, flush=True)


def report(rows: Sequence[dict[str, Any]]) -> int:
    """Prints each budget's speed and the verdict; 1 where more memory is slower."""
    found = by_budget(rows)
    labels = list(found)
    speeds = [median(row["of_turn"] for row in taken) for taken in found.values()]
    for label, speed, taken in zip(labels, speeds, found.values(), strict=True):
        against = paired_ratio(*([row["of_turn"] for row in of] for of in (taken, found[labels[-1]])))
        interval = "" if against.lower_90 is None else f" ({against.lower_90:.3f}-{against.upper_90:.3f})"
        print(
            f"{label:>8}: {speed:.3f}, {against.mean:.3f}{interval} of the largest; "
            f"{median(row['decode_tps'] for row in taken):.2f} tok/s, "
            f"{median(row['hit_rate'] for row in taken):.2%} hits"
        )
    faults = slower(speeds)
    for i, j in faults:
        print(f"{labels[j]} decodes at {speeds[j] / speeds[i]:.3f} of {labels[i]}'s speed")
    print("more memory is never slower:", "FAILS" if faults else "holds")
    return 1 if faults else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=10, help="budgets, up to the whole model")
    parser.add_argument("--runs", type=int, default=4, help="times everything is loaded")
    parser.add_argument("--turns", type=int, default=25, help="turns of each load")
    parser.add_argument("--prompt", type=int, default=256, help="tokens; they fill the slots")
    parser.add_argument("--decode", type=int, default=16, help="tokens a turn")
    parser.add_argument("--replay", default="qwen3-30b-like")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="guanaco-more-") as scratch:
            model = build_model_map(read_gguf(options.model))
            replay = replay_file(options.replay, model, Path(scratch))
            rows = measure(model, base_of(options, replay), options)
    except GuanacoError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    return report(rows)


def base_of(options: argparse.Namespace, replay: Path) -> RunSpec:
    ceiling = ceiling_of(detect())
    return RunSpec(
        model=str(options.model),
        way="slots",
        memory_bytes=64 * GIB if ceiling is None else ceiling.limit_bytes,
        max_experts=-1,
        n_prompt=options.prompt,
        n_decode=options.decode,
        n_ctx=options.prompt + options.decode + 64,
        n_threads=None,
        n_ubatch=512,
        replay=str(replay),
        replay_start=0,
        seed=_SEED,
    )


if __name__ == "__main__":
    sys.exit(main())
