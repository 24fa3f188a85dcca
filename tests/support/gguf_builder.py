"""GGUF headers by hand, honest and hostile, byte by byte and without any GGUF library.

Tensor data is left as a hole in the file, so a tensor of many GiB costs nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

F32, F16, Q8_0, MXFP4 = 0, 1, 8, 39
U8, I8, U16, I16, U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64, I64, FLOAT64 = range(13)

_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", FLOAT32: "f", BOOL: "?", U64: "Q",
          I64: "q", FLOAT64: "d"}  # fmt: skip
_BLOCKS = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), MXFP4: (32, 17)}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(type_id: int, value: float | str | bytes) -> bytes:
    if isinstance(value, (str, bytes)):
        return text(value)
    return struct.pack("<" + _CODES[type_id], value)


@dataclass
class GgufBuilder:
    """Collects keys and tensors; ``header`` lays them out. Every ``None`` is computed honestly."""

    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    key_count: int | None = None
    tensor_count: int | None = None
    keys: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    data_bytes: int = 0  # padded, of the tensors so far
    used_bytes: int = 0  # the same without the padding of the last

    def raw_key(self, name: str | bytes, type_id: int, value: bytes) -> GgufBuilder:
        self.keys.append(text(name) + struct.pack("<i", type_id) + value)
        return self

    def key(self, name: str, type_id: int, value: float | str | bytes) -> GgufBuilder:
        return self.raw_key(name, type_id, scalar(type_id, value))

    def array(
        self, name: str, type_id: int, values: list[int] | list[float] | list[str], count: int | None = None
    ) -> GgufBuilder:
        start = struct.pack("<iQ", type_id, len(values) if count is None else count)
        return self.raw_key(name, ARRAY, start + b"".join(scalar(type_id, value) for value in values))

    def aligned(self, alignment: int) -> GgufBuilder:
        self.alignment = alignment
        return self.key("general.alignment", U32, alignment)

    def tensor(
        self, name: str | bytes, dims: tuple[int, ...], type_id: int = F32, offset: int | None = None
    ) -> GgufBuilder:
        elements, block_bytes = _BLOCKS.get(type_id, (1, 1))
        nbytes = block_bytes
        for dim in dims:
            nbytes *= dim
        nbytes //= elements
        self.entries.append(
            text(name)
            + struct.pack(f"<I{len(dims)}qi", len(dims), *dims, type_id)
            + struct.pack("<Q", self.data_bytes if offset is None else offset)
        )
        self.used_bytes = self.data_bytes + nbytes
        self.data_bytes += nbytes + -nbytes % self.alignment
        return self

    def header(self) -> bytes:
        key_count = len(self.keys) if self.key_count is None else self.key_count
        tensor_count = len(self.entries) if self.tensor_count is None else self.tensor_count
        counts = struct.pack("<IQQ", self.version, tensor_count, key_count)
        return self.magic + counts + b"".join(self.keys) + b"".join(self.entries)

    def write(self, path: Path, cut_bytes: int = 0) -> Path:
        """The file with its tensor data as a hole; ``cut_bytes`` are missing at its end."""
        header = self.header()
        size = len(header)
        if self.entries:
            size += -size % self.alignment + self.used_bytes
        with path.open("wb") as file:
            file.write(header)
            file.truncate(max(size - cut_bytes, 0))
        return path


def shard(number: int, count: int, tensors_of_all: int, builder: GgufBuilder | None = None) -> GgufBuilder:
    """A builder with the three keys that llama.cpp's splitter writes."""
    made = builder or GgufBuilder()
    made.key("split.no", U16, number).key("split.count", U16, count)
    return made.key("split.tensors.count", I32, tensors_of_all)


def language_model(arch: str = "qwen3moe", n_layer: int = 2, **numbers: int) -> GgufBuilder:
    """The keys every model needs; ``numbers`` are more u32 keys of the architecture, "__" for "."."""
    made = GgufBuilder().key("general.architecture", STRING, arch).key("general.name", STRING, "tiny")
    numbers = {"block_count": n_layer, "embedding_length": 64, "context_length": 128, **numbers}
    for name, value in numbers.items():
        made.key(f"{arch}.{name.replace('__', '.')}", U32, value)
    return made


def add_experts(
    made: GgufBuilder,
    layer: int,
    n_expert: int,
    parts: tuple[str, ...] = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    type_id: int = F32,
    width: int = 32,
) -> GgufBuilder:
    """3-D expert tensors of 64 x ``width`` (fused ones twice that)."""
    for part in parts:
        rows = 2 * width if "gate_up" in part else width
        dims = (width, 64, n_expert) if "down" in part else (64, rows, n_expert)
        made.tensor(f"blk.{layer}.{part}.weight", dims, type_id)
    return made
