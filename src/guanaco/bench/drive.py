"""What a fair run needs of the drive: a cold file cache and a known read-ahead.

Owns: dropping a file's pages, setting the drive's read-ahead for the length of a run and putting it back.
Reports None where this user may not set it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

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
