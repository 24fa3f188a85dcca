"""A benchmark that is killed leaves nothing running, busy neighbours included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guanaco.cli.demo import demo_model


def of_session(session: int) -> list[int]:
    """Processes that were started by whoever leads the session, and theirs."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if folder.name.isdecimal() and int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def wait_until(count_from: int, session: int, *, more: bool, within_s: float) -> int:
    """Waits until there are at least, or at most, so many processes; returns how many."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        count = len(of_session(session))
        if count >= count_from if more else count <= count_from:
            return count
        time.sleep(0.1)
    return len(of_session(session))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_benchmark_leaves_nothing_running(end: signal.Signals) -> None:
    command = [
        sys.executable, "-m", "guanaco.cli.main", "bench", str(demo_model()), "--resident", "--ways", "plain",
        "--busy", "2", "--runs", "50", "--prompt", "8", "--decode", "500",
    ]  # fmt: skip
    bench = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        # The run, its worker (a session of its own) and two busy loops.
        assert wait_until(4, bench.pid, more=True, within_s=60) >= 4
        os.kill(bench.pid, end)
        bench.wait(timeout=20)
        assert wait_until(0, bench.pid, more=False, within_s=10) == 0
    finally:
        for pid in of_session(bench.pid):
            os.kill(pid, signal.SIGKILL)
