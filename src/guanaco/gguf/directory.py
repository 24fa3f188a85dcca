"""The tensor directory of one file: names, shapes, types and where each tensor's bytes lie.

Refuses what llama.cpp refuses: tensors that are not back to back in directory order, data beyond the end
of the file, shapes that overflow. Reads no tensor data.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

from guanaco.gguf.cursor import Cursor
from guanaco.gguf.problem import CONVERT_AGAIN, FETCH_AGAIN, model_error, shown
from guanaco.gguf.types import GGML_TYPES, REMOVED_GGML_TYPES, GgmlType, TensorInfo
from guanaco.gguf.values import read_text

SMALLEST_ENTRY_BYTES = 24

_MAX_DIMS = 4
_MAX_NAME_BYTES = 63
_INT64_MAX = (1 << 63) - 1


def read_directory(
    cursor: Cursor, count: int, file_index: int, alignment: int
) -> tuple[tuple[TensorInfo, ...], int]:
    """The tensors with absolute offsets, and where their data begins."""
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    end = 0
    for index in range(count):
        tensor = _read_tensor(cursor, index, file_index)
        if tensor.name in names:
            raise model_error(cursor.path, f"tensor {shown(tensor.name)}", "is there twice", CONVERT_AGAIN)
        names.add(tensor.name)
        _check_offset(cursor.path, tensor, end, alignment)
        tensors.append(tensor)
        end += padded(tensor.nbytes, alignment)
    if not tensors:
        return (), cursor.position
    data_start = padded(cursor.position, alignment)
    placed = tuple(replace(tensor, offset=data_start + tensor.offset) for tensor in tensors)
    _check_extent(cursor, placed, data_start)
    return placed, data_start


def padded(size: int, alignment: int) -> int:
    return (size + alignment - 1) & ~(alignment - 1)


def _read_tensor(cursor: Cursor, index: int, file_index: int) -> TensorInfo:
    """The offset is still relative to the start of the data."""
    name = read_text(cursor, f"tensor #{index}", _MAX_NAME_BYTES)
    if not name:
        raise model_error(cursor.path, f"name of tensor #{index}", "is empty", FETCH_AGAIN)
    label = f"tensor {shown(name)}"
    dim_count = cursor.u32(f"dimension count of {label}")
    if dim_count > _MAX_DIMS:
        problem = f"has {dim_count} dimensions, more than {_MAX_DIMS}"
        raise model_error(cursor.path, label, problem, FETCH_AGAIN, dim_count)
    fields = struct.unpack(f"<{dim_count}qiQ", cursor.take(8 * dim_count + 12, label))
    dims, type_id, offset = fields[:dim_count], fields[-2], fields[-1]
    ggml_type = _ggml_type(cursor.path, label, type_id)
    nbytes = _tensor_bytes(cursor.path, label, dims, ggml_type)
    return TensorInfo(name, dims, type_id, ggml_type.name, file_index, offset, nbytes)


def _ggml_type(path: Path, label: str, type_id: int) -> GgmlType:
    if type_id in REMOVED_GGML_TYPES:
        problem = f"is of type {REMOVED_GGML_TYPES[type_id]}, which llama.cpp no longer reads"
        raise model_error(path, label, problem, "convert the model again", type_id)
    if type_id not in GGML_TYPES:
        way_out = "update Guanaco if the type is new, else download the file again"
        raise model_error(path, label, f"has the unknown type {type_id}", way_out, type_id)
    return GGML_TYPES[type_id]


def _tensor_bytes(path: Path, label: str, dims: tuple[int, ...], ggml_type: GgmlType) -> int:
    elements = 1
    for dim in dims:
        if dim < 0:
            raise model_error(path, label, f"has a negative dimension in {dims}", FETCH_AGAIN, dims)
        elements *= dim
        if elements > _INT64_MAX:
            raise model_error(path, label, f"has too many elements: {dims}", FETCH_AGAIN, dims)
    row = dims[0] if dims else 1
    if row % ggml_type.block_elements:
        problem = (
            f"has rows of {row} elements, not whole {ggml_type.name} blocks of {ggml_type.block_elements}"
        )
        raise model_error(path, label, problem, FETCH_AGAIN, dims)
    return elements // ggml_type.block_elements * ggml_type.block_bytes


def _check_offset(path: Path, tensor: TensorInfo, expected: int, alignment: int) -> None:
    if tensor.offset == expected:
        return
    if tensor.offset % alignment:
        problem = f"is {tensor.offset}, not a multiple of the alignment {alignment}"
    elif tensor.offset < expected:
        problem = f"is {tensor.offset}: it overlaps the tensors before it, which end at {expected}"
    else:
        problem = f"is {tensor.offset}: it leaves a gap after the tensors before it, which end at {expected}"
    raise model_error(path, f"offset of tensor {shown(tensor.name)}", problem, CONVERT_AGAIN, tensor.offset)


def _check_extent(cursor: Cursor, tensors: tuple[TensorInfo, ...], data_start: int) -> None:
    end = max(data_start, tensors[-1].offset + tensors[-1].nbytes)
    if end > cursor.size_bytes:
        beyond = [item for item in tensors if item.offset + item.nbytes > cursor.size_bytes] or tensors
        problem = f"is cut off: the file has {cursor.size_bytes} of {end} bytes"
        raise model_error(cursor.path, f"data of tensor {shown(beyond[0].name)}", problem, FETCH_AGAIN)
