"""The pinned engine's own GGUF parser as an oracle, through its exported C functions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@dataclass(frozen=True)
class EngineHeader:
    version: int
    key_count: int
    alignment: int
    data_offset: int
    tensors: tuple[tuple[bytes, int, int, int], ...]  # name, type, absolute offset, bytes


def _ignore(level: int, message: bytes, data: object) -> None:
    """The parser prints every refusal."""


_IGNORE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_ignore)


@cache
def engine_library() -> ctypes.CDLL:
    spec = find_spec("xllamacpp")
    assert spec is not None and spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("xllamacpp*.so")
    library = ctypes.CDLL(str(path))
    library.ggml_log_set.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = (ctypes.c_char_p, _Params)
    by_context: tuple[tuple[str, Any], ...] = (
        ("gguf_get_version", ctypes.c_uint32),
        ("gguf_get_n_kv", ctypes.c_int64),
        ("gguf_get_alignment", ctypes.c_size_t),
        ("gguf_get_data_offset", ctypes.c_size_t),
        ("gguf_get_n_tensors", ctypes.c_int64),
        ("gguf_free", None),
    )
    for name, result in by_context:
        function = getattr(library, name)
        function.restype, function.argtypes = result, (ctypes.c_void_p,)
    by_tensor: tuple[tuple[str, Any], ...] = (
        ("gguf_get_tensor_name", ctypes.c_char_p),
        ("gguf_get_tensor_type", ctypes.c_int),
        ("gguf_get_tensor_offset", ctypes.c_size_t),
        ("gguf_get_tensor_size", ctypes.c_size_t),
    )
    for name, result in by_tensor:
        function = getattr(library, name)
        function.restype, function.argtypes = result, (ctypes.c_void_p, ctypes.c_int64)
    return library


@contextmanager
def _quiet(engine: ctypes.CDLL) -> Iterator[None]:
    """The log callback is the whole process's: put back what was there."""
    callback, data = ctypes.c_void_p(), ctypes.c_void_p()
    engine.ggml_log_get(ctypes.byref(callback), ctypes.byref(data))
    engine.ggml_log_set(_IGNORE, None)
    try:
        yield
    finally:
        engine.ggml_log_set(callback, data)


def engine_header(path: Path) -> EngineHeader | None:
    """None: the engine refuses the header. It does not look at the length of the tensor data here."""
    engine = engine_library()
    with _quiet(engine):
        context = engine.gguf_init_from_file(str(path).encode(), _Params(True, None))
    if not context:
        return None
    try:
        start = engine.gguf_get_data_offset(context)
        return EngineHeader(
            version=engine.gguf_get_version(context),
            key_count=engine.gguf_get_n_kv(context),
            alignment=engine.gguf_get_alignment(context),
            data_offset=start,
            tensors=tuple(
                (
                    engine.gguf_get_tensor_name(context, index),
                    engine.gguf_get_tensor_type(context, index),
                    start + engine.gguf_get_tensor_offset(context, index),
                    engine.gguf_get_tensor_size(context, index),
                )
                for index in range(engine.gguf_get_n_tensors(context))
            ),
        )
    finally:
        engine.gguf_free(context)
