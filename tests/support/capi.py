"""llama.cpp's C interface through ctypes: load a GGUF, decode tokens, read logits exactly.

Owns the calls the exactness gates need, on the very library of the pinned ``xllamacpp`` wheel but without
its Python module, so that a preloaded ``libguanaco.so`` sees the same calls as in the worker. Leaves the
struct layouts to ``capi_structs``. Refuses an engine whose layouts have moved.
"""

from __future__ import annotations

import ctypes as ct
import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tests.support.capi_structs import (
    LOAD_MODE_MMAP,
    PINNED_ENGINE,
    TYPE_F16,
    Batch,
    ContextParams,
    ModelParams,
    layout_faults,
)

Logits = npt.NDArray[np.float32]
_LOG_CALLBACK = ct.CFUNCTYPE(None, ct.c_int, ct.c_char_p, ct.c_void_p)


class EngineFaultError(AssertionError):
    """The engine is missing, of another layout, or refused a model or a batch."""


def engine_library() -> Path:
    """The shared library of the installed wheel, found without importing the wheel."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        raise EngineFaultError(f"xllamacpp is not installed; the gates need xllamacpp=={PINNED_ENGINE}")
    folder = Path(next(iter(spec.submodule_search_locations)))
    libraries = sorted(folder.glob("xllamacpp*.so"))
    if len(libraries) != 1:
        raise EngineFaultError(f"{folder} holds {len(libraries)} shared libraries, expected one")
    return libraries[0]


_log: list[str] = []


@_LOG_CALLBACK  # type: ignore[untyped-decorator, unused-ignore]
def _append_log(level: int, text: bytes, user_data: int) -> None:
    _log.append(text.decode("utf-8", "replace"))


def captured_log() -> str:
    """Everything the engine has logged since the last ``clear_log``."""
    return "".join(_log)


def clear_log() -> None:
    _log.clear()


@functools.cache
def engine() -> Any:
    """The loaded library with its signatures set, checked once a process."""
    # Read when OpenMP is loaded: threads that spin long starve every other process of the machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    lib = ct.CDLL(str(engine_library()))
    faults = layout_faults(lib)
    if faults:
        raise EngineFaultError(f"the engine is not {PINNED_ENGINE}:\n  " + "\n  ".join(faults))
    pointer, int32, uint32 = ct.c_void_p, ct.c_int32, ct.c_uint32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "llama_backend_init": (None, []),
        "llama_log_set": (None, [pointer, pointer]),
        "llama_model_load_from_file": (pointer, [ct.c_char_p, ModelParams]),
        "llama_model_free": (None, [pointer]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_model_n_layer": (int32, [pointer]),
        "llama_vocab_n_tokens": (int32, [pointer]),
        "llama_init_from_model": (pointer, [pointer, ContextParams]),
        "llama_free": (None, [pointer]),
        "llama_n_ctx": (uint32, [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ct.c_bool]),
        "llama_decode": (int32, [pointer, Batch]),
        "llama_synchronize": (None, [pointer]),
        "llama_get_logits_ith": (ct.POINTER(ct.c_float), [pointer, int32]),
        "llama_tokenize": (int32, [pointer, ct.c_char_p, int32, pointer, int32, ct.c_bool, ct.c_bool]),
        "llama_token_to_piece": (int32, [pointer, int32, ct.c_char_p, int32, int32, ct.c_bool]),
    }
    for name, (restype, argtypes) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    lib.llama_log_set(ct.cast(_append_log, pointer), None)
    lib.llama_backend_init()
    return lib


@dataclass(frozen=True)
class Greedy:
    """A greedy continuation: the tokens and the logits each was chosen from."""

    tokens: list[int]
    logits: Logits  # one row a token


class Model:
    """One model with one context. Not safe for threads; close it, or use it as a context manager."""

    def __init__(
        self,
        path: Path | str,
        *,
        load_mode: int = LOAD_MODE_MMAP,
        use_extra_bufts: bool = False,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int = 2,
        type_k: int = TYPE_F16,
        type_v: int = TYPE_F16,
    ) -> None:
        self._lib = lib = engine()
        self._model: int | None = None
        self._context: int | None = None
        model_params: ModelParams = lib.llama_model_default_params()
        model_params.load_mode = load_mode
        model_params.use_extra_bufts = use_extra_bufts
        model_params.n_gpu_layers = 0
        clear_log()
        self._model = lib.llama_model_load_from_file(str(path).encode(), model_params)
        if not self._model:
            raise EngineFaultError(f"the engine cannot load {path}:\n{captured_log()[-2000:]}")
        params: ContextParams = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_ubatch
        params.n_outputs_max_per_seq = 0  # all rows of a batch may be asked for
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k, params.type_v = type_k, type_v
        params.op_offload = False
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            lib.llama_model_free(self._model)
            self._model = None
            raise EngineFaultError(f"no context of {n_ctx} tokens for {path}:\n{captured_log()[-2000:]}")
        self._vocab: int = lib.llama_model_get_vocab(self._model)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx: int = lib.llama_n_ctx(self._context)
        self.n_batch = n_batch

    def decode(self, tokens: Sequence[int], *, all_rows: bool = False) -> Logits:
        """Append tokens to the sequence; the logits of the last one, or a row for each with ``all_rows``.

        A prompt longer than ``n_batch`` is fed in pieces of it, as the server does. Compare runs only with
        the same ``all_rows``: the last layer's kernels differ with the number of rows asked for.
        """
        rows: list[Logits] = []
        for start in range(0, len(tokens), self.n_batch):
            piece = tokens[start : start + self.n_batch]
            is_last = start + len(piece) == len(tokens)
            flags = [int(all_rows)] * len(piece)
            if is_last:
                flags[-1] = 1
            self._decode_batch(piece, flags)
            rows += [self._row(i) for i, flag in enumerate(flags) if flag]
        return np.stack(rows) if all_rows else rows[-1]

    def _decode_batch(self, tokens: Sequence[int], flags: Sequence[int]) -> None:
        n = len(tokens)
        token_array, flag_array = (ct.c_int32 * n)(*tokens), (ct.c_int8 * n)(*flags)
        batch = Batch(n, token_array, None, None, None, None, flag_array)
        status = self._lib.llama_decode(self._context, batch)
        if status != 0:
            raise EngineFaultError(f"llama_decode of {n} tokens returned {status}:\n{captured_log()[-2000:]}")

    def _row(self, index: int) -> Logits:
        pointer = self._lib.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise EngineFaultError(f"no logits for row {index}")
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,)).astype(np.float32, copy=True)

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> Greedy:
        """Clear, feed the prompt and take the most likely token ``n_tokens`` times (ties: the lowest id)."""
        self.clear()
        logits, tokens, rows = self.decode(prompt), [], []
        for index in range(n_tokens):
            tokens.append(int(np.argmax(logits)))
            rows.append(logits)
            if index + 1 < n_tokens:
                logits = self.decode(tokens[-1:])
        return Greedy(tokens, np.stack(rows))

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        raw = text.encode()
        size = len(raw) + 8
        out = (ct.c_int32 * size)()
        count = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, size, add_special, True)
        if count < 0:
            raise EngineFaultError(f"cannot tokenize {text!r}: {count}")
        return list(out[:count])

    def piece(self, token: int) -> bytes:
        buffer = ct.create_string_buffer(256)
        count = self._lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if count < 0:
            raise EngineFaultError(f"token {token} has no text: {count}")
        return buffer.raw[:count]

    def clear(self) -> None:
        """Forget the sequence; weights and buffers stay."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def close(self) -> None:
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._context = self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
