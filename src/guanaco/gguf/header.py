"""One file's header: magic, version, counts, metadata, alignment, tensor directory.

Owns the order of the parts. Leaves values to ``values``, tensors to ``directory``, shards to ``reader``
and the meaning of keys to ``model``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from guanaco.gguf.cursor import Budget, Cursor
from guanaco.gguf.directory import SMALLEST_ENTRY_BYTES, read_directory
from guanaco.gguf.problem import CONVERT_AGAIN, FETCH_AGAIN, model_error, shown
from guanaco.gguf.types import TensorInfo
from guanaco.gguf.values import read_metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_SMALLEST_KEY_BYTES = 14

_OTHER_FORMATS = {
    b"vers": "it looks like a Git LFS pointer: fetch the file itself with git lfs pull",
    b"<!DO": "it looks like a web page: download the file itself",
    b"<htm": "it looks like a web page: download the file itself",
    b"PK\x03\x04": "it looks like a PyTorch archive: convert the model to GGUF",
    b"lmgg": "it is a GGML file from before GGUF: convert the model again",
    b"fmgg": "it is a GGML file from before GGUF: convert the model again",
    b"tjgg": "it is a GGML file from before GGUF: convert the model again",
}


@dataclass(frozen=True)
class Header:
    version: int
    metadata: dict[str, object] = field(repr=False)
    value_types: dict[str, str] = field(repr=False)  # by key
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    alignment: int
    header_bytes: int


def read_header(cursor: Cursor, file_index: int, budget: Budget) -> Header:
    """Reads from the first byte; blocks on the file only. Raises ModelError."""
    _check_magic(cursor)
    version = _read_version(cursor)
    tensor_count = _read_count(cursor, "tensor count", SMALLEST_ENTRY_BYTES)
    key_count = _read_count(cursor, "metadata key count", _SMALLEST_KEY_BYTES)
    budget.spend("tensors", tensor_count, cursor.path)
    budget.spend("metadata keys", key_count, cursor.path)
    metadata, value_types = read_metadata(cursor, key_count, budget)
    alignment = _alignment(cursor.path, metadata, value_types)
    tensors, header_bytes = read_directory(cursor, tensor_count, file_index, alignment)
    return Header(version, metadata, value_types, tensors, alignment, header_bytes)


def _check_magic(cursor: Cursor) -> None:
    if cursor.size_bytes == 0:
        raise model_error(cursor.path, "file", "is empty (0 bytes)", FETCH_AGAIN, 0)
    start = cursor.peek(9)
    magic = start[:4]
    if magic == MAGIC:
        cursor.take(4, "magic")
        return
    way_out = _OTHER_FORMATS.get(magic, "give a .gguf file")
    if start[8:9] == b"{":
        way_out = "it looks like safetensors: convert the model to GGUF"
    problem = f"is not a GGUF file (it starts with {shown(magic)}, not {MAGIC!r})"
    raise model_error(cursor.path, "file", problem, way_out, magic)


def _read_version(cursor: Cursor) -> int:
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    if version and version & 0xFFFF == 0:
        problem = f"{version:#x} is byte-swapped: this is a big-endian GGUF"
        raise model_error(cursor.path, "version", problem, "get or convert a little-endian one", version)
    problem = f"{version} cannot be read, only {' and '.join(map(str, VERSIONS))}"
    way_out = (
        "convert the model again" if version < VERSIONS[0] else "update Guanaco, or download the file again"
    )
    raise model_error(cursor.path, "version", problem, way_out, version)


def _read_count(cursor: Cursor, name: str, smallest_bytes: int) -> int:
    count = cursor.u64(name)
    if count * smallest_bytes > cursor.remaining:
        problem = f"{count} cannot fit the {cursor.remaining} bytes that follow"
        raise model_error(cursor.path, name, problem, FETCH_AGAIN, count)
    return count


def _alignment(path: Path, metadata: dict[str, object], value_types: dict[str, str]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    type_name = value_types.get("general.alignment", "u32")
    if type_name != "u32" or not isinstance(alignment, int):
        raise model_error(path, "general.alignment", f"is of type {type_name}, not u32", CONVERT_AGAIN)
    if alignment == 0 or alignment & (alignment - 1):
        problem = f"{alignment} is not a power of two"
        raise model_error(path, "general.alignment", problem, CONVERT_AGAIN, alignment)
    return alignment
