"""What the parent, the worker and the engine take beyond weights, context and slots.

Owns the constants, each with the measurement it comes from (``docs/memory.md`` says how to repeat them).
Leaves summing up to ``placement``. They are upper ends of what was measured, not averages: the budget is a
promise.
"""

from __future__ import annotations

from guanaco.model.map import ModelMap
from guanaco.units import KIB, MIB

_PARENT_BYTES = 40 * MIB
_WORKER_BYTES = 60 * MIB
_LIBRARY_CACHE_BYTES = 60 * MIB
_TOKEN_BYTES = 512
_TENSOR_BYTES = 16 * KIB
_SEQUENCE_TOKEN_BYTES = 16
_THREAD_BYTES = 256 * KIB
_HEADROOM_BYTES = 16 * MIB
_HEADROOM_SHARE = 64


def engine_bytes(model: ModelMap, n_threads: int, n_parallel: int) -> int:
    """Both processes, their libraries' file cache, the vocabulary, the graph and the header's file cache."""
    return (
        _PARENT_BYTES
        + _WORKER_BYTES
        + _LIBRARY_CACHE_BYTES
        + model.n_vocab * (_TOKEN_BYTES + n_parallel * _SEQUENCE_TOKEN_BYTES)
        + len(model.gguf.tensors) * _TENSOR_BYTES
        + n_threads * _THREAD_BYTES
        + sum(file.header_bytes for file in model.files)
    )


def headroom_bytes(budget_bytes: int) -> int:
    """Kept free for what no plan sees: page tables, sockets, fragments, a request's text."""
    return _HEADROOM_BYTES + budget_bytes // _HEADROOM_SHARE
