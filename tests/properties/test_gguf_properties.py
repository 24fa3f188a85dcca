"""Random headers against two independent readers, and damaged ones against the engine's own parser.

Honest files are written by the ``gguf`` package and must read the same. Of damaged ones nothing may come
but a ModelError or what the engine reads too, in bounded time and memory.
"""

from __future__ import annotations

import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.errors import ModelError
from guanaco.gguf.reader import read_gguf
from guanaco.gguf.types import GGML_TYPES, ArrayInfo, GgufModel
from guanaco.model.map import build_model_map
from tests.support.engine_gguf import EngineHeader, engine_header
from tests.support.gguf_builder import MXFP4, Q8_0, STRING, U16, U32, GgufBuilder, add_experts, language_model

_NUMBERS = {
    gguf.GGUFValueType.UINT8: st.integers(0, 2**8 - 1),
    gguf.GGUFValueType.INT8: st.integers(-(2**7), 2**7 - 1),
    gguf.GGUFValueType.UINT16: st.integers(0, 2**16 - 1),
    gguf.GGUFValueType.INT16: st.integers(-(2**15), 2**15 - 1),
    gguf.GGUFValueType.UINT32: st.integers(0, 2**32 - 1),
    gguf.GGUFValueType.INT32: st.integers(-(2**31), 2**31 - 1),
    gguf.GGUFValueType.UINT64: st.integers(0, 2**64 - 1),
    gguf.GGUFValueType.INT64: st.integers(-(2**63), 2**63 - 1),
    gguf.GGUFValueType.FLOAT32: st.floats(allow_nan=False, width=32),
    gguf.GGUFValueType.FLOAT64: st.floats(allow_nan=False),
    gguf.GGUFValueType.BOOL: st.booleans(),
}
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_NAMES = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
_TYPES = sorted(set(GGML_TYPES) & {int(item) for item in gguf.GGMLQuantizationType} - {9, 15})


@st.composite
def _values(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """value, type, element type"""
    kind = draw(st.sampled_from([*_NUMBERS, gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY]))
    if kind == gguf.GGUFValueType.STRING:
        return draw(_TEXTS), kind, None
    if kind != gguf.GGUFValueType.ARRAY:
        return draw(_NUMBERS[kind]), kind, None
    element = draw(st.sampled_from([*_NUMBERS, gguf.GGUFValueType.STRING]))
    each = _TEXTS if element == gguf.GGUFValueType.STRING else _NUMBERS[element]
    return draw(st.lists(each, min_size=1, max_size=20)), kind, element


@st.composite
def _tensors(draw: st.DrawFn) -> tuple[int, tuple[int, ...]]:
    """type and dims, row length first"""
    type_id = draw(st.sampled_from(_TYPES))
    blocks = draw(st.integers(1, 3))
    rest = draw(st.lists(st.integers(1, 3), max_size=3))
    return type_id, (blocks * GGML_TYPES[type_id].block_elements, *rest)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _write(
    path: Path,
    values: dict[str, tuple[Any, Any, Any]],
    tensors: dict[str, tuple[int, tuple[int, ...]]],
    alignment: int,
    per_shard: int = 0,
) -> None:
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=per_shard)
    writer.add_custom_alignment(alignment)
    for key, (value, kind, element) in values.items():
        writer.add_key_value(key, value, kind, element)
    for name, (type_id, dims) in tensors.items():
        item = GGML_TYPES[type_id]
        row_bytes = dims[0] // item.block_elements * item.block_bytes
        data = np.zeros((*reversed(dims[1:]), row_bytes), np.uint8)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType(type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _expected(value: Any, kind: Any, element: Any) -> object:
    if kind != gguf.GGUFValueType.ARRAY:
        return value
    return ArrayInfo("str", len(value)) if element == gguf.GGUFValueType.STRING else tuple(value)


@settings(max_examples=150, deadline=None)
@given(
    values=st.dictionaries(_NAMES.filter(lambda key: not key.startswith("general.")), _values(), max_size=8),
    tensors=st.dictionaries(_NAMES, _tensors(), max_size=8),
    alignment=st.sampled_from([8, 32, 64, 4096]),
)
def test_reads_what_the_gguf_package_writes(
    folder: Path,
    values: dict[str, tuple[Any, Any, Any]],
    tensors: dict[str, tuple[int, tuple[int, ...]]],
    alignment: int,
) -> None:
    path = folder / "m.gguf"
    _write(path, values, tensors, alignment)
    model = read_gguf(path)
    for key, value in values.items():
        assert model.metadata[key] == _expected(*value), key
    assert len(model.metadata) == len(values) + 2
    assert model.files[0].alignment == alignment
    oracle = gguf.GGUFReader(path)
    assert [_directory_row(tensor) for tensor in model.tensors] == [
        (item.name, tuple(map(int, item.shape)), int(item.tensor_type), item.data_offset, item.n_bytes)
        for item in oracle.tensors
    ]
    assert [(tensor.type_id, tensor.dims) for tensor in model.tensors] == list(tensors.values())
    del oracle  # it maps the file that the next example rewrites
    _agrees(model, engine_header(path))


@settings(max_examples=25, deadline=None)
@given(tensors=st.dictionaries(_NAMES, _tensors(), min_size=2, max_size=7), per_shard=st.integers(1, 3))
def test_reads_shards_that_the_gguf_package_writes(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[int, tuple[int, ...]]], per_shard: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    _write(folder / "m.gguf", {}, tensors, 32, per_shard)
    paths = sorted(folder.iterdir())
    assert len(paths) == -(-len(tensors) // per_shard)
    model = read_gguf(paths[-1])
    assert [file.path for file in model.files] == paths
    expected = [
        (index, int(item.tensor_type), item.data_offset, item.n_bytes, item.name)
        for index, path in enumerate(paths)
        for item in gguf.GGUFReader(path).tensors
    ]
    found = [(item.file_index, item.type_id, item.offset, item.nbytes, item.name) for item in model.tensors]
    assert found == expected


def _directory_row(tensor: Any) -> tuple[object, ...]:
    return tensor.name, tensor.dims, tensor.type_id, tensor.offset, tensor.nbytes


def _seeds() -> list[bytes]:
    moe = language_model("qwen3moe", 2, expert_count=4, expert_used_count=2, nextn_predict_layers=1)
    moe.array("tokenizer.ggml.tokens", STRING, ["a", "bc", ""]).array("qwen3moe.list", U16, [1, 2])
    add_experts(add_experts(moe, 0, 4, type_id=Q8_0), 1, 4, type_id=MXFP4)
    return [
        moe.header(),
        GgufBuilder().aligned(64).tensor("a", (3,)).tensor("b", (32, 2), Q8_0).header(),
        GgufBuilder(version=2).key("split.count", U16, 1).key("n", U32, 7).header(),
    ]


_NASTY = [0, 1, 8, 9, 0x7F, 0x80, 0xFF, 2**16, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "repeat"]),
        st.floats(0, 1),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from([struct.pack("<Q", value) for value in _NASTY]),
            st.sampled_from([struct.pack("<I", value & 0xFFFFFFFF) for value in _NASTY]),
        ),
    ),
    min_size=1,
    max_size=4,
)


