"""Runs the ``guanaco`` command as a user does: in a process of its own."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

COMMAND = (sys.executable, "-m", "guanaco.cli.main")
_LISTENING = re.compile(r"listening on (http://\S+),")
_START_TIMEOUT_S = 90.0


def run_guanaco(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run to the end; output and exit code."""
    return subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def children(pid: int) -> list[int]:
    """Processes started by ``pid`` that are still there."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(status.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


class Command:
    """A running ``guanaco`` whose stderr is read line by line."""

    def __init__(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.process = subprocess.Popen(
            [*command, *words],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._queue.put(line)

    def wait_for(self, pattern: str, timeout_s: float = _START_TIMEOUT_S) -> re.Match[str]:
        """The first stderr line from here on that matches."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                line = self._queue.get(timeout=0.1)
            except queue.Empty:
                ended = self.process.poll() is not None and self._queue.empty()
                assert not ended, f"ended with {self.process.returncode}: {self.lines}"
                assert time.monotonic() < end, f"no line matches {pattern!r}: {self.lines}"
                continue
            match = re.search(pattern, line)
            if match:
                return match

    @property
    def worker_pid(self) -> int:
        (pid,) = children(self.process.pid)
        return pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(2.0)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(2.0)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Served(Command):
    """``guanaco serve`` on a free port."""

    def __init__(self, *words: str, **more: Any) -> None:
        super().__init__("serve", *words, "--port", "0", **more)
        self.url = self.wait_for(_LISTENING.pattern)[1]

    def wait_ready(self) -> Served:
        self.wait_for(r"\[guanaco\] ready")
        return self

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **more)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **more)

    def metric(self, name: str) -> float:
        """One sample of ``/metrics``, by its full name with labels."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")


@contextlib.contextmanager
def served(*words: str, **more: Any) -> Iterator[Served]:
    """Started and ready; ended at the end. ``more`` as for ``Command``."""
    server = Served(*words, **more)
    try:
        yield server.wait_ready()
    finally:
        server.close()


@contextlib.contextmanager
def asked(server: Served, body: dict[str, object], **more: object) -> Iterator[None]:
    """A request whose client leaves at the end of the block."""
    content = httpx.Request("POST", server.url, json={**body, **more}).read()
    where = urlsplit(server.url)
    with socket.create_connection((str(where.hostname), where.port or 0)) as connection:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
        yield
