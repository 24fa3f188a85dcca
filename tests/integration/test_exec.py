"""``guanaco exec`` with a llama.cpp program of our own: the same tokens, and every way it can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guanaco.cli.demo import demo_model
from tests.gates.cell import Job
from tests.support.cli import COMMAND, children, is_alive, wait_until

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(demo_model())
STREAMED = ("exec", "-m", MODEL, "--memory", "256MiB", "--guanaco-max-experts", "9", "-c", "512")
CELL = (sys.executable, "-m", "tests.gates.cell")
JOB = Job(MODEL, n_ubatch=16, n_ctx=512, n_threads=1, prompts=[[5, 6, 7], [300]], n_tokens=24, n_logits=24)
LOADED = (
    "import signal, sys, time\n"
    "from tests.support.capi import Model\n"
    f"model = Model({MODEL!r}, n_ctx=256, n_batch=16, n_ubatch=16, n_threads=1)\n"
    "model.decode([5, 6, 7])\n"
)


def run(*words: str, job: Job | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        input="" if job is None else job.to_json(),
        env={**os.environ, "GOMP_SPINCOUNT": "1000", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def execute(*program: str, job: Job | None = None) -> subprocess.CompletedProcess[str]:
    return run(*COMMAND, *STREAMED, "--", *program, job=job)


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_the_same_tokens_and_logits_as_without() -> None:
    alone = run(*CELL, job=JOB)
    assert alone.returncode == 0, alone.stderr
    streamed = execute(*CELL, job=JOB)
    assert streamed.returncode == 0, streamed.stderr
    assert json.loads(streamed.stdout) == json.loads(alone.stdout)
    (final,) = [line for line in streamed.stderr.splitlines() if "[Guanaco HerdCache] final: " in line]
    assert "unmanaged=0" in final
    assert "read_errors" not in final
    assert "bytes_read=0" not in final
    assert "error" not in streamed.stderr


@pytest.mark.parametrize("word", ["--no-mmap", "--mlock", "--check-tensors"])
def test_words_that_would_load_the_weights_are_refused(word: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    result = execute("touch", str(ran), word)
    assert result.returncode == 2
    assert result.stderr.startswith(f"guanaco: error: {word} cannot be used with exec: ")
    assert result.stderr.count("\n") == 1
    assert not ran.exists()


def test_without_streaming_there_is_nothing_to_do() -> None:
    result = run(*COMMAND, "exec", "-m", MODEL, "--load-mode", "mmap", "--", "true")
    assert result.returncode == 2
    assert "run the program by itself" in result.stderr


def test_a_program_that_never_maps_the_model() -> None:
    result = execute("true")
    assert result.returncode == 5
    error = result.stderr.splitlines()[-1]
    assert error.startswith("guanaco: error: true never mapped the model through the preloaded library")
    assert "libggml-base" in error


def test_a_program_that_is_not_there() -> None:
    result = execute("no-such-llama-server")
    assert result.returncode == 2
    assert (
        result.stderr.splitlines()[-1]
        == "guanaco: error: no-such-llama-server cannot be started: No such file or directory"
    )


@pytest.mark.parametrize("program", ["", LOADED], ids=["before loading", "after decoding"])
def test_its_exit_code_is_ours(program: str) -> None:
    result = execute(*python(f"{program}import sys; sys.exit(7)"))
    assert result.returncode == 7
    assert ("[Guanaco HerdCache] final: " in result.stderr) == bool(program)
    assert ("never mapped the model" in result.stderr) == (not program)
    assert "Traceback" not in result.stderr


class Running:
    """``guanaco exec`` of a Python program that says when it is ready."""

    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *STREAMED, "--", *python(f"{LOADED}{text}")],
            cwd=ROOT,
            env={**os.environ, "GOMP_SPINCOUNT": "1000"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        (self.program,) = children(self.process.pid)

    def end(self) -> tuple[int, str]:
        _, log = self.process.communicate(timeout=10)
        assert not is_alive(self.program)
        return self.process.returncode, log


WAIT = "print('ready', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    handler = f"signal.signal({int(number)}, lambda *_: sys.exit(9))\n"
    running = Running(handler + WAIT)
    running.process.send_signal(number)
    code, log = running.end()
    assert code == 9
    assert "[Guanaco HerdCache] final: " in log


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    running = Running(WAIT)
    began = time.monotonic()
    running.process.terminate()
    code, log = running.end()
    assert time.monotonic() - began < 3
    assert code == 128 + signal.SIGTERM
    assert "error" not in log
    assert "[Guanaco HerdCache] final: " in log


def test_an_end_nobody_asked_for_has_a_reason() -> None:
    running = Running(WAIT)
    plan = Path(_environment(running.program)["GUANACO_PLAN"])
    assert plan.exists()
    os.kill(running.program, signal.SIGKILL)
    code, log = running.end()
    assert code == 6
    assert log.splitlines()[-1].startswith(
        f"guanaco: error: {sys.executable} was killed by SIGKILL; the kernel's"
    )
    assert "the worker" not in log
    wait_until(lambda: not plan.parent.exists(), 2, "its files are gone")


def test_the_program_does_not_outlive_a_guanaco_that_is_killed() -> None:
    running = Running(WAIT)
    os.kill(running.process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(running.program), 3, "the program ended")
    running.end()


def _environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
