"""``guanaco trace``: what it writes, and that the simulator comes to the engine's own counts from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guanaco.cache.registry import POLICIES
from guanaco.cli.demo import demo_model
from guanaco.engine.native import library_path
from guanaco.simulator.recorded import Recorded
from guanaco.simulator.replay import replay_recorded
from guanaco.simulator.trace import Trace, read_trace
from tests.support.cli import run_guanaco
from tests.support.tiny_models import build, spec_named

MODEL = str(demo_model())
SMALL = ("--guanaco-max-experts", "9", "--memory", "256MiB", "--temp", "0")
# Long enough to be a batch whose experts decoding does not keep.
QUESTION = (
    "Tell me a story about a guanaco and a lantern, and then tell me what the weather is like in the "
    "mountains where it lives, and what its friends the parrot and the fox are doing there."
)


def traced(
    folder: Path, *words: str, model: str = MODEL, question: str = QUESTION
) -> tuple[Trace, dict[str, Any]]:
    path = folder / "trace.jsonl"
    result = run_guanaco("trace", model, question, "-o", str(path), *words, "--json")
    assert result.returncode == 0, result.stderr
    assert [item.name for item in folder.iterdir() if item.name.startswith((".trace", "trace"))] == [
        path.name
    ]
    return read_trace(path), json.loads(result.stdout)


def recorded_in(trace: Trace) -> Recorded:
    assert trace.recorded is not None
    return trace.recorded


def check_replay(trace: Trace, said: dict[str, Any]) -> None:
    recorded = recorded_in(trace)
    assert recorded.counters == said["counters"]
    assert not recorded.has_guesses
    counts = replay_recorded(library_path(), recorded.policy, recorded, trace.name)
    assert {name: getattr(counts, name) for name in recorded.counters} == recorded.counters
    assert counts.misses > counts.evictions > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulator_comes_to_the_engines_counts(tmp_path: Path, policy: str) -> None:
    trace, said = traced(tmp_path, *SMALL, "--policy", policy, "-n", "96")
    check_replay(trace, said)
    assert recorded_in(trace).policy == policy
    batches = [selection for selection in recorded_in(trace).selections if selection.n_transient]
    assert len(batches) == trace.n_layer or len(batches) == trace.n_layer - 1  # the last runs one token only
    assert said["selections"] == len(recorded_in(trace).selections)
    assert trace.phase.count(0) == said["prompt_n"] > 40
    assert trace.phase.count(1) == said["decode_n"] > 20


@pytest.mark.parametrize(
    "words",
    [
        ("--io", "threads", "-ub", "8", "--policy", "lru"),
        ("--io", "pagecache", "--policy", "cycle"),
        ("-ub", "24", "--guanaco-max-experts", "30"),
    ],
)
def test_counts_agree_however_it_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    trace, said = traced(tmp_path, *SMALL, *words, "-n", "32")
    recorded = recorded_in(trace)
    counts = replay_recorded(library_path(), recorded.policy, recorded, trace.name)
    assert {name: getattr(counts, name) for name in recorded.counters} == said["counters"]


def test_two_sizes_of_expert(tmp_path: Path) -> None:
    model = build(spec_named("qwen3moe"), tmp_path, mixed_quants=True)
    words = ("--guanaco-max-experts", "4", "--temp", "0", "-n", "24")
    trace, said = traced(tmp_path, *words, model=str(model), question="a b c")
    assert len(recorded_in(trace).shape.n_slots) == 2
    recorded = recorded_in(trace)
    counts = replay_recorded(library_path(), recorded.policy, recorded, trace.name)
    assert {name: getattr(counts, name) for name in recorded.counters} == said["counters"]


def test_every_token_and_layer_says_what_was_resident(tmp_path: Path) -> None:
    trace, said = traced(tmp_path, *SMALL, "--policy", "lru", "-n", "16")
    assert said["weights"]
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    tokens = [line for line in lines if "layers" in line]
    assert len(tokens) == trace.n_tokens
    n_resident = n_ids = 0
    for token in tokens:
        for ids, resident, weights in zip(token["layers"], token["resident"], token["weights"], strict=True):
            assert len(ids) == len(resident) == len(weights)
            assert weights == sorted(weights, reverse=True)
            assert all(0 < weight <= 1 for weight in weights)  # a softmax
            if token["phase"] == 1:
                n_ids += len(ids)
                n_resident += sum(resident)
    decoded = [s for s in recorded_in(trace).selections if not s.n_transient]
    assert 0 < n_resident < n_ids
    assert n_ids == sum(len(s.experts) for s in decoded[-trace.n_layer * said["decode_n"] :])


def test_the_simulator_prints_the_engines_row_too(tmp_path: Path) -> None:
    trace, said = traced(tmp_path, *SMALL, "-n", "24")
    path = str(tmp_path / "trace.jsonl")
    result = run_guanaco("simulate", path, "--as-recorded", "--json")
    assert result.returncode == 0, result.stderr
    rows = {row["policy"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == ["engine", *POLICIES, "belady"]
    assert {name: rows["engine"][name] for name in said["counters"]} == said["counters"]
    assert rows["engine"]["misses"] == rows[recorded_in(trace).policy]["misses"]
    assert rows["belady"]["misses"] == min(row["misses"] for row in rows.values())
    assert rows["engine"]["slots"] == 36
    assert run_guanaco("simulate", path, "--budgets", "25%").returncode == 0


def test_with_early_reads_the_trace_says_so(tmp_path: Path) -> None:
    trace, _ = traced(tmp_path, *SMALL, "--pilot", "gate", "-n", "24")
    assert recorded_in(trace).has_guesses


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--load-mode", "mmap"), "leave --load-mode mmap out"),
        (("--embeddings",), "leave it out"),
        (("-np", "2"), "one request at a time"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    result = run_guanaco("trace", MODEL, "hello", "-o", str(tmp_path / "t"), *words)
    assert result.returncode == 2
    assert reason in result.stderr


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    result = run_guanaco("trace", MODEL, "hello", "-o", str(tmp_path / "missing" / "t"), *SMALL)
    assert result.returncode == 2
    assert "cannot write" in result.stderr


def test_a_trace_from_elsewhere_has_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"tok": 1, "layers": [[1, 2]]}\n')
    result = run_guanaco("simulate", str(path), "--as-recorded")
    assert result.returncode == 2
    assert "record it with guanaco trace" in result.stderr
    assert run_guanaco("simulate", "--generated", "olmoe-like", "--as-recorded").returncode == 2
