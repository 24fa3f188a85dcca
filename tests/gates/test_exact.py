"""Exact: streamed equals resident, token for token and, over the first tokens, logit for logit.

Models x I/O modes x budgets, each with another policy and another source of early reads; resident experts
compute while others are read in all of them. Every cell counts itself; the last test prints cells expected
and executed, and fewer is a failure. The mutation control must fail in every architecture, else a gate could
not see a wrong expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from guanaco.config import PILOTS, POLICIES
from guanaco.engine import native
from guanaco.engine.native import NativeStats
from tests.gates.harness import BUDGETS, IO_MODES, Bench, Cell, differences
from tests.support.tiny_models import ARCHS, build, spec_named
from tests.support.tiny_parts import VOCAB

CELLS_PER_MODEL = len(IO_MODES) * len(BUDGETS)


@dataclass(frozen=True)
class Case:
    name: str
    arch: str | None  # None: the embedded demo model
    shards: int = 1
    mixed_quants: bool = False
    quant: str | None = None


CASES = (
    Case("demo", None),
    *(Case(spec.name, spec.name) for spec in ARCHS),
    Case("qwen3moe-two-shards", "qwen3moe", shards=2),
    Case("gpt-oss-two-shards-mixed", "gpt-oss", shards=2, mixed_quants=True),
    Case("qwen3moe-mixed-quants", "qwen3moe", mixed_quants=True),
    Case("deepseek2-mixed-quants", "deepseek2", mixed_quants=True),
    Case("olmoe-f16", "olmoe", quant="F16"),
)
_executed: dict[str, int] = {}
_tried: set[tuple[str, str]] = set()  # policy and pilot
# One mode guesses by router everywhere, which is where the routers' control runs; the others take turns.
_OTHER_PILOTS = ("auto", "transition", "off")


@pytest.fixture(scope="module")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("gates")
    benches: dict[str, Bench] = {}

    def get(case: Case) -> Bench:
        if case.name not in benches:
            benches.clear()  # one model at a time: references of others are not needed again
            benches[case.name] = _bench(case, folder)
        return benches[case.name]

    yield get


def _bench(case: Case, folder: Path) -> Bench:
    if case.arch is None:
        with as_file(files("guanaco") / "data" / "guanaco-demo-q8_0.gguf") as path:
            return Bench(path, 1000)
    path = build(
        spec_named(case.arch), folder, quant=case.quant, shards=case.shards, mixed_quants=case.mixed_quants
    )
    return Bench(path, VOCAB)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_streamed_equals_resident(case: Case, bench_of: object) -> None:
    assert native.has_uring(), "the io_uring gates need a library built with liburing (install liburing-dev)"
    bench: Bench = bench_of(case)  # type: ignore[operator]
    # References first: every budget may choose another ubatch.
    cells = cells_of(case)
    faults: list[str] = []
    top_k = max(group.top_k for group in bench.model.groups)
    overlapped: list[int] = []

    def run(cell: Cell) -> list[str]:
        plan, outcome = bench.streamed(cell)
        found = differences(bench.reference(plan.n_ubatch), outcome)
        expected_mode = {
            "uring": "io_uring, O_DIRECT",
            "threads": "threads, O_DIRECT",
            "pagecache": "page cache",
        }
        if outcome.stats is not None:
            if outcome.stats.io_mode != expected_mode[cell.io]:
                found.append(f"ran as {outcome.stats.io_mode}")
            found += left_out(cell, outcome.stats)
            if cell.io != "pagecache":
                overlapped.append(outcome.stats.overlapped)
        return [f"{case.name} {cell} (ubatch {plan.n_ubatch}): {fault}" for fault in found]

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, cells):
            _executed[case.name] = _executed.get(case.name, 0) + 1
            faults += found
    # Slices this small may all arrive between two looks of one cell, but not of all of them. The native tests
    # of overlap fix the order of arrival.
    if top_k > 1 and sum(overlapped) == 0:
        faults.append(f"{case.name}: in no cell an expert computed while others were read")
    _tried.update((cell.policy, cell.pilot) for cell in cells if cell.io != "pagecache")
    assert not faults, "\n".join(faults)


def cells_of(case: Case) -> list[Cell]:
    """Over all cases every policy meets every pilot mode, in direct reads."""
    number = CASES.index(case)
    cells = []
    for index, (budget, io) in enumerate((budget, io) for budget in BUDGETS for io in IO_MODES):
        turn = number + BUDGETS.index(budget)
        pilot = "gate" if io == "threads" else _OTHER_PILOTS[turn % len(_OTHER_PILOTS)]
        cells.append(Cell(budget, io, POLICIES[(number + index) % len(POLICIES)], pilot))
    return cells


def left_out(cell: Cell, stats: NativeStats) -> list[str]:
    """What a cell should have done beside giving the right tokens."""
    if cell.io == "pagecache":
        return []
    faults = []
    if cell.pilot == "gate" and stats.pilot_control_total == 0:
        faults.append("no router was run")
    if cell.pilot != "off" and stats.pilot_calls == 0:
        faults.append("nothing was guessed")
    # The smallest arena is full with one layer's selection, and nothing is missing from the largest for long.
    if cell.pilot in ("gate", "transition") and cell.budget == "quarter" and stats.pilot_useful == 0:
        faults.append("no guess was of use")
    return faults


@pytest.mark.parametrize("case", CASES[: 1 + len(ARCHS)], ids=lambda case: case.name)
@pytest.mark.parametrize("mutation", [1, 2], ids=["id-off-by-one", "slots-exchanged"])
def test_a_wrong_expert_is_seen(case: Case, mutation: int, bench_of: object) -> None:
    bench: Bench = bench_of(case)  # type: ignore[operator]
    plan, outcome = bench.streamed(Cell("all", "threads", pilot="gate"), mutation=mutation, count=6)
    reference = bench.reference(plan.n_ubatch)
    tokens, digests = reference.tokens[:6], reference.digests[:6]
    wrong = [i for i in range(6) if outcome.digests[i] != digests[i]]
    assert len(wrong) == 6, f"only prompts {wrong} noticed a wrong expert"
    assert outcome.tokens != tokens


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("io", ["uring", "threads"])
def test_batches_in_waves_equal_resident(case: Case, io: str, bench_of: object) -> None:
    bench: Bench = bench_of(case)  # type: ignore[operator]
    policy = POLICIES[CASES.index(case) % len(POLICIES)]
    resident, streamed = bench.in_waves(Cell("smallest", io, policy))
    assert not differences(resident, streamed)
    assert streamed.stats is not None
    assert streamed.stats.waves > 0, "no layer had more experts than slots"


@pytest.mark.parametrize("case", CASES[: 1 + len(ARCHS)], ids=lambda case: case.name)
def test_a_wrong_expert_in_waves_is_seen(case: Case, bench_of: object) -> None:
    bench: Bench = bench_of(case)  # type: ignore[operator]
    resident, streamed = bench.in_waves(Cell("smallest", "threads"), mutation=1)
    assert streamed.digests != resident.digests


def test_every_cell_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    expected = CELLS_PER_MODEL * len(CASES)
    executed = sum(_executed.values())
    with capsys.disabled():
        print(f"\nexactness gates: {expected} cells expected, {executed} executed")
    assert executed == expected
    assert _tried == {(policy, pilot) for policy in POLICIES for pilot in PILOTS}
