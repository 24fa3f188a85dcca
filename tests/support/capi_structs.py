"""Memory layouts of llama.cpp's public parameter structs, and the check that they have not moved.

Owns the ctypes mirrors of ``llama_model_params``, ``llama_context_params`` and ``llama_batch`` for the
pinned engine. Leaves loading and calling to ``capi``. Refuses an engine whose defaults or struct sizes
differ: a field that has moved would otherwise change a test's meaning without a word.
"""

from __future__ import annotations

import ctypes as ct
import platform
from typing import Any

PINNED_ENGINE = "2026.10.11549"

LOAD_MODE_NONE, LOAD_MODE_MMAP, LOAD_MODE_DIRECT_IO = 0, 1, 4
TYPE_F32, TYPE_F16, TYPE_Q8_0 = 0, 1, 8

# Bytes past our struct that must stay untouched when the engine fills it in.
_GUARD_BYTES = 512
_GUARD = 0xA5


class ModelParams(ct.Structure):
    _fields_ = [
        ("devices", ct.c_void_p),
        ("tensor_buft_overrides", ct.c_void_p),
        ("n_gpu_layers", ct.c_int32),
        ("split_mode", ct.c_int),
        ("load_mode", ct.c_int),
        ("lazy_mode", ct.c_int),
        ("main_gpu", ct.c_int32),
        ("tensor_split", ct.c_void_p),
        ("progress_callback", ct.c_void_p),
        ("progress_callback_user_data", ct.c_void_p),
        ("kv_overrides", ct.c_void_p),
        ("vocab_only", ct.c_bool),
        ("check_tensors", ct.c_bool),
        ("use_extra_bufts", ct.c_bool),
        ("no_host", ct.c_bool),
        ("no_alloc", ct.c_bool),
        ("load_mtp", ct.c_bool),
    ]


class ContextParams(ct.Structure):
    _fields_ = [
        ("n_ctx", ct.c_uint32),
        ("n_batch", ct.c_uint32),
        ("n_ubatch", ct.c_uint32),
        ("n_seq_max", ct.c_uint32),
        ("n_rs_seq", ct.c_uint32),
        ("n_outputs_max", ct.c_uint32),
        ("n_outputs_max_per_seq", ct.c_uint32),
        ("n_threads", ct.c_int32),
        ("n_threads_batch", ct.c_int32),
        ("ctx_type", ct.c_int),
        ("rope_scaling_type", ct.c_int),
        ("pooling_type", ct.c_int),
        ("attention_type", ct.c_int),
        ("flash_attn_type", ct.c_int),
        ("rope_freq_base", ct.c_float),
        ("rope_freq_scale", ct.c_float),
        ("yarn_ext_factor", ct.c_float),
        ("yarn_attn_factor", ct.c_float),
        ("yarn_beta_fast", ct.c_float),
        ("yarn_beta_slow", ct.c_float),
        ("yarn_orig_ctx", ct.c_uint32),
        ("defrag_thold", ct.c_float),
        ("cb_eval", ct.c_void_p),
        ("cb_eval_user_data", ct.c_void_p),
        ("type_k", ct.c_int),
        ("type_v", ct.c_int),
        ("moe_cache_size", ct.c_size_t),
        ("abort_callback", ct.c_void_p),
        ("abort_callback_data", ct.c_void_p),
        ("embeddings", ct.c_bool),
        ("offload_kqv", ct.c_bool),
        ("no_perf", ct.c_bool),
        ("op_offload", ct.c_bool),
        ("swa_full", ct.c_bool),
        ("kv_unified", ct.c_bool),
        ("samplers", ct.c_void_p),
        ("n_samplers", ct.c_size_t),
        ("ctx_other", ct.c_void_p),
    ]


class Batch(ct.Structure):
    _fields_ = [
        ("n_tokens", ct.c_int32),
        ("token", ct.POINTER(ct.c_int32)),
        ("embd", ct.c_void_p),
        ("pos", ct.c_void_p),
        ("n_seq_id", ct.c_void_p),
        ("seq_id", ct.c_void_p),
        ("logits", ct.POINTER(ct.c_int8)),
    ]


_MODEL_DEFAULTS = {
    "devices": None,
    "tensor_buft_overrides": None,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "progress_callback": None,
    "progress_callback_user_data": None,
    "kv_overrides": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "cb_eval": None,
    "cb_eval_user_data": None,
    "type_k": TYPE_F16,
    "type_v": TYPE_F16,
    "moe_cache_size": 0,
    "abort_callback": None,
    "abort_callback_data": None,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}


def _written_bytes(function: Any, size_bytes: int) -> int:
    """Bytes the engine writes for a struct it returns by value (x86-64: through a hidden pointer)."""
    buffer = (ct.c_uint8 * (size_bytes + _GUARD_BYTES))(*([_GUARD] * (size_bytes + _GUARD_BYTES)))
    address = ct.cast(function, ct.c_void_p).value or 0
    ct.CFUNCTYPE(ct.c_void_p, ct.c_void_p)(address)(ct.addressof(buffer))
    data = bytes(buffer)
    return len(data.rstrip(bytes([_GUARD])))


def layout_faults(lib: ct.CDLL) -> list[str]:
    """Every way in which this engine's parameter structs differ from the mirrors; empty when all is well."""
    faults = []
    for name, struct, defaults in (
        ("llama_model_default_params", ModelParams, _MODEL_DEFAULTS),
        ("llama_context_default_params", ContextParams, _CONTEXT_DEFAULTS),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = struct, []
        values = function()
        for field, expected in defaults.items():
            got = getattr(values, field)
            if got != expected:
                faults.append(f"{name}: {field} reads {got!r}, expected {expected!r}")
        if platform.machine() == "x86_64":
            written = _written_bytes(function, ct.sizeof(struct))
            # The compiler may leave the padding at the end alone, never more than one word.
            if not ct.sizeof(struct) - 8 < written <= ct.sizeof(struct):
                faults.append(
                    f"{name}: the engine writes {written} bytes, the mirror has {ct.sizeof(struct)}"
                )
    return faults
