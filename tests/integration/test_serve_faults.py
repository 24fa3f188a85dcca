"""Failing reads as a client of ``guanaco serve`` and a user of ``guanaco run`` see them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from guanaco.cli.demo import demo_model
from guanaco.engine.native import StatsFile
from tests.support.cli import Command, Served, children, served, wait_until
from tests.support.testing_cli import TESTING_COMMAND, stats_of

MODEL = str(demo_model())
STREAMED = (MODEL, "--load-mode", "streaming", "--guanaco-max-experts", "9", "--memory", "256MiB")
PERU = {"messages": [{"role": "user", "content": "What is the capital of Peru?"}], "temperature": 0}
ANSWER = "The capital of Peru is Lima."
LONG = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "ignore_eos": True,
    "max_tokens": 900,
    "stream": True,
}


class Stream:
    """A client in the middle of a stream."""

    def __init__(self, server: Served) -> None:
        self.lines: list[str] = []
        self.started = threading.Event()
        self._url = f"{server.url}/v1/chat/completions"
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self.started.wait(30), "the stream began"

    def _listen(self) -> None:
        with httpx.stream("POST", self._url, json=LONG, timeout=60) as response:
            for line in response.iter_lines():
                self.lines.append(line)
                self.started.set()

    def last_event(self) -> dict[str, Any]:
        self._thread.join(30)
        assert not self._thread.is_alive()
        last = [line for line in self.lines if line.startswith("data: ")][-1]
        event: dict[str, Any] = json.loads(last.removeprefix("data: "))
        return event


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(*STREAMED, "-np", "2", "-c", "2048", command=TESTING_COMMAND) as running:
        yield running


@pytest.fixture
def faults(server: Served) -> Iterator[StatsFile]:
    controls = stats_of(server.worker_pid)
    yield controls
    controls.control("fail_slices", 0)


def answer_of(server: Served) -> str:
    response = server.post("/v1/chat/completions", PERU)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def check_error(error: dict[str, Any]) -> None:
    assert error["message"].startswith("Compute error: reading expert ")
    assert f"from {MODEL} failed: Input/output error" in error["message"]
    assert error["code"] == 500
    assert error["type"] == "server_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_answer_that_cannot_be_computed_is_an_error_with_its_reason(
    server: Served, faults: StatsFile, path: str
) -> None:
    assert answer_of(server) == ANSWER
    faults.control("fail_slices", 1)
    body = (
        {**PERU, "cache_prompt": False} if "chat" in path else {"prompt": "Once upon a time", "max_tokens": 8}
    )
    response = server.post(path, body)
    assert response.status_code == 500
    check_error(response.json()["error"])
    assert server.metric(f'guanaco_requests_total{{path="{path}",status="500"}}') == 1
    assert answer_of(server) == ANSWER
    assert server.get("/health").status_code == 200


def test_a_stream_ends_with_an_error_event(server: Served, faults: StatsFile) -> None:
    stream = Stream(server)
    faults.control("fail_slices", 1)
    check_error(stream.last_event()["error"])
    assert answer_of(server) == ANSWER


def test_only_the_requests_of_the_batch_fail(server: Served, faults: StatsFile) -> None:
    both = [Stream(server), Stream(server)]
    waiting: list[str] = []
    third = threading.Thread(target=lambda: waiting.append(answer_of(server)), daemon=True)
    third.start()
    wait_until(lambda: server.metric("guanaco_requests_waiting") == 1, 10, "the third waits for a slot")
    assert server.metric("llamacpp:requests_processing") == 2
    faults.control("fail_slices", 1)
    for stream in both:
        check_error(stream.last_event()["error"])
    third.join(30)
    assert waiting == [ANSWER]
    wait_until(lambda: server.metric("llamacpp:requests_processing") == 0, 10, "nothing is left running")
    assert server.metric("guanaco_expert_unmanaged_total") == 0


def test_a_run_ends_with_the_reason() -> None:
    command = Command(
        "run", *STREAMED, "Tell me a story", "-n", "1000", "--temp", "3", command=TESTING_COMMAND
    )
    try:
        command.wait_for("reading experts with")
        (worker,) = children(command.process.pid)
        stats_of(worker).control("fail_slices", 1)
        assert command.wait(10) == 5
        error = command.lines[-1]
        assert error.startswith("guanaco: error: the engine could not answer: Compute error: reading expert ")
        assert "read_errors=1" in command.lines[-2]
    finally:
        command.close()


_ASKED = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (
            "completions",
            {"grammar": 'root ::= "a"', "grammar_lazy": True, "grammar_triggers": [{"type": 99}]},
            400,
        ),
        ("completions", {"grammar": 'root ::= "a"{5,3}'}, 400),
        ("completions", {"json_schema": {"type": "string", "pattern": "^(a{ 1900 }){ 1900 }$"}}, 413),
        ("completions", {"n_predict": 1000, "n_probs": 1000, "ignore_eos": True}, 413),
        ("completions", {"samplers": "e" * 50_000, "repeat_last_n": 1 << 18}, 400),
        ("completions", {"samplers": ["dry"] * 64, "dry_multiplier": 1, "dry_penalty_last_n": 1 << 18}, 413),
        (
            "chat/completions",
            {"response_format": {"json_schema": {"schema": {"type": "string", "pattern": "^a{3,1}$"}}}},
            413,
        ),
        ("completions", {"json_schema": {"type": "integer", "const": -9223372036854775808}}, 400),
        ("completions", {"json_schema": {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}}, 400),
        (
            "chat/completions",
            {
                "response_format": {
                    "json_schema": {"schema": {"type": "string", "minLength": 5, "maxLength": 2}}
                }
            },
            400,
        ),
        ("completions", {"grammar": '%llguidance {}\nstart: %json {"type":"integer","const":-1e19}'}, 400),
        ("completions", {"dry_multiplier": 1, "dry_sequence_breakers": ["abc"] * 9000}, 400),
        ("completions", {"json_schema": {"type": "string", "pattern": "{" + "1" * 60_000}}, 413),
        ("completions", {"n_probs": 10**400}, 400),
        (
            "chat/completions",
            {"response_format": {"json_schema": {"schema": {"type": "integer", "minimum": 2**53 - 1}}}},
            400,
        ),
        (
            "chat/completions",
            {"response_format": {"json_schema": {"schema": {"type": "integer", "maximum": 1 - 2**63}}}},
            400,
        ),
    ],
)
def test_what_would_end_the_engine_or_take_its_memory_is_refused(
    path: str, body: dict[str, object], status: int
) -> None:
    start = {"messages": _ASKED} if "chat" in path else {"prompt": "a"}
    with served(
        MODEL, "--load-mode", "streaming", "--guanaco-max-experts", "9", "--memory", "256MiB"
    ) as server:
        answer = server.post(f"/v1/{path}", {**start, "max_tokens": 1, **body})
        assert answer.status_code == status, answer.text
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        peak = server.get("/v1/models").json()["data"][0]["memory"]
        assert peak["peak_bytes"] < peak["budget_bytes"] // 2
