"""Folders of killed processes go, folders of living ones stay, whoever starts at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from guanaco.engine import leftovers
from guanaco.engine.launch import RunFiles

HOLDER = """
import sys
from pathlib import Path
from guanaco.engine import leftovers
parent = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    leftovers.sweep(parent)
    folder, lock = leftovers.claim(parent)
    (folder / "plan").write_text("x")
print(folder, flush=True)
sys.stdin.readline()
print((folder / "plan").read_text(), flush=True)
"""


class Holder:
    """Another process that claims folders and keeps them until it is told to go on."""

    def __init__(self, parent: Path, count: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(parent), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def holders() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(holders: ExitStack, parent: Path, count: int = 1) -> Holder:
    holder = Holder(parent, count)
    holders.callback(holder.close)
    return holder


def test_what_a_killed_owner_left_is_removed_and_the_living_keep_theirs(
    holders: ExitStack, tmp_path: Path
) -> None:
    killed, alive = started(holders, tmp_path), started(holders, tmp_path)
    left, kept = Path(killed.line()), Path(alive.line())
    own, lock = leftovers.claim(tmp_path)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()
    assert left.exists()
    leftovers.sweep(tmp_path)
    assert not left.exists()
    assert kept.exists()
    assert own.exists()
    assert own.stat().st_mode & 0o077 == 0
    assert alive.go_on() == "x"
    os.close(lock)


def test_starts_at_the_same_time_leave_each_other_alone(holders: ExitStack, tmp_path: Path) -> None:
    together = [started(holders, tmp_path, 50) for _ in range(4)]
    folders = {holder.line() for holder in together}
    assert len(folders) == len(together)
    leftovers.sweep(tmp_path)
    assert [holder.go_on() for holder in together] == ["x"] * 4


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("kept")
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / f"{leftovers.PREFIX}link").symlink_to(elsewhere)
    (parent / f"{leftovers.PREFIX}file").write_text("kept")
    (parent / "guanaco-other").mkdir()
    (parent / f".{leftovers.PREFIX}new").mkdir()
    leftovers.sweep(parent)
    assert len(list(parent.iterdir())) == 4
    assert (elsewhere / "file").read_text() == "kept"


def test_a_folder_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        leftovers.claim(tmp_path / "none")


def test_run_files_may_be_removed_twice() -> None:
    files = RunFiles()
    files.remove()
    before = os.open(os.devnull, os.O_RDONLY)
    files.remove()
    os.close(before)  # it was not taken for the lock
