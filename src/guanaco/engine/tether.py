"""Ties a process to the one that started it: the kernel ends it when that one ends, by SIGKILL too."""

from __future__ import annotations

import ctypes
import os
import signal

from guanaco.errors import EngineError

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask for ``number`` when the parent's spawning thread ends. Raises EngineError when that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise EngineError(f"a process cannot be tied to the one that started it: {reason}")
    if os.getppid() != parent_pid:  # it ended before the line above
        os._exit(1)
