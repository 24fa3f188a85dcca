"""The drive under a file: which device, how it reads ahead, whether O_DIRECT works.

Owns the look-ups in /sys and one 4 KiB probe read. Leaves judging them to the engine's native probe, which
decides the real I/O mode. What cannot be found out is None.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

from guanaco.hardware.facts import DriveFacts
from guanaco.units import KIB

_PROBE_BYTES = 4 * KIB


def drive_facts(path: Path, root: Path = Path("/")) -> DriveFacts:
    """What is known about the drive that holds ``path``; blocks for one small read."""
    device = block_device(path, root)
    queue = None if device is None else root / "sys/block" / device / "queue"
    read_ahead_kib = None if queue is None else _number(queue / "read_ahead_kb")
    rotational = None if queue is None else _number(queue / "rotational")
    return DriveFacts(
        device=device,
        read_ahead_bytes=None if read_ahead_kib is None else read_ahead_kib * KIB,
        rotational=None if rotational is None else bool(rotational),
        direct_io=probe_direct_io(path),
    )


def block_device(path: Path, root: Path = Path("/")) -> str | None:
    """Kernel name of the disk that holds ``path``; None for network, overlay and memory file systems."""
    try:
        device_id = path.stat().st_dev
    except OSError:
        return None
    numbers = f"{os.major(device_id)}:{os.minor(device_id)}"
    try:
        node = (root / "sys/dev/block" / numbers).resolve(strict=True)
    except OSError:
        return None
    # A partition is a directory inside its disk's, and only the disk has a queue.
    for candidate in (node, node.parent):
        if (candidate / "queue").is_dir():
            return candidate.name
    return None


def probe_direct_io(path: Path) -> bool | None:
    """Whether a 4 KiB O_DIRECT read of the file works; None when the file itself cannot be read."""
    flag = getattr(os, "O_DIRECT", None)
    if flag is None:
        return False
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None  # to open a pipe may take for ever
        descriptor = os.open(path, os.O_RDONLY | flag)
    except OSError as error:
        return False if error.errno == errno.EINVAL else None
    try:
        with mmap.mmap(-1, _PROBE_BYTES) as buffer:  # page-aligned, as O_DIRECT wants
            os.preadv(descriptor, [buffer], 0)
        return True
    except OSError as error:
        return False if error.errno == errno.EINVAL else None
    finally:
        os.close(descriptor)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None
