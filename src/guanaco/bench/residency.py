"""Which bytes of a file the page cache holds: the outside check of what streaming leaves behind.

Asks the kernel with ``mincore`` over a mapping of its own, which reads nothing. Raises OSError where that
fails.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from guanaco.model.map import ModelMap

_PAGE = mmap.PAGESIZE


def cached_bytes(path: Path, ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes of the whole pages inside ``ranges`` (offset, length) that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        # Shared and without populate: mapping a file this way faults nothing in.
        base = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if base in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"cannot map {path}")
    try:
        total = 0
        for offset, length in ranges:
            first, last = -(-offset // _PAGE), (offset + length) // _PAGE
            if last <= first:
                continue
            flags = (ctypes.c_ubyte * (last - first))()
            if libc.mincore(base + first * _PAGE, (last - first) * _PAGE, flags) != 0:
                raise OSError(ctypes.get_errno(), f"cannot ask for the cached pages of {path}")
            total += sum(flag & 1 for flag in flags) * _PAGE
        return total
    finally:
        libc.munmap(base, size)


def expert_ranges(model: ModelMap, file_index: int) -> Iterator[tuple[int, int]]:
    """Offset and length of every expert tensor in one file."""
    for group in model.groups:
        for part in group.parts:
            if part.file_index == file_index:
                yield part.offset, part.slice_bytes * group.n_expert


def cached_expert_bytes(model: ModelMap) -> int:
    """Expert bytes of all shards that the page cache holds; 0 after a streamed run."""
    return sum(cached_bytes(file.path, expert_ranges(model, index)) for index, file in enumerate(model.files))
