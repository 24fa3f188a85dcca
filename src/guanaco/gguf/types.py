"""What a GGUF header says, as frozen values. Owns the type table; reads nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the directory. ``dims`` as stored: dims[0] is the row length, fastest first."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    type_name: str
    file_index: int
    offset: int  # absolute, in its file
    nbytes: int


@dataclass(frozen=True)
class ShardFile:
    path: Path
    size_bytes: int
    device: int
    inode: int
    mtime_ns: int
    header_bytes: int  # where the tensor data begins
    alignment: int


@dataclass(frozen=True)
class GgufModel:
    """A model: its shards, the metadata of the first one and every tensor of all of them."""

    files: tuple[ShardFile, ...]
    version: int
    metadata: dict[str, object] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)
