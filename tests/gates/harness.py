"""Runs cells of the exactness gates: plans through the real planner, references once per model and ubatch.

Owns the budgets, the prompts and the comparison. A streamed cell must equal the resident run of the same
engine with the same ubatch, must have bound every group, and must have left no expert product to the file
mapping. Where the pilot asks the next layer's router, each layer's own router is run on its own state too,
and must select what the engine selected.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from guanaco.config import LoadConfig
from guanaco.engine import native
from guanaco.engine.native import NativeStats, StatsFile
from guanaco.errors import BudgetError, UsageError
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.placement import plan
from guanaco.planner.plan import Plan
from guanaco.units import GIB
from tests.gates.cell import Job

IO_MODES = ("uring", "threads", "pagecache")
BUDGETS = ("smallest", "quarter", "all")
# The check on every change takes fewer prompts to stay under its time; ``make test`` takes all.
N_PROMPTS = int(os.environ.get("GUANACO_GATE_PROMPTS", "20"))
N_TOKENS, N_LOGITS, N_CTX = 128, 32, 512
ROOT = Path(__file__).resolve().parents[2]
# One thread: the matrices are tiny, and two cells run beside each other.
N_THREADS = 1
WAVE_UBATCH = 64


@dataclass(frozen=True)
class Cell:
    budget: str
    io: str
    policy: str = "recall"
    pilot: str = "auto"


@dataclass
class Outcome:
    tokens: list[list[int]]
    digests: list[str]
    not_finite: int  # tokens whose logits are no numbers: a wrong expert may be a slot that is being read
    stats: NativeStats | None = None


@dataclass
class Bench:
    """One model with its references."""

    path: Path
    n_vocab_used: int
    model: ModelMap = field(init=False)
    references: dict[int, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = build_model_map(read_gguf(self.path))

    def prompts(self, count: int = N_PROMPTS) -> list[list[int]]:
        """Lengths from one token to more tokens than any quarter arena has slots."""
        rng = random.Random(str(self.path.name))
        lengths = [1, 2, 3, 5, 160] + [rng.randint(4, 40) for _ in range(count - 5)]
        return [[rng.randrange(3, self.n_vocab_used) for _ in range(length)] for length in lengths[:count]]

    def config(self, budget: str, io: str) -> LoadConfig:
        base = LoadConfig(
            model=self.path, memory_bytes=8 * GIB, load_mode="streaming", io=io, n_ctx=N_CTX, n_batch=512
        )
        n_expert = max(group.n_expert for group in self.model.groups)
        if budget == "smallest":
            return self._smallest(base, n_expert)
        top_k = max(group.top_k for group in self.model.groups)
        return replace(base, max_experts=n_expert if budget == "all" else max(top_k, n_expert // 4))

    def _smallest(self, base: LoadConfig, n_expert: int) -> LoadConfig:
        """The fewest experts per layer that the planner accepts: what one token of one layer needs."""
        for max_experts in range(1, n_expert):
            config = replace(base, max_experts=max_experts)
            try:
                plan(self.model, detect(), config, None)
            except (BudgetError, UsageError):
                continue
            return config
        raise AssertionError(f"no arena smaller than the whole model is accepted for {self.path}")

    def reference(self, n_ubatch: int) -> Outcome:
        if n_ubatch not in self.references:
            self.references[n_ubatch] = run_cell(self._job(n_ubatch), None, {})
        return self.references[n_ubatch]

    def streamed(
        self, cell: Cell, *, mutation: int = 0, count: int = N_PROMPTS, n_tokens: int = N_TOKENS
    ) -> tuple[Plan, Outcome]:
        chosen = plan(self.model, detect(), self.config(cell.budget, cell.io), None)
        job = replace(self._job(chosen.n_ubatch, count), n_tokens=n_tokens)
        return chosen, self.run(self.model, chosen, cell, job, mutation=mutation)

    def in_waves(self, cell: Cell, *, mutation: int = 0) -> tuple[Outcome, Outcome]:
        """The resident run and the one in the smallest arena, with a batch that no layer has room for."""
        chosen = plan(self.model, detect(), self.config("smallest", cell.io), None)
        chosen = replace(chosen, n_ubatch=WAVE_UBATCH)
        job = replace(self._job(WAVE_UBATCH, 6), n_tokens=16, n_logits=16)
        return run_cell(job, None, {}), self.run(self.model, chosen, cell, job, mutation=mutation)

    def run(self, model: ModelMap, chosen: Plan, cell: Cell, job: Job, *, mutation: int = 0) -> Outcome:
        """``model``: the map that the native plan is written from; groups left out are not managed."""
        is_control = cell.pilot == "gate"
        with tempfile.TemporaryDirectory(prefix="guanaco-gate-") as folder:
            stats = StatsFile(Path(folder) / "stats")
            text = native.plan_text(
                model,
                chosen,
                cell.io,
                stats.path,
                testing=is_control or mutation != 0,
                policy=cell.policy,
                pilot=cell.pilot,
            )
            (Path(folder) / "plan").write_text(text)
            stats.control("pilot_control", int(is_control))
            stats.control("mutation", mutation)
            environment = {
                "LD_PRELOAD": str(native.library_path()),
                **native.plan_environment(Path(folder) / "plan"),
            }
            return run_cell(job, stats, environment)

    def _job(self, n_ubatch: int, count: int = N_PROMPTS) -> Job:
        return Job(str(self.path), n_ubatch, N_CTX, N_THREADS, self.prompts(count), N_TOKENS, N_LOGITS)


def run_cell(job: Job, stats: StatsFile | None, environment: dict[str, str]) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gates.cell"],
        input=job.to_json(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "GOMP_SPINCOUNT": "1000", **environment},
        timeout=900,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"the cell ended with {done.returncode}: {done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    read = None if stats is None else stats.read()
    return Outcome(answer["tokens"], answer["digests"], answer["not_finite"], read)


def differences(reference: Outcome, streamed: Outcome) -> list[str]:
    """What differs, in words; empty when the runs are equal and everything was streamed."""
    faults = []
    for index, (expected, got) in enumerate(zip(reference.tokens, streamed.tokens, strict=True)):
        if expected != got:
            first = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
            faults.append(f"prompt {index}: token {first} is {got[first]}, not {expected[first]}")
    for index, (wanted, digest) in enumerate(zip(reference.digests, streamed.digests, strict=True)):
        if wanted != digest:
            faults.append(f"prompt {index}: logits differ")
    for whose, run in (("resident", reference), ("streamed", streamed)):
        if run.not_finite:
            faults.append(f"the {whose} run's logits of {run.not_finite} tokens are not finite")
    stats = streamed.stats
    if stats is None:
        return [*faults, "the library wrote no counters"]
    if stats.unmanaged != 0:
        faults.append(f"unmanaged = {stats.unmanaged}")
    if stats.groups_bound != stats.groups_expected or stats.groups_bound == 0:
        faults.append(f"{stats.groups_bound} of {stats.groups_expected} groups bound")
    if stats.read_errors or stats.last_error:
        faults.append(f"read errors: {stats.read_errors} {stats.last_error}")
    if stats.pilot_control_right != stats.pilot_control_total:
        faults.append(
            f"{stats.pilot_control_right} of {stats.pilot_control_total} ids were selected again "
            "by the layers' own routers"
        )
    return faults
