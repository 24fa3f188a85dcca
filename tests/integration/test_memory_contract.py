"""The memory promise on a small model, checked by a memory cgroup: what fits completes, the rest is refused.

The full ladder with long prompts on a standard model is ``python -m benchmarks.memory_contract``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.memory_contract import Check, library_files, run_in_cgroup, smallest_budget

from guanaco.bench.drive import drop_file_cache
from guanaco.hardware.child_cgroup import create_child
from guanaco.model.map import ModelMap
from guanaco.units import MIB
from tests.support.cli import COMMAND, served
from tests.support.unchecked import unchecked

FLAGS = ("-c", "512")
N_WORDS, N_PREDICT = 48, 8
N_PROMPT = 2 * N_WORDS  # at least so many tokens


@dataclass(frozen=True)
class Promise:
    model: ModelMap
    budgets: dict[str, int]
    refused: Check


@pytest.fixture(scope="session")
def promise(small_model: ModelMap) -> Promise:
    try:
        with create_child("guanaco-test", 64 * MIB) as child:
            measured = child.peak_bytes is not None
    except OSError as problem:
        unchecked(str(problem))
    if not measured:
        unchecked("this kernel does not keep the peak of a memory cgroup")
    smallest, refused = smallest_budget(small_model, FLAGS)
    middle = smallest + small_model.expert_bytes // 3
    return Promise(small_model, {"smallest": smallest, "middle": middle}, refused)


def run(promise: Promise, which: str, limit: Callable[[int], int]) -> Check:
    budget = promise.budgets[which]
    return run_in_cgroup(
        promise.model, budget, limit(budget), n_words=N_WORDS, n_predict=N_PREDICT, flags=FLAGS
    )


def check_complete(check: Check) -> None:
    assert check.exit_code == 0, check.message
    assert check.prompt_n is not None
    assert check.prompt_n >= N_PROMPT
    assert check.decode_n == N_PREDICT
    assert check.hit_rate is not None, "it was streamed"
    assert check.cached_expert_bytes == 0


@pytest.mark.parametrize("which", ["smallest", "middle"])
def test_the_peak_stays_within_the_budget(promise: Promise, which: str) -> None:
    check = run(promise, which, lambda budget: 2 * budget)
    check_complete(check)
    assert check.peak_bytes is not None
    assert check.peak_bytes <= check.budget_bytes
    assert check.holds


@pytest.mark.parametrize("which", ["smallest", "middle"])
def test_the_budget_is_enough(promise: Promise, which: str) -> None:
    check_complete(run(promise, which, lambda budget: budget))


def test_less_is_refused_with_the_number_that_works(promise: Promise) -> None:
    check = promise.refused
    assert check.budget_bytes < promise.budgets["smallest"]
    assert check.exit_code == 4
    assert check.decode_n is None
    number = promise.budgets["smallest"]
    assert f"--memory {number // MIB}MiB" in check.message, check.message
    assert check.peak_bytes is not None
    assert check.peak_bytes < number // 2, "nothing was loaded before it was refused"


def test_more_than_the_limit_is_refused_with_the_limit(promise: Promise) -> None:
    limit = promise.budgets["smallest"]
    check = run(promise, "middle", lambda _: limit)
    assert check.exit_code == 4
    assert "cannot be had here: it is more than the memory cgroup's limit of" in check.message
    assert f"use --memory {limit // MIB}MiB or less, or raise that limit" in check.message


def test_where_the_limit_is_too_small_it_has_to_be_raised(promise: Promise) -> None:
    number = promise.budgets["smallest"] // MIB
    check = run(promise, "smallest", lambda budget: budget - 2 * MIB)
    assert check.exit_code == 4
    assert f"takes at least {number} MiB; raise that limit to {number} MiB, or use a shorter" in check.message
    assert "--memory" not in check.message


REQUESTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/completions", {"prompt": " the" * 200, "max_tokens": 4}),
    ("/v1/completions", {"prompt": "the quick brown fox " * 4000, "max_tokens": 4}),
    ("/v1/completions", {"prompt": [" the"] * 64, "max_tokens": 1}),
    ("/v1/completions", {"prompt": " the", "max_tokens": 32, "n_probs": 40}),
    ("/v1/completions", {"prompt": " the", "max_tokens": 4, "grammar": 'root ::= ("a" | "b"){0,900}'}),
    ("/tokenize", {"content": "\N{LLAMA}" * 20_000}),
    ("/tokenize", {"content": "a1" * 10_000, "with_pieces": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}] * 200, "max_tokens": 2}),
)


def test_a_busy_server_stays_within_its_budget(promise: Promise, tmp_path: Path) -> None:
    """With the dry run, a default context, a prompt cache and clients that ask for much at once."""
    budget = promise.budgets["middle"] + 192 * MIB
    model = str(promise.model.files[0].path)
    words = (model, "--memory", str(budget), "--load-mode", "streaming", "-np", "2")
    drop_file_cache([Path(model), *library_files()])
    with create_child("guanaco-test", 2 * budget) as child:
        with served(
            *words, environment={"XDG_CACHE_HOME": str(tmp_path)}, command=child.wrap(COMMAND)
        ) as server:

            def ask(number: int) -> int:
                path, body = REQUESTS[number % len(REQUESTS)]
                return server.post(path, body).status_code

            with ThreadPoolExecutor(12) as clients:
                statuses = list(clients.map(ask, range(5 * len(REQUESTS))))
            row = server.get("/v1/models").json()["data"][0]
        peak = child.peak_bytes
    assert set(statuses) <= {200, 400, 413}, "nobody is sent away for now, and nothing breaks"
    assert statuses.count(200) >= len(statuses) // 2
    assert row["mode"] == "streaming"
    assert peak is not None
    assert peak <= budget
