"""The type table against the pinned engine's own, asked through its exported functions."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from guanaco.gguf.types import GGML_TYPES, REMOVED_GGML_TYPES


def test_types_equal_the_engines() -> None:
    spec = find_spec("xllamacpp")
    assert spec is not None and spec.origin is not None
    (library,) = Path(spec.origin).parent.glob("xllamacpp*.so")
    engine = ctypes.CDLL(str(library))
    engine.ggml_type_name.restype = ctypes.c_char_p
    engine.ggml_blck_size.restype = ctypes.c_int64
    engine.ggml_type_size.restype = ctypes.c_size_t
    for type_id, item in GGML_TYPES.items():
        found = (
            engine.ggml_type_name(type_id),
            engine.ggml_blck_size(type_id),
            engine.ggml_type_size(type_id),
        )
        assert found == (item.name.encode(), item.block_elements, item.block_bytes), type_id
    for type_id in REMOVED_GGML_TYPES:
        assert engine.ggml_blck_size(type_id) == 0, type_id
