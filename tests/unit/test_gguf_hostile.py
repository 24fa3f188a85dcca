"""Damaged and hostile headers: each is one ModelError, soon and cheaply, with file, field and way out."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from guanaco.errors import ModelError
from guanaco.gguf.reader import read_gguf
from tests.support.gguf_builder import (
    ARRAY,
    F32,
    I32,
    I64,
    Q8_0,
    STRING,
    U8,
    U32,
    U64,
    GgufBuilder,
    text,
)


def _refused(path: Path) -> ModelError:
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            read_gguf(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * 2**20
    assert time.process_time() - start < 2
    error = caught.value
    assert error.message.startswith(f"{path}: ")
    assert error.details["file"] == str(path)
    assert "; " in error.message and "\n" not in error.message
    return error


G = GgufBuilder
HUGE = 2**63 + 5
CASES: dict[str, tuple[GgufBuilder, str]] = {
    "magic": (G(magic=b"GGUX"), "not a GGUF file (it starts with b'GGUX'"),
    "git lfs pointer": (G(magic=b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
    "web page": (G(magic=b"<!DOCTYPE html>"), "web page"),
    "ggml": (G(magic=b"lmgg"), "before GGUF"),
    "safetensors": (G(magic=struct.pack("<Q", 300) + b'{"__metadata__":{}}'), "safetensors"),
    "version 0": (G(version=0), "version 0 cannot be read"),
    "version 1": (G(version=1), "version 1 cannot be read, only 2 and 3; convert"),
    "version 4": (G(version=4), "version 4 cannot be read"),
    "big endian": (G(version=3 << 24), "big-endian"),
    "tensor count": (G(tensor_count=HUGE), f"tensor count {HUGE} cannot fit"),
    "one tensor too many": (G(tensor_count=2).tensor("t", (32,)), "tensor #1 is empty"),
    "key count": (G(key_count=HUGE), f"metadata key count {HUGE} cannot fit"),
    "key length": (G(key_count=1).raw_key("k" * 65536, U8, b"\0"), "length of metadata key #0 65536"),
    "empty key": (G().key("", U8, 1), "metadata key #0 '' is empty"),
    "key twice": (G().key("a", U8, 1).key("a", U8, 1), "metadata key #1 'a' is there twice"),
    "key not utf-8": (G().raw_key(b"\xff\xfe", U8, b"\0"), "is not UTF-8"),
    "key with NUL": (G().key("a\0b", U8, 1), "NUL"),
    "value type": (G().raw_key("a", 13, b"\0" * 8), "metadata 'a' has the unknown value type 13"),
    "negative value type": (G().raw_key("a", -1, b"\0" * 8), "unknown value type -1"),
    "text length": (G().raw_key("a", STRING, struct.pack("<Q", 2**40)), f"of metadata 'a' {2**40} is"),
    "text to the end": (G().raw_key("a", STRING, struct.pack("<Q", 2**20)), "needs 1048576 bytes"),
    "list of lists": (G().raw_key("a", ARRAY, struct.pack("<iQ", ARRAY, 1)), "is a list of lists"),
    "element type": (G().raw_key("a", ARRAY, struct.pack("<iQ", 99, 1)), "unknown element type 99"),
    "list count": (G().array("a", U8, [1], count=HUGE), f"count of metadata 'a' {HUGE} is more than"),
    "long list to the end": (G().array("a", U64, [1], count=2**30), "needs 8589934592 bytes"),
    "short list to the end": (G().array("a", U64, [1], count=4096), "needs 32768 bytes"),
    "texts to the end": (G().array("a", STRING, ["x"], count=2**29), "needs 4294967296 bytes"),
    "text in a list": (
        G().raw_key("a", ARRAY, struct.pack("<iQQQ", STRING, 2, 2**64 - 1, 0)),
        "but the file ends at",
    ),
    "last text in a list": (
        G().raw_key("a", ARRAY, struct.pack("<iQQ", STRING, 1, 2**64 - 1)),
        "but the file ends at",
    ),
    "alignment 0": (G().key("general.alignment", U32, 0), "general.alignment 0 is not a power of two"),
    "alignment 24": (G().key("general.alignment", U32, 24), "24 is not a power of two"),
    "alignment type": (G().key("general.alignment", U64, 32), "is of type u64, not u32"),
    "alignment beyond the file": (
        G().key("general.alignment", U32, 2**31).tensor("t", (8,)),
        "data of tensor 't' is cut off",
    ),
    "tensor name length": (G().tensor("n" * 64, (8,)), "length of tensor #0 64 is more than 63"),
    "tensor name not utf-8": (G().tensor(b"\xff", (8,)), "is not UTF-8"),
    "tensor twice": (G().tensor("t", (8,)).tensor("t", (8,)), "tensor 't' is there twice"),
    "five dimensions": (G().tensor("t", (1, 1, 1, 1, 1)), "has 5 dimensions"),
    "negative dimension": (G().tensor("t", (8, -1)), "negative dimension in (8, -1)"),
    "too many elements": (G().tensor("t", (2**31, 2**31, 2)), "too many elements"),
    "too many before a zero": (G().tensor("t", (2**62, 4, 0)), "too many elements"),
    "bytes beyond 64 bits": (G().tensor("t", (2**62,)), "is cut off"),
    "tensor type": (G().tensor("t", (8,), 43), "unknown type 43"),
    "negative tensor type": (G().tensor("t", (8,), -3), "unknown type -3"),
    "removed type": (G().tensor("t", (32,), 31), "is of type q4_0_4_4, which llama.cpp no"),
    "part of a block": (G().tensor("t", (33,), Q8_0), "rows of 33 elements, not whole q8_0"),
    "scalar of blocks": (G().tensor("t", (), Q8_0), "rows of 1 elements"),
    "overlap": (
        G().tensor("a", (64,)).tensor("b", (8,), offset=32),
        "offset of tensor 'b' is 32: it overlaps the tensors before it, which end at 256",
    ),
    "same place": (G().tensor("a", (8,)).tensor("b", (8,), offset=0), "overlaps"),
    "gap": (G().tensor("a", (8,)).tensor("b", (8,), offset=4096), "leaves a gap"),
    "unaligned": (G().tensor("a", (8,)).tensor("b", (8,), offset=33), "not a multiple of the alignment"),
    "offset beyond 63 bits": (G().tensor("a", (8,), offset=2**64 - 32), "leaves a gap"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_hostile_header(tmp_path: Path, name: str) -> None:
    made, expected = CASES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(made.header() + bytes(64))
    assert expected in _refused(path).message


def test_every_truncation_of_a_header_is_refused(tmp_path: Path) -> None:
    made = GgufBuilder().key("a", STRING, "text").array("b", I32, [1, 2]).array("c", STRING, ["x", "yz"])
    header = made.key("d", I64, -1).tensor("t", (8, 2), F32).header()
    path = tmp_path / "m.gguf"
    for length in range(len(header)):
        path.write_bytes(header[:length])
        assert (
            "the file ends at" in (message := _refused(path).message) or "cannot fit" in message or length < 4
        )


def test_truncated_tensor_data_names_the_first_tensor_that_is_cut(tmp_path: Path) -> None:
    made = GgufBuilder().tensor("a", (64,)).tensor("b", (64,)).tensor("c", (63,))
    whole = made.write(tmp_path / "m.gguf").stat().st_size
    assert len(read_gguf(tmp_path / "m.gguf").tensors) == 3
    error = _refused(made.write(tmp_path / "m.gguf", cut_bytes=1))
    assert f"data of tensor 'c' is cut off: the file has {whole - 1} of {whole} bytes" in error.message
    assert "tensor 'b'" in _refused(made.write(tmp_path / "m.gguf", cut_bytes=253)).message


def test_numbers_of_things_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    made = GgufBuilder(tensor_count=70_000)
    path.write_bytes(made.header() + bytes(70_000 * 24))
    assert "tensors come to 70000, more than 65536" in _refused(path).message
    made = GgufBuilder(key_count=70_000)
    path.write_bytes(made.header() + bytes(70_000 * 24))
    assert "metadata keys come to 70000, more than 65536" in _refused(path).message


def test_many_empty_strings_are_over_soon(tmp_path: Path) -> None:
    """As many as may be: found by fuzzing, when four times as many took seconds."""
    allowed = 1 << 21
    path = tmp_path / "m.gguf"
    head = GgufBuilder(key_count=2).array("general.tags", STRING, [], count=allowed).header()
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 16 * allowed)
    start_s = time.process_time()
    with pytest.raises(ModelError, match="metadata key #1 '' is empty"):
        read_gguf(path)
    assert time.process_time() - start_s < 2


def test_holes_instead_of_strings_cost_little(tmp_path: Path) -> None:
    """A sparse file of many GiB can back any count: only the budget ends the reading."""
    path = tmp_path / "m.gguf"
    start = GgufBuilder(key_count=1).header() + text("a") + struct.pack("<i", ARRAY)
    with path.open("wb") as file:
        file.write(start + struct.pack("<iQ", STRING, 2**29))
        file.truncate(2**40)
    assert "metadata strings come to 536870912, more than 2097152" in _refused(path).message
    with path.open("wb") as file:  # each text ends outside the buffer, so that each costs a read
        file.write(start + struct.pack("<iQ", STRING, 2**20))
        position = file.tell()
        for _ in range(1200):
            file.seek(position)
            file.write(struct.pack("<Q", 2**18))
            position += 2**18 + 8
        file.truncate(2**40)
    assert "header bytes come to" in _refused(path).message


def test_kept_values_are_bounded(tmp_path: Path) -> None:
    made = GgufBuilder()
    for index in range(40):
        made.key(f"text{index}", STRING, "x" * 2**20)
    path = made.write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="bytes of metadata come to"):
        read_gguf(path)
    made = GgufBuilder()
    for index in range(300):
        made.array(f"list{index}", U8, [0] * 4096)
    path = made.write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="bytes of metadata come to"):
        read_gguf(path)


def test_values_in_messages_are_short_and_printable(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GgufBuilder().key("\x1b[31m" * 200, U8, 1).key("\x1b[31m" * 200, U8, 1).header())
    error = _refused(path)
    assert error.message.isprintable()
    assert len(error.message) < len(str(path)) + 250
