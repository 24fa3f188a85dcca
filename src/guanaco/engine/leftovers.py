"""Private folders that do not outlive their owner for long.

Owns making one, held by a lock on the folder itself, and removing those whose lock nobody holds any more:
the kernel drops it however a process ends, SIGKILL included. Leaves what is in them to ``launch``. Touches no
folder of another user, and none of a process that lives, in another container too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "guanaco-run-"


def claim(parent: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that holds it; close that after the folder is gone. Raises OSError."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
    lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Where folders cannot be locked nobody else can lock this one either, so it is safe.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now it gets the name that others look for.
        return hidden.rename(parent / hidden.name.removeprefix(".")), lock
    except BaseException:
        os.close(lock)
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def sweep(parent: Path) -> None:
    """Remove what killed processes left in ``parent``. What cannot be removed stays."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError while its owner lives
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
