"""A memory cgroup of our own to run commands in, with a limit and without swap.

Owns making, filling and removing it, for versions 1 and 2; tests, gates and benchmarks check the memory
promise with it. Leaves reading limits and peaks to ``cgroup``. Refuses, as an ``OSError`` with the reason,
where this user may not make one: the promise is then unchecked, and the caller must say so.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from guanaco.hardware.cgroup import Cgroup, own_cgroup

_REMOVE_TRIES = 100
_REMOVE_PAUSE_S = 0.05


class ChildCgroup:
    """A child cgroup that exists. Made by ``create_child``, which removes it at the end of its block."""

    def __init__(self, cgroup: Cgroup, limit_bytes: int | None) -> None:
        self.cgroup = cgroup
        self.limit_bytes = limit_bytes

    @property
    def path(self) -> Path:
        return self.cgroup.path

    @property
    def peak_bytes(self) -> int | None:
        return self.cgroup.peak_bytes

    @property
    def usage_bytes(self) -> int | None:
        return self.cgroup.usage_bytes

    @property
    def oom_kills(self) -> int | None:
        return self.cgroup.oom_kills

    def wrap(self, command: Sequence[str]) -> list[str]:
        """``command`` as one that joins the cgroup before it starts, so that nothing is charged elsewhere."""
        script = f'echo $$ > {shlex.quote(str(self.path / "cgroup.procs"))} && exec "$@"'
        return ["/bin/sh", "-c", script, "sh", *command]

    def add(self, pid: int) -> None:
        """Move a process here. What it used before stays charged where it was."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        """Remove the cgroup; waits a little for processes that are ending. Raises OSError while some live."""
        for attempt in range(_REMOVE_TRIES):
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                if attempt == _REMOVE_TRIES - 1:
                    raise
                time.sleep(_REMOVE_PAUSE_S)


@contextlib.contextmanager
def create_child(
    name: str, limit_bytes: int | None = None, *, root: Path = Path("/"), parent: Cgroup | None = None
) -> Iterator[ChildCgroup]:
    """A child cgroup for the length of a ``with`` block, removed at its end.

    ``name`` is made unique with this process's id. Without ``parent`` it goes below our own cgroup or, where
    version 2 forbids that because processes live in it, beside it.
    """
    start = parent or own_cgroup(root)
    if start is None:
        raise OSError("no memory cgroup is mounted here; the memory promise cannot be checked")
    unique = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    child = _make(start, unique)
    made = ChildCgroup(child, limit_bytes)
    try:
        if limit_bytes is not None:
            _set_limit(child, limit_bytes)
        yield made
    finally:
        made.remove()


def _make(start: Cgroup, unique: str) -> Cgroup:
    reason: OSError | None = None
    for above in start.ancestry():
        _sweep(above.path)
        child = Cgroup(start.version, above.path / unique, start.top)
        try:
            if start.version == 2:
                _enable_memory(above.path)
            child.path.mkdir()
            return child
        except OSError as error:
            reason = reason or error
    raise OSError(f"cannot make a memory cgroup below {start.path}: {reason}")


def _sweep(above: Path) -> None:
    """Remove what a killed process left. The kernel refuses to remove a cgroup that somebody lives in."""
    for left in above.glob("guanaco-*-*-*"):
        pid = left.name.split("-")[-2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                left.rmdir()


def _enable_memory(path: Path) -> None:
    """Version 2: children have a memory controller only when their parent hands it down."""
    control = path / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        control.write_text("+memory")


def _set_limit(child: Cgroup, limit_bytes: int) -> None:
    """The limit, and no swap on top of it: swapped pages would hide what does not fit."""
    if child.version == 2:
        (child.path / "memory.max").write_text(str(limit_bytes))
        swap = child.path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        return
    (child.path / "memory.limit_in_bytes").write_text(str(limit_bytes))
    with_swap = child.path / "memory.memsw.limit_in_bytes"
    if with_swap.exists():
        with_swap.write_text(str(limit_bytes))
    else:
        (child.path / "memory.swappiness").write_text("0")
