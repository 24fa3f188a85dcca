"""The type table against the pinned engine's own, asked through its exported functions."""

from __future__ import annotations

import ctypes

from guanaco.gguf.types import GGML_TYPES, REMOVED_GGML_TYPES
from tests.support.engine_gguf import engine_library


def test_types_equal_the_engines() -> None:
    engine = engine_library()
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
