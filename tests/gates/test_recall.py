"""How many of a layer's experts its own router names one layer early, on the embedded model.

The native plan names two neighbouring layers only, so that the counters are those of that pair. The figures
are in ``docs/cache.md``; here is what they must not fall below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from itertools import islice

import pytest
from tools.demo_model.corpus import turns

from guanaco.engine.native import NativeStats
from guanaco.hardware.detect import detect
from guanaco.planner.placement import plan
from tests.gates.cell import Job
from tests.gates.harness import N_CTX, N_THREADS, Bench, Cell
from tests.support.capi import Model

# A layer's selection shares this much with what its router says of the state one layer earlier.
LEAST_RECALL = (0.42, 0.70, 0.64)
N_QUESTIONS = 12
SEED = 91  # not one that it was trained on


@dataclass(frozen=True)
class Recall:
    layer: int
    stats: NativeStats

    @property
    def recall(self) -> float:
        return self.stats.pilot_right / self.stats.pilot_selected


def recall_of(bench: Bench, layer: int, prompts: list[list[int]], n_tokens: int) -> Recall:
    """Of ``layer``, predicted from the one before."""
    cell = Cell("all", "threads", pilot="gate")
    chosen = plan(bench.model, detect(), bench.config(cell.budget, cell.io), None)
    pair = slice(layer - 1, layer + 1)
    job = Job(str(bench.path), chosen.n_ubatch, N_CTX, N_THREADS, prompts, n_tokens, 1)
    outcome = bench.run(
        replace(bench.model, groups=bench.model.groups[pair]),
        replace(chosen, group_class=chosen.group_class[pair]),
        cell,
        job,
    )
    assert outcome.stats is not None
    return Recall(layer, outcome.stats)


def questions(bench: Bench) -> list[list[int]]:
    with Model(str(bench.path), n_ctx=N_CTX, n_batch=N_CTX, n_ubatch=N_CTX, n_threads=1) as model:
        return [model.tokenize(_chat(turn.question)) for turn in islice(turns(SEED), N_QUESTIONS)]


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.timeout(300)
def test_the_next_router_names_most_experts(capsys: pytest.CaptureFixture[str]) -> None:
    with as_file(files("guanaco") / "data" / "guanaco-demo-q8_0.gguf") as path:
        bench = Bench(path, 1000)
        prompts = questions(bench)
        found = [recall_of(bench, layer, prompts, n_tokens=64) for layer in range(1, len(bench.model.groups))]
    with capsys.disabled():
        print("\nrecall by layer: " + ", ".join(f"{item.layer}: {item.recall:.3f}" for item in found))
    for item, least in zip(found, LEAST_RECALL, strict=True):
        assert item.stats.pilot_control_right == item.stats.pilot_control_total > 0
        assert item.recall >= least
