"""Starting, watching and ending a worker process, with a fake one."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guanaco.engine import process as process_module
from guanaco.engine.process import WorkerProcess
from guanaco.errors import EngineError, WorkerDiedError
from tests.support import fake_worker

COMMAND = (sys.executable, fake_worker.__file__)


def start(behaviour: str, **more: object) -> WorkerProcess:
    environment = {**os.environ, "FAKE_WORKER": behaviour}
    return WorkerProcess(COMMAND, json.dumps({"a": 1}), environment, **more)  # type: ignore[arg-type]


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    process = start(request.param)
    yield process
    process.stop(1.0)
    assert not Path(f"/proc/{process.pid}").exists()


def address_of(process: WorkerProcess) -> str:
    for event in process.events(0.05):
        if event is not None and event["event"] == "ready":
            return str(event["address"])
    raise AssertionError("no ready event")


@pytest.mark.parametrize("worker", ["ready"], indirect=True)
def test_events_arrive_and_stop_is_not_a_death(worker: WorkerProcess) -> None:
    assert address_of(worker).startswith("127.0.0.1:")
    assert worker.is_running
    worker.stop(1.0)
    assert not worker.is_running
    assert worker.died is None


@pytest.mark.parametrize("worker", ["deaf"], indirect=True)
def test_a_worker_that_does_not_listen_is_killed(worker: WorkerProcess) -> None:
    address_of(worker)
    began = time.monotonic()
    worker.stop(0.3)
    assert 0.25 < time.monotonic() - began < 2.0
    assert not worker.is_running


@pytest.mark.parametrize("worker", ["silent"], indirect=True)
def test_ticks_come_while_nothing_happens(worker: WorkerProcess) -> None:
    events = worker.events(0.05)
    assert next(event for event in events if event is not None)["event"] == "loading"
    assert next(events) is None


def test_a_death_is_reported_with_its_reason() -> None:
    seen: list[WorkerDiedError] = []
    called = threading.Event()

    def on_death(problem: WorkerDiedError) -> None:
        seen.append(problem)
        called.set()

    process = start(f"signal:{int(signal.SIGSEGV)}", on_death=on_death)
    assert called.wait(10)
    assert process.explain_loss(5.0) is seen[0]
    assert "killed by SIGSEGV" in seen[0].message
    assert seen[0].exit_code == 6
    assert seen[0].details == {"return_code": -signal.SIGSEGV}
    process.stop(1.0)


def test_an_exit_carries_the_last_words() -> None:
    process = start("exit:3")
    problem = process.explain_loss(10.0)
    assert problem is not None
    assert "code 3; its last words: RuntimeError: all is lost" in problem.message
    assert next(process.events(0.05)) is not None
    process.stop(1.0)


def test_words_of_long_before_are_not_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_LAST_WORDS_S", 0.2)
    for pause_s, has_words in ((0.0, True), (0.6, False)):
        process = start(f"complain:{pause_s}")
        problem = process.explain_loss(10.0)
        assert problem is not None
        assert "killed by SIGSEGV" in problem.message
        assert ("last words: somebody else's schema" in problem.message) is has_words
        process.stop(1.0)


def test_the_log_is_read_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="guanaco.engine"):
        process = start("error")
        process.explain_loss(10.0)
    assert process.last_errors() == ["error loading model: the file is made of cheese"]
    assert "0.00.000.001 I starting" in caplog.messages
    process.stop(1.0)


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(EngineError, match="the worker /nowhere/python cannot be started: No such file"):
        WorkerProcess(("/nowhere/python",), "{}", {})


def test_only_the_main_thread_may_start_one() -> None:
    problems: list[Exception] = []

    def attempt() -> None:
        try:
            start("ready")
        except RuntimeError as problem:
            problems.append(problem)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(problems[0])


def test_large_settings_do_not_block() -> None:
    environment = {**os.environ, "FAKE_WORKER": "ready"}
    process = WorkerProcess(COMMAND, json.dumps({"text": "x" * 300_000}), environment)
    assert address_of(process)
    process.stop(1.0)


def test_a_worker_that_reads_no_settings_is_no_broken_pipe() -> None:
    process = WorkerProcess((sys.executable, "-c", "pass"), "x" * 300_000, dict(os.environ))
    problem = process.explain_loss(10.0)
    assert problem is not None
    assert "exited by itself with code 0" in problem.message
    process.stop(1.0)
