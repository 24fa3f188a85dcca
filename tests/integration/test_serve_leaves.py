"""Clients that leave in the queue, the prompt and the answer, streaming or not; nothing stays behind."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.engine.memory import resident_bytes
from guanaco.model.map import ModelMap
from guanaco.units import MIB
from tests.support.cli import Served, asked, served, wait_until

PROMPT_TOKENS = 12_000  # one batch of 2,048 alone takes longer than all that is allowed here
SHORT = {"prompt": [1, 2, 3], "max_tokens": 1}
TIMES = int(os.environ.get("GUANACO_LEAVES", "40"))


@pytest.fixture(scope="module")
def server(small_model: ModelMap) -> Iterator[Served]:
    words = ("--memory", "900MiB", "--load-mode", "streaming", "-c", "16384", "-np", "1", "-ub", "2048")
    with served(str(small_model.files[0].path), *words) as running:
        yield running


def long_prompt(seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    return {"prompt": [rng.randrange(3, 30_000) for _ in range(PROMPT_TOKENS)], "max_tokens": 4}


def free_after_s(server: Served) -> float:
    """How long it takes until another request is answered."""
    began_s = time.monotonic()
    assert server.post("/v1/completions", SHORT).status_code == 200
    return time.monotonic() - began_s


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_in_the_prompt_frees_the_slot_at_once(server: Served, stream: bool) -> None:
    whole_s = free_after_s(server)
    with asked(server, long_prompt(1), stream=stream):
        wait_until(lambda: server.metric("guanaco_requests_in_flight") == 1, 5, "it is being read")
        time.sleep(1.0)
        assert server.metric("guanaco_requests_in_flight") == 1, "the prompt is long enough"
    wait_until(lambda: server.metric("llamacpp:requests_processing") == 0, 1.5, "the slot is free")
    assert free_after_s(server) < whole_s + 1.0


def test_who_leaves_beside_others_does_them_no_harm(server: Served) -> None:
    """With one slot the second waits: what the first left behind is given up, the second is answered."""
    expected = server.post("/v1/completions", {**SHORT, "temperature": 0}).json()["choices"][0]["text"]
    for seed in range(3):
        with asked(server, long_prompt(10 + seed)):
            time.sleep(0.8)
        answer = server.post("/v1/completions", {**SHORT, "temperature": 0})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == expected


def test_many_leave_and_nothing_stays(server: Served) -> None:
    rng = random.Random(5)

    def descriptors() -> list[int]:
        return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]

    pids = (server.process.pid, server.worker_pid)
    before: tuple[list[int], list[int]] | None = None
    for turn in range(TIMES):
        stream = bool(turn % 2)
        phase = ("queue", "prompt", "answer")[turn % 3]
        if phase == "answer":
            with asked(server, {**SHORT, "max_tokens": 4000, "ignore_eos": True}, stream=stream):
                time.sleep(rng.uniform(0.1, 0.3))
        elif phase == "prompt":
            with asked(server, long_prompt(turn), stream=stream):
                time.sleep(rng.uniform(0.0, 0.3))
        else:
            with asked(server, long_prompt(turn), stream=True), asked(server, SHORT, stream=stream):
                time.sleep(rng.uniform(0.0, 0.2))
        assert free_after_s(server) < 4.0, f"turn {turn}: left in the {phase}"
        if turn == 8:
            before = ([resident_bytes(pid) or 0 for pid in pids], descriptors())
    assert before is not None
    wait_until(lambda: server.metric("guanaco_requests_in_flight") == 0, 2, "nothing in flight")
    for pid, resident, now in zip(pids, before[0], [resident_bytes(pid) or 0 for pid in pids], strict=True):
        assert now < resident + 24 * MIB, pid
    wait_until(
        lambda: all(a <= b + 2 for a, b in zip(descriptors(), before[1], strict=True)), 8, "descriptors"
    )
    assert server.metric("guanaco_expert_read_errors_total") == 0
    assert server.metric("guanaco_expert_unmanaged_total") == 0
