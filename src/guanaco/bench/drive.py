"""What a fair run needs of the drive: a cold file cache, a known read-ahead, a slower drive when asked for.

Owns: dropping a file's pages, setting the drive's read-ahead for the length of a run and putting it back
(None is reported where this user may not set it), and limiting what a run reads per second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from guanaco.errors import EngineError
from guanaco.hardware.cgroup import own_cgroup
from guanaco.hardware.child_cgroup import ChildCgroup, create_child
from guanaco.hardware.drive import block_device


def drop_file_cache(paths: Iterable[Path]) -> None:
    """Takes every clean page of the files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_ahead_file(path: Path, root: Path = Path("/")) -> Path | None:
    """The kernel's setting for the drive that holds ``path``."""
    device = block_device(path, root)
    return None if device is None else root / "sys/block" / device / "queue" / "read_ahead_kb"


@contextlib.contextmanager
def read_ahead(path: Path, kib: int | None, root: Path = Path("/")) -> Iterator[int | None]:
    """Sets the read-ahead of the drive under ``path`` for a ``with`` block; yields the KiB in force."""
    setting = read_ahead_file(path, root)
    if setting is None:
        yield None
        return
    before = setting.read_text()
    try:
        if kib is not None:
            with contextlib.suppress(OSError):
                setting.write_text(str(kib))
        yield int(setting.read_text())
    finally:
        if setting.read_text() != before:
            setting.write_text(before)


@contextlib.contextmanager
def drive_limit(
    path: Path, bytes_per_s: int | None, memory: ChildCgroup | None, root: Path = Path("/")
) -> Iterator[ChildCgroup | None]:
    """The kernel delivers at most ``bytes_per_s`` of the drive under ``path`` to a run.

    Version 1 keeps this limit in a tree of its own: yields the cgroup that the run must join too. In version
    2 it is a setting of the ``memory`` cgroup that the run is in. Raises EngineError where it cannot be set.
    """
    with contextlib.ExitStack() as stack:
        try:
            joined = None if bytes_per_s is None else _limit_reads(path, bytes_per_s, memory, stack, root)
        except OSError as problem:
            raise EngineError(f"reads cannot be limited to {bytes_per_s} bytes/s here: {problem}") from None
        yield joined


def _limit_reads(
    path: Path, bytes_per_s: int, memory: ChildCgroup | None, stack: contextlib.ExitStack, root: Path
) -> ChildCgroup | None:
    device = block_device(path, root)
    if device is None:
        raise OSError(f"{path} is on no drive of this machine")
    number = (root / "sys/block" / device / "dev").read_text().strip()
    own = own_cgroup(root, "blkio")
    if own is not None and own.version == 1:
        child = stack.enter_context(create_child("guanaco-drive", parent=own))
        (child.path / "blkio.throttle.read_bps_device").write_text(f"{number} {bytes_per_s}")
        return child
    if memory is None or memory.cgroup.version != 2:
        raise OSError("no cgroup with an io controller is mounted, or the run has none of its own")
    control = memory.path.parent / "cgroup.subtree_control"
    if "io" not in control.read_text().split():
        control.write_text("+io")
    (memory.path / "io.max").write_text(f"{number} rbps={bytes_per_s}")
    return None
