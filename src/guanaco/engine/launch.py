"""What a worker process is started with: its environment and its private files.

Owns the environment rules and one temporary directory per streaming worker. Leaves the process to ``engine``.
Thread spin and malloc arenas are bounded here for every worker, unless the user has set them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from guanaco.engine import leftovers, native
from guanaco.errors import EngineError

_MALLOC_ARENAS = "2"
# The dynamic loader splits LD_PRELOAD at both; there is no way to quote them.
_PRELOAD_SPECIAL = frozenset(" :")


def worker_environment(
    base: Mapping[str, str],
    *,
    library: Path | None,
    plan_file: Path | None,
    verbose: bool,
    spin_count: int,
) -> dict[str, str]:
    """The worker's environment. With ``library`` it is preloaded, before what the user preloads."""
    environment = dict(base)
    environment.setdefault("GOMP_SPINCOUNT", str(spin_count))
    environment.setdefault("MALLOC_ARENA_MAX", _MALLOC_ARENAS)
    if not verbose:
        # An abort would start a debugger to print a backtrace nobody sees.
        environment.setdefault("GGML_NO_BACKTRACE", "1")
    for stray in (native.PLAN_VARIABLE, native.PARENT_VARIABLE):
        environment.pop(stray, None)
    if library is not None and plan_file is not None:
        others = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = f"{library}:{others}" if others else str(library)
        environment.update(native.plan_environment(plan_file))
    return environment


class RunFiles:
    """Plan, counters and heat of one worker, in shared memory if there is some; gone after ``remove``.

    Making one removes those of owners that were killed.
    """

    def __init__(self) -> None:
        shared = "/dev/shm"  # noqa: S108 - a private directory is made inside
        parent = Path(shared if os.access(shared, os.W_OK | os.X_OK) else tempfile.gettempdir())
        leftovers.sweep(parent)
        try:
            self._directory, self._lock = leftovers.claim(parent)
        except OSError as problem:
            raise EngineError(
                f"no folder for the plan of this load can be made in {parent}: {problem.strerror}"
            ) from problem

    @property
    def plan(self) -> Path:
        return self._directory / "plan"

    @property
    def stats(self) -> Path:
        return self._directory / "stats"

    @property
    def heat(self) -> Path:
        return self._directory / "heat"

    def preloadable(self, library: Path) -> Path:
        """A path of the library that LD_PRELOAD can hold, until ``remove``."""
        if not _PRELOAD_SPECIAL.intersection(str(library)):
            return library
        link = self._directory / "libguanaco.so"
        link.symlink_to(library)
        return link

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around whatever fills the files: a full file system is an EngineError that names the folder."""
        try:
            yield
        except OSError as problem:
            raise EngineError(
                f"the plan of this load cannot be written to {self._directory.parent}: {problem.strerror}; "
                "make room there"
            ) from problem

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
