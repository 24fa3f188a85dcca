"""Metadata keys and values. Keeps numbers and short texts, skips the rest; knows no key's meaning."""

from __future__ import annotations

import struct

from guanaco.gguf.cursor import Budget, Cursor
from guanaco.gguf.problem import FETCH_AGAIN, model_error, shown
from guanaco.gguf.types import ARRAY_TYPE, STRING_TYPE, VALUE_TYPES, ArrayInfo
from guanaco.units import MIB

KEPT_NUMBERS = 4096  # longer lists become an ArrayInfo
KEPT_TEXT_BYTES = MIB  # longer texts too

_MAX_KEY_BYTES = 65535
_MAX_ELEMENTS = 1 << 30  # as llama.cpp limits lists and texts
_KEPT_NUMBER_BYTES = 40  # of one number in a tuple
_KEPT_KEY_BYTES = 200


def read_metadata(cursor: Cursor, count: int, budget: Budget) -> tuple[dict[str, object], dict[str, str]]:
    """Values and value type names by key."""
    metadata: dict[str, object] = {}
    value_types: dict[str, str] = {}
    for index in range(count):
        key = read_text(cursor, f"metadata key #{index}", _MAX_KEY_BYTES)
        if not key or key in metadata:
            problem = "is there twice" if key else "is empty"
            raise model_error(cursor.path, f"metadata key #{index} {shown(key)}", problem, FETCH_AGAIN, key)
        budget.spend("bytes of metadata", _KEPT_KEY_BYTES + len(key), cursor.path)
        value_types[key], metadata[key] = _read_value(cursor, f"metadata {shown(key)}", budget)
    return metadata, value_types


def read_text(cursor: Cursor, name: str, limit: int) -> str:
    """A key or a name: short, valid UTF-8, without NUL (llama.cpp would cut it there)."""
    length = cursor.u64(f"length of {name}")
    if length > limit:
        problem = f"{length} is more than {limit}"
        raise model_error(cursor.path, f"length of {name}", problem, FETCH_AGAIN, length)
    raw = cursor.take(length, name)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise model_error(cursor.path, f"{name} {shown(raw)}", "is not UTF-8", FETCH_AGAIN, raw) from None
    if "\0" in text:
        raise model_error(cursor.path, f"{name} {shown(raw)}", "holds a NUL byte", FETCH_AGAIN, raw)
    return text


def _read_value(cursor: Cursor, name: str, budget: Budget) -> tuple[str, object]:
    type_id = cursor.i32(f"type of {name}")
    if type_id not in VALUE_TYPES:
        raise model_error(cursor.path, name, f"has the unknown value type {type_id}", FETCH_AGAIN, type_id)
    value_type = VALUE_TYPES[type_id]
    if type_id == ARRAY_TYPE:
        return value_type.name, _read_array(cursor, name, budget)
    if type_id != STRING_TYPE:
        return value_type.name, struct.unpack(f"<{value_type.code}", cursor.take(value_type.nbytes, name))[0]
    length = cursor.u64(f"length of {name}")
    if length > KEPT_TEXT_BYTES:
        _check_elements(cursor, f"length of {name}", length)
        cursor.skip(length, name)
        return value_type.name, ArrayInfo(value_type.name, length)
    budget.spend("bytes of metadata", length, cursor.path)
    return value_type.name, cursor.take(length, name).decode("utf-8", "replace")


def _read_array(cursor: Cursor, name: str, budget: Budget) -> object:
    type_id = cursor.i32(f"element type of {name}")
    if type_id not in VALUE_TYPES or type_id == ARRAY_TYPE:
        problem = "is a list of lists" if type_id == ARRAY_TYPE else f"has the unknown element type {type_id}"
        raise model_error(cursor.path, name, problem, FETCH_AGAIN, type_id)
    value_type = VALUE_TYPES[type_id]
    count = cursor.u64(f"count of {name}")
    _check_elements(cursor, f"count of {name}", count)
    if type_id == STRING_TYPE:
        cursor.skip_strings(count, name)
        return ArrayInfo(value_type.name, count)
    nbytes = count * value_type.nbytes
    if count > KEPT_NUMBERS:
        cursor.skip(nbytes, name)
        return ArrayInfo(value_type.name, count)
    budget.spend("bytes of metadata", count * _KEPT_NUMBER_BYTES, cursor.path)
    return struct.unpack(f"<{count}{value_type.code}", cursor.take(nbytes, name))


def _check_elements(cursor: Cursor, name: str, count: int) -> None:
    if count > _MAX_ELEMENTS:
        raise model_error(cursor.path, name, f"{count} is more than {_MAX_ELEMENTS}", FETCH_AGAIN, count)
