"""Files that appear whole or not at all."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of ``path`` when the block ends; nothing is left if it fails.

    A link goes on pointing where it did. A device or a pipe has no place to take: it is written to itself.
    """
    target = path.resolve()
    if not has_place(path):
        yield path
        return
    partial = target.with_name(target.name + ".partial")
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def has_place(path: Path) -> bool:
    """Whether ``path`` is, or could become, an ordinary file."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True
