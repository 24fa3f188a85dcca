"""Every way a served model can end: signals, a killed worker, a killed parent, a bad start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from guanaco.cli.demo import demo_model
from guanaco.engine.spin import spin_count
from tests.support.cli import Served, children, is_alive, run_guanaco, served, wait_until

MODEL = str(demo_model())
STREAMED = (MODEL, "--load-mode", "streaming", "--guanaco-max-experts", "9", "--memory", "256MiB")
LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "stream": True}


class Listener:
    """A client in the middle of a stream."""

    def __init__(self, server: Served) -> None:
        self.text = ""
        self.problem: httpx.HTTPError | None = None
        self._started = threading.Event()
        self._url = f"{server.url}/v1/chat/completions"
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._started.wait(30), "the stream began"

    def _listen(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=LONG, timeout=60) as response:
                for chunk in response.iter_text():
                    self.text += chunk
                    self._started.set()
        except httpx.HTTPError as problem:
            self.problem = problem

    def wait(self) -> str:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.text

    @property
    def last_event(self) -> dict[str, dict[str, object]]:
        lines = [line for line in self.wait().splitlines() if line.startswith("data: ")]
        event: dict[str, dict[str, object]] = json.loads(lines[-1].removeprefix("data: "))
        return event


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_a_killed_worker_ends_the_stream_with_a_reason() -> None:
    with served(*STREAMED) as server:
        worker = server.worker_pid
        plan = Path(environment_of(worker)["GUANACO_PLAN"])
        listener = Listener(server)
        os.kill(worker, signal.SIGKILL)
        event = listener.last_event
        assert listener.problem is None, "the stream ended in order"
        assert event["error"]["type"] == "worker_died"
        assert "killed by SIGKILL" in str(event["error"]["message"])
        assert server.wait(5) == 6
        assert server.lines[-1].startswith("guanaco: error: the worker was killed by SIGKILL; the kernel's")
        assert not is_alive(worker)
        with pytest.raises(httpx.ConnectError):
            server.get("/health")
        assert not plan.parent.exists()


@pytest.mark.parametrize("words", [STREAMED, (MODEL, "--memory", "512MiB")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_mid_stream_ends_everything_soon(number: signal.Signals, words: tuple[str, ...]) -> None:
    with served(*words) as server:
        worker = server.worker_pid
        plan = environment_of(worker).get("GUANACO_PLAN")
        assert (plan is not None and Path(plan).exists()) == (words == STREAMED)
        listener = Listener(server)
        began = time.monotonic()
        server.signal(number)
        assert server.wait(3) == 128 + number
        assert time.monotonic() - began < 3
        assert not is_alive(worker)
        listener.wait()
        assert not [line for line in server.lines if "Traceback" in line or "error" in line]
        assert plan is None or not Path(plan).parent.exists()


def test_ctrl_c_tells_open_streams_why() -> None:
    with served(*STREAMED) as server:
        listener = Listener(server)
        server.signal(signal.SIGINT)
        assert "shutting down" in str(listener.last_event["error"]["message"])
        assert server.wait(3) == 130
        assert server.lines[-1].startswith("[Guanaco HerdCache] final: "), "the counters are not lost"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_loading(number: signal.Signals) -> None:
    server = Served(*STREAMED)
    try:
        wait_until(lambda: children(server.process.pid), 20, "the worker started")
        worker = server.worker_pid
        server.signal(number)
        assert server.wait(3) == 128 + number
        assert not is_alive(worker)
    finally:
        server.close()


def test_the_worker_does_not_spin_and_hides_its_library() -> None:
    with served(*STREAMED) as server:
        environment = environment_of(server.worker_pid)
        given = os.environ.get("GOMP_SPINCOUNT")
        # A probe of another process: the same processor, not the same nanosecond.
        expected = int(given) if given else spin_count(is_bound=True)
        assert 0.2 <= int(environment["GOMP_SPINCOUNT"]) / expected <= 2
        assert environment["MALLOC_ARENA_MAX"] == os.environ.get("MALLOC_ARENA_MAX", "2")
        assert environment["LD_PRELOAD"].endswith("libguanaco.so")


def test_a_killed_parent_takes_its_worker_along() -> None:
    with served(*STREAMED) as server:
        worker = server.worker_pid
        plan = Path(environment_of(worker)["GUANACO_PLAN"])
        server.signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(worker), 3, "the worker ended")
        assert plan.exists(), "nobody was left to remove it"
    with served(*STREAMED) as server:
        assert not plan.parent.exists(), "the next start did"
        assert Path(environment_of(server.worker_pid)["GUANACO_PLAN"]).exists()


def test_health_says_loading_until_it_is_ready() -> None:
    server = Served(*STREAMED)
    try:
        states = set()
        while not any("ready" in line for line in server.lines):
            response = server.get("/health")
            states.add(response.status_code)
            if response.status_code == 503:
                assert response.json()["error"]["message"] == "the model is still loading"
                assert response.headers["retry-after"] == "1"
                assert server.post("/v1/chat/completions", LONG).status_code in (503, 200)
        assert 503 in states
        assert server.get("/health").status_code == 200
    finally:
        server.close()


def test_a_port_in_use_is_refused_before_loading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_guanaco("serve", *STREAMED, "--port", str(port))
    assert result.returncode == 7
    error = result.stderr.splitlines()[-1]
    assert error.startswith(f"guanaco: error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "[guanaco] ready" not in result.stderr


def test_an_address_that_is_not_ours() -> None:
    result = run_guanaco("serve", *STREAMED, "--host", "203.0.113.7", "--api-key", "k")
    assert result.returncode == 7
    assert "cannot listen on 203.0.113.7" in result.stderr


def test_a_budget_that_cannot_work_is_refused_before_the_port_opens() -> None:
    words = (MODEL, "--load-mode", "streaming", "--memory", "1MiB", "--port", "0")
    result = run_guanaco("serve", *words)
    assert result.returncode == 4
    assert "listening" not in result.stderr
    number = result.stderr.rpartition("use --memory ")[2].split(",")[0]
    with served(MODEL, "--load-mode", "streaming", "--memory", number) as server:
        assert server.get("/health").status_code == 200


@pytest.mark.parametrize("spare", [0, 1])
def test_each_of_as_many_threads_as_processors_has_one(spare: int) -> None:
    """With a processor to spare, or only one, the kernel goes on choosing."""
    cpus = os.sched_getaffinity(0)
    n_threads = max(1, len(cpus) - spare)
    with served(*STREAMED, "-t", str(n_threads)) as server:
        assert server.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4}).status_code == 200
        allowed = []
        for status in Path(f"/proc/{server.worker_pid}/task").glob("*/status"):
            (words,) = re.findall(r"Cpus_allowed_list:\s+(\S+)", status.read_text())
            allowed.append(words)
    bound = {int(words) for words in allowed if words.isdecimal()}
    if len(cpus) > 1:
        assert bound == (set() if spare else cpus)
