"""What an honest header yields: values, types, offsets, identity, cost."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import pytest

import guanaco
from guanaco.gguf.reader import read_gguf
from guanaco.gguf.types import GGML_TYPES, REMOVED_GGML_TYPES, ArrayInfo
from tests.support.gguf_builder import (
    BOOL,
    F16,
    F32,
    FLOAT32,
    FLOAT64,
    I8,
    I16,
    I32,
    I64,
    Q8_0,
    STRING,
    U8,
    U16,
    U32,
    U64,
    GgufBuilder,
    language_model,
)

DEMO = Path(guanaco.__file__).parent / "data" / "guanaco-demo-q8_0.gguf"


def test_demo_model() -> None:
    model = read_gguf(DEMO)
    status = DEMO.stat()
    (file,) = model.files
    assert (file.size_bytes, file.device, file.inode) == (status.st_size, status.st_dev, status.st_ino)
    assert (file.mtime_ns, file.header_bytes, file.alignment) == (status.st_mtime_ns, 31168, 32)
    assert model.version == 3
    assert model.metadata["general.architecture"] == "qwen3moe"
    assert model.metadata["tokenizer.ggml.tokens"] == ArrayInfo("str", 1024)
    assert len(model.tensors) == 51
    gate = next(tensor for tensor in model.tensors if tensor.name == "blk.1.ffn_gate_exps.weight")
    assert (gate.dims, gate.type_name, gate.offset, gate.nbytes) == ((192, 96, 32), "q8_0", 3144384, 626688)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path: Path, version: int) -> None:
    made = GgufBuilder(version=version)
    values: dict[str, tuple[int, int | float | str]] = {
        "u8": (U8, 255), "i8": (I8, -128), "u16": (U16, 65535), "i16": (I16, -32768),
        "u32": (U32, 2**32 - 1), "i32": (I32, -(2**31)), "f32": (FLOAT32, 0.5), "bool": (BOOL, True),
        "str": (STRING, "é\n"), "u64": (U64, 2**64 - 1), "i64": (I64, -(2**63)), "f64": (FLOAT64, 0.1),
    }  # fmt: skip
    for name, (type_id, value) in values.items():
        made.key(name, type_id, value)
    made.array("list", U16, [1, 2, 3]).array("flags", BOOL, [0, 1]).array("none", U32, [])
    made.array("words", STRING, ["a", "", "ccc"])
    metadata = read_gguf(made.write(tmp_path / "m.gguf")).metadata
    for name, (_, value) in values.items():
        assert metadata[name] == value, name
    assert metadata["bool"] is True
    assert (metadata["list"], metadata["flags"], metadata["none"]) == ((1, 2, 3), (False, True), ())
    assert metadata["words"] == ArrayInfo("str", 3)


def test_lists_of_numbers_are_kept_up_to_4096(tmp_path: Path) -> None:
    made = GgufBuilder().array("kept", U8, [7] * 4096).array("long", I32, [7] * 4097)
    metadata = read_gguf(made.write(tmp_path / "m.gguf")).metadata
    assert metadata["kept"] == (7,) * 4096
    assert metadata["long"] == ArrayInfo("i32", 4097)


def test_a_long_text_is_skipped_and_the_next_key_read(tmp_path: Path) -> None:
    made = GgufBuilder().key("kept", STRING, "x" * 2**20).key("long", STRING, "x" * (2**20 + 1))
    metadata = read_gguf(made.key("after", U32, 5).write(tmp_path / "m.gguf")).metadata
    assert metadata["kept"] == "x" * 2**20
    assert (metadata["long"], metadata["after"]) == (ArrayInfo("str", 2**20 + 1), 5)


def test_text_that_is_not_utf8_is_kept_readable(tmp_path: Path) -> None:
    made = GgufBuilder().key("general.name", STRING, b"caf\xe9")
    assert (
        read_gguf(made.write(tmp_path / "m.gguf")).metadata["general.name"] == "caf\N{REPLACEMENT CHARACTER}"
    )


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_offsets_and_sizes(tmp_path: Path, alignment: int) -> None:
    made = GgufBuilder().aligned(alignment)
    made.tensor("scalar", ()).tensor("row", (3,)).tensor("blocks", (64, 5, 2), Q8_0).tensor(
        "none", (4, 0), F16
    )
    model = read_gguf(made.tensor("last", (7, 1, 1, 2), F32).write(tmp_path / "m.gguf"))
    start = -(-len(made.header()) // alignment) * alignment
    assert model.files[0].header_bytes == start
    assert model.files[0].alignment == alignment
    assert [tensor.nbytes for tensor in model.tensors] == [4, 12, 680, 0, 56]
    assert [tensor.dims for tensor in model.tensors] == [(), (3,), (64, 5, 2), (4, 0), (7, 1, 1, 2)]
    expected = start
    for tensor in model.tensors:
        assert tensor.offset == expected
        expected += -(-tensor.nbytes // alignment) * alignment


def test_no_tensors_needs_no_padding(tmp_path: Path) -> None:
    made = GgufBuilder().key("a", U8, 1)
    model = read_gguf(made.write(tmp_path / "m.gguf"))
    assert (model.tensors, model.files[0].header_bytes) == ((), len(made.header()))


def test_a_link_is_read_under_its_own_name(tmp_path: Path) -> None:
    target = language_model().write(tmp_path / "blob")
    link = tmp_path / "m.gguf"
    link.symlink_to(target)
    file = read_gguf(link).files[0]
    assert (file.path, file.inode) == (link, target.stat().st_ino)


def test_large_vocabulary_is_cheap(tmp_path: Path) -> None:
    made = language_model()
    made.array("tokenizer.ggml.tokens", STRING, [f"token {index}" for index in range(150_000)])
    made.array("tokenizer.ggml.merges", STRING, [f"a{index} b{index}" for index in range(150_000)])
    made.array("tokenizer.ggml.scores", FLOAT32, [0.0] * 150_000)
    path = made.tensor("t", (32,)).write(tmp_path / "m.gguf")
    best_s = min(_timed(path) for _ in range(3))
    assert best_s < 0.5
    tracemalloc.start()
    try:
        read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def _timed(path: Path) -> float:
    start = time.perf_counter()
    model = read_gguf(path)
    assert model.metadata["tokenizer.ggml.merges"] == ArrayInfo("str", 150_000)
    return time.perf_counter() - start


def test_tensor_data_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = language_model().tensor("t", (1 << 20, 1 << 10)).write(tmp_path / "m.gguf")
    reads: list[tuple[int, int]] = []
    real = os.pread

    def recorded(fd: int, count: int, offset: int) -> bytes:
        reads.append((offset, count))
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", recorded)
    read_gguf(path)
    assert sum(count for _, count in reads) <= 256 * 1024
    assert max(offset for offset, _ in reads) < read_gguf(path).files[0].header_bytes


def test_types_are_whole_bytes_and_ids_do_not_clash() -> None:
    assert sorted(GGML_TYPES | REMOVED_GGML_TYPES) == list(range(43))
    assert not set(GGML_TYPES) & set(REMOVED_GGML_TYPES)
    assert len({item.name for item in GGML_TYPES.values()}) == len(GGML_TYPES)
