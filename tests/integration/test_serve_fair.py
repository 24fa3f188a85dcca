"""Several clients of one model: short requests beside long prompts, and prompts that wait for each other."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from guanaco.model.map import ModelMap
from tests.support.cli import Served, asked, served, wait_until

N_UBATCH = 64
LONG_TOKENS = 14 * N_UBATCH
ONE = {"prompt": [1], "max_tokens": 1}


@pytest.fixture(scope="module")
def server(small_model: ModelMap) -> Iterator[Served]:
    words = (
        "--memory",
        "900MiB",
        "--load-mode",
        "streaming",
        "-c",
        "16384",
        "-np",
        "4",
        "-ub",
        str(N_UBATCH),
    )
    with served(str(small_model.files[0].path), *words) as running:
        yield running


def long_prompt(seed: int, **more: object) -> dict[str, Any]:
    rng = random.Random(seed)
    return {"prompt": [rng.randrange(3, 30_000) for _ in range(LONG_TOKENS)], "max_tokens": 1, **more}


class Asked(threading.Thread):
    """A request in the background."""

    def __init__(self, server: Served, body: dict[str, Any], path: str = "/v1/completions") -> None:
        super().__init__(daemon=True)
        self._server, self._body, self._path = server, body, path
        self.status, self.text = 0, ""
        self.ended_s = 0.0
        self.start()

    def run(self) -> None:
        answer = self._server.post(self._path, self._body)
        self.status, self.text = answer.status_code, answer.text
        self.ended_s = time.monotonic()


def n_batches(server: Served) -> int:
    return int(server.metric("llamacpp:n_decode_total"))


@pytest.mark.parametrize("turn", range(4))
def test_one_token_beside_a_long_prompt_waits_two_batches_at_most(server: Served, turn: int) -> None:
    """Whatever was answered in the slots before."""
    for _ in range(turn):
        assert server.post("/v1/completions", ONE).status_code == 200
    long = Asked(server, long_prompt(turn))
    wait_until(lambda: server.metric("llamacpp:requests_processing") == 1, 5, "it is being read")
    before = n_batches(server)
    assert server.post("/v1/completions", ONE).status_code == 200
    # Asking for the counter may itself wait for one more.
    assert n_batches(server) - before <= 2 + 1
    assert long.is_alive(), "it was answered while the long one was still being read"
    long.join(60)
    assert long.status == 200


def test_long_prompts_are_read_in_the_order_they_came(server: Served) -> None:
    """Streaming or not; with the engine's own choice the last of three comes first."""
    asked = []
    for seed in range(3):
        asked.append(Asked(server, long_prompt(10 + seed)))
        time.sleep(0.2)
    assert Asked(server, ONE).is_alive()
    for thread in asked:
        thread.join(90)
    assert [thread.status for thread in asked] == [200] * 3
    ended = [thread.ended_s for thread in asked]
    assert ended == sorted(ended)


def test_a_queue_is_counted_and_served(server: Served) -> None:
    asked = [Asked(server, {**ONE, "max_tokens": 40, "ignore_eos": True}) for _ in range(12)]
    wait_until(lambda: server.metric("guanaco_requests_waiting") > 0, 5, "some wait")
    for thread in asked:
        thread.join(60)
    assert [thread.status for thread in asked] == [200] * 12
    assert server.metric("guanaco_requests_waiting") == 0


def test_a_stream_that_waits_for_its_turn_is_kept_alive(server: Served) -> None:
    long = Asked(server, long_prompt(20))
    wait_until(lambda: server.metric("guanaco_requests_in_flight") == 1, 5, "it is being read")
    body = long_prompt(21, stream=True, sse_ping_interval=1)
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines) == ":"
        assert long.is_alive(), "a comment while it waits"
        assert [line for line in lines if line.startswith("data: ")][-1] == "data: [DONE]"
    long.join(60)
    assert long.status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_the_next_long_prompt_is_read_while_the_one_before_is_answered(server: Served, stream: bool) -> None:
    first = Asked(server, long_prompt(30, stream=stream, max_tokens=300, ignore_eos=True))
    wait_until(lambda: server.metric("guanaco_requests_in_flight") == 1, 5, "it is being read")
    assert server.post("/v1/completions", long_prompt(31)).status_code == 200
    assert first.is_alive(), "the first is still being answered"
    first.join(60)
    assert first.status == 200


def test_history_does_not_put_a_long_prompt_before_others(server: Served) -> None:
    """Conversations that begin alike: a short one, a long one, and one token beside it."""
    system = {"role": "system", "content": "Answer briefly and in the language of the question. " * 8}

    def chat(text: str) -> dict[str, Any]:
        return {"messages": [system, {"role": "user", "content": text}], "max_tokens": 1}

    assert server.post("/v1/chat/completions", chat("hi")).status_code == 200
    long = Asked(server, chat("once more " * 300), "/v1/chat/completions")
    wait_until(lambda: server.metric("llamacpp:requests_processing") == 1, 5, "it is being read")
    before = n_batches(server)
    assert server.post("/v1/completions", ONE).status_code == 200
    assert n_batches(server) - before <= 2 + 1
    assert long.is_alive()
    long.join(60)
    assert long.status == 200


def test_who_waits_for_a_slot_hears_that_the_server_ends(small_model: ModelMap) -> None:
    words = ("--memory", "900MiB", "--load-mode", "streaming", "-c", "8192", "-np", "2", "-ub", "64")
    endless = {**ONE, "max_tokens": 4000, "ignore_eos": True}
    with served(str(small_model.files[0].path), *words) as ending:
        held = [Asked(ending, {**endless, "stream": True}) for _ in range(2)]
        wait_until(lambda: ending.metric("llamacpp:requests_processing") == 2, 5, "both slots are taken")
        waiting = [
            Asked(ending, {**endless, **more})
            for more in ({}, {"stream": True}, {"stream": True, "sse_ping_interval": 1}, {"n": 2})
        ]
        wait_until(lambda: ending.metric("guanaco_requests_waiting") == 4, 5, "the others wait")
        time.sleep(1.5)
        ending.signal(signal.SIGINT)
        assert ending.wait(5) == 130
        for thread in (*held, *waiting):
            thread.join(5)
        assert [thread.status for thread in waiting] == [500, 500, 200, 500]
        for thread in waiting:
            assert "the server is shutting down" in thread.text
        assert [line for line in ending.lines if "warning" in line] == []


@pytest.mark.parametrize("body", [{"prompt": [4, 5]}, {"prompt": [4, 5], "stream": True}, long_prompt(40)])
def test_who_leaves_while_another_gets_tokens_frees_the_slot(server: Served, body: dict[str, Any]) -> None:
    """In the answer or the prompt, with a stream or without; the other is answered as before."""
    other_body = {"prompt": [5, 6], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=other_body, timeout=60) as other:
        lines = other.iter_lines()
        next(lines)
        with asked(server, {**body, "max_tokens": 2000, "ignore_eos": True}):
            wait_until(lambda: server.metric("llamacpp:requests_processing") == 2, 5, "both are answered")
        wait_until(lambda: server.metric("llamacpp:requests_processing") == 1, 1.0, "one slot is free")
        assert next(line for line in lines if line).startswith("data: ")