def _edited(data: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for action, where, piece in edits:
        at = int(where * len(data))
        if action == "set":
            data = data[:at] + piece + data[at + len(piece) :]
        elif action == "insert":
            data = data[:at] + piece + data[at:]
        elif action == "delete":
            data = data[:at] + data[at + len(piece) :]
        else:
            data = data[:at] + data[max(at - 16 * len(piece), 0) : at] + data[at:]
    return data


# what this reader refuses and the engine's parser does not, each for a reason of its own
_STRICTER = (
    "is cut off",  # the engine compares the data with the file's length later, while loading
    "is not UTF-8",  # no tensor or key of a model is
    "NUL byte",
    "is more than 65535",  # a key's length, as the format's own description limits it
    "is empty; the file is damaged",  # a tensor's name
    "split.",  # the engine reads these keys later too
)


@settings(max_examples=1000, deadline=None)
@given(seed=st.sampled_from(_seeds()), edits=_EDITS, tail_bytes=st.sampled_from([0, 64, 1 << 20]))
def test_damaged_headers(
    folder: Path, seed: bytes, edits: list[tuple[str, float, bytes]], tail_bytes: int
) -> None:
    path = folder / "damaged.gguf"
    path.write_bytes(_edited(seed, edits))
    with path.open("ab") as file:
        file.truncate(file.tell() + tail_bytes)
    engine = engine_header(path)
    start_s = time.process_time()
    tracemalloc.start()
    try:
        model = read_gguf(path)
        _map_or_refuse(model)
    except ModelError as error:
        assert error.message.startswith(f"{path}: ") and "\n" not in error.message
        assert engine is None or any(reason in error.message for reason in _STRICTER), error.message
    else:
        _agrees(model, engine)
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 8 * 2**20
    assert time.process_time() - start_s < 2


def _map_or_refuse(model: GgufModel) -> None:
    try:
        mapped = build_model_map(model)
    except ModelError:
        return
    assert mapped.dense_bytes + mapped.expert_bytes == sum(tensor.nbytes for tensor in model.tensors)


def _agrees(model: GgufModel, engine: EngineHeader | None) -> None:
    assert engine is not None, "the engine refuses what was read"
    (file,) = model.files
    assert engine.version == model.version
    assert engine.key_count == len(model.metadata)
    assert (engine.alignment, engine.data_offset) == (file.alignment, file.header_bytes)
    assert list(engine.tensors) == [
        (tensor.name.encode(), tensor.type_id, tensor.offset, tensor.nbytes) for tensor in model.tensors
    ]
