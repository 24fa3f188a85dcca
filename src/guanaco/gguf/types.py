"""What a GGUF header says, as frozen values. Owns the tables of tensor and value types; reads nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
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
    """A model: its shards, the metadata of the first one and every tensor of all of them.

    Metadata values are int, float, bool, str, a tuple of numbers, or ``ArrayInfo`` (count only).
    """

    files: tuple[ShardFile, ...]
    version: int
    metadata: dict[str, object] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)


@dataclass(frozen=True)
class ArrayInfo:
    """A metadata value that was skipped: a list of strings, a long list of numbers, a very long text."""

    type_name: str  # of one element
    count: int  # elements; bytes for a long text


@dataclass(frozen=True)
class GgmlType:
    """How one tensor type is stored: rows are whole blocks of ``block_elements``, ``block_bytes`` each."""

    name: str
    block_elements: int
    block_bytes: int


@dataclass(frozen=True)
class ValueType:
    """One metadata value type. ``code`` is its ``struct`` letter; strings and arrays have none."""

    name: str
    code: str
    nbytes: int


# ids and names as llama.cpp numbers and prints them
GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 36),
    10: GgmlType("q2_K", 256, 84),
    11: GgmlType("q3_K", 256, 110),
    12: GgmlType("q4_K", 256, 144),
    13: GgmlType("q5_K", 256, 176),
    14: GgmlType("q6_K", 256, 210),
    15: GgmlType("q8_K", 256, 292),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1),
    25: GgmlType("i16", 1, 2),
    26: GgmlType("i32", 1, 4),
    27: GgmlType("i64", 1, 8),
    28: GgmlType("f64", 1, 8),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
    42: GgmlType("q2_0", 64, 18),
}

# once valid, no longer read by llama.cpp: the name tells the user what to convert
REMOVED_GGML_TYPES: dict[int, str] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}

STRING_TYPE = 8
ARRAY_TYPE = 9
VALUE_TYPES: dict[int, ValueType] = {
    0: ValueType("u8", "B", 1),
    1: ValueType("i8", "b", 1),
    2: ValueType("u16", "H", 2),
    3: ValueType("i16", "h", 2),
    4: ValueType("u32", "I", 4),
    5: ValueType("i32", "i", 4),
    6: ValueType("f32", "f", 4),
    7: ValueType("bool", "?", 1),
    STRING_TYPE: ValueType("str", "", 0),
    ARRAY_TYPE: ValueType("arr", "", 0),
    10: ValueType("u64", "Q", 8),
    11: ValueType("i64", "q", 8),
    12: ValueType("f64", "d", 8),
}
