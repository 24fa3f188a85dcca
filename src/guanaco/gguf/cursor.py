"""Bounded sequential reading of one header.

Owns the buffer, the end-of-file checks and the budget of a whole model. Reads 256 KiB at a time, so at
most that much beyond the header; never maps a file. Refuses to read past the end or to spend more than
the budget.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from guanaco.errors import ModelError
from guanaco.gguf.problem import FETCH_AGAIN, TOO_LARGE, model_error
from guanaco.units import KIB, MIB

CHUNK_BYTES = 256 * KIB

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")


class Budget:
    """What reading one model may cost, all shards together; several times the largest known model."""

    def __init__(self) -> None:
        self._left = {
            "header bytes": 256 * MIB,
            "metadata keys": 1 << 16,
            "metadata strings": 1 << 21,  # two million; read one by one, so this bounds the time too
            "bytes of metadata": 32 * MIB,
            "tensors": 1 << 16,
        }
        self._limits = dict(self._left)

    def spend(self, what: str, amount: int, path: Path) -> None:
        """Raises ModelError once more than the limit was spent."""
        self._left[what] -= amount
        if self._left[what] < 0:
            limit = self._limits[what]
            raise model_error(
                path, what, f"come to {limit - self._left[what]}, more than {limit}", TOO_LARGE, amount
            )


class Cursor:
    """Reads forward through a file from its first byte. Not shared between threads."""

    def __init__(self, fd: int, path: Path, size_bytes: int, budget: Budget) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.end_bytes = 0  # of the furthest read
        self._fd = fd
        self._budget = budget
        self._buffer = b""
        self._base = 0  # file offset of the buffer
        self._at = 0  # next byte, in the buffer

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def remaining(self) -> int:
        return self.size_bytes - self.position

    def take(self, count: int, field: str) -> bytes:
        """The next ``count`` bytes; callers bound it to about a MiB."""
        if len(self._buffer) - self._at < count:
            self._fill(count, field)
        start = self._at
        self._at = start + count
        return self._buffer[start : self._at]

    def peek(self, count: int) -> bytes:
        """Up to ``count`` bytes from here, fewer at the end of the file, without moving."""
        count = min(count, self.remaining)
        if len(self._buffer) - self._at < count:
            self._fill(count, "file")
        return self._buffer[self._at : self._at + count]

    def u32(self, field: str) -> int:
        value: int = _U32.unpack(self.take(4, field))[0]
        return value

    def i32(self, field: str) -> int:
        value: int = _I32.unpack(self.take(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack(self.take(8, field))[0]
        return value

    def skip(self, count: int, field: str) -> None:
        """Moves on without reading what lies outside the buffer."""
        self._move(self._at + count, field)

    def skip_strings(self, count: int, field: str) -> None:
        """Moves past ``count`` length-prefixed strings, reading only their lengths."""
        if count * 8 > self.remaining:
            raise self._ends_early(count * 8, field)
        self._budget.spend("metadata strings", count, self.path)
        unpack = _U64.unpack_from
        buffer, at = self._buffer, self._at
        last = len(buffer) - 8
        for _ in range(count):  # the hot loop of a large vocabulary
            if at > last:
                self._move(at, field)
                self._fill(8, field)
                buffer, at = self._buffer, self._at
                last = len(buffer) - 8
            at += 8 + unpack(buffer, at)[0]
        self._move(at, field)

    def _move(self, at: int, field: str) -> None:
        if at > len(self._buffer):
            position = self._base + at
            if position > self.size_bytes:
                raise self._ends_early(position - self.position, field)
            self._buffer, self._base, at = b"", position, 0
        self._at = at

    def _fill(self, count: int, field: str) -> None:
        """Makes the next ``count`` bytes lie in the buffer."""
        position = self.position
        if position + count > self.size_bytes:
            raise self._ends_early(count, field)
        wanted = min(max(count, CHUNK_BYTES), self.size_bytes - position)
        self._budget.spend("header bytes", wanted, self.path)
        self.end_bytes = max(self.end_bytes, position + wanted)
        self._buffer, self._base, self._at = self._read(position, wanted, count, field), position, 0

    def _read(self, position: int, wanted: int, needed: int, field: str) -> bytes:
        data = b""
        while len(data) < needed:
            try:
                part = os.pread(self._fd, wanted - len(data), position + len(data))
            except OSError as error:
                reason = f"cannot be read at byte {position + len(data)}: {error.strerror}"
                raise model_error(self.path, field, reason, "check the drive and the file system") from error
            if not part:  # the file shrank since it was opened
                raise self._ends_early(needed, field)
            data += part
        return data

    def _ends_early(self, count: int, field: str) -> ModelError:
        return model_error(
            self.path,
            field,
            f"needs {count} bytes at byte {self.position}, but the file ends at byte {self.size_bytes}",
            FETCH_AGAIN,
            count,
        )
