"""llama.cpp's public C interface, as far as a dry run needs it.

Owns the struct layouts, mirrored by hand, and the check that they are the engine's: its default parameters
are known, so a moved field shows. Leaves what is done with it to ``dryrun``. Refuses an engine whose
defaults differ. The shared object is found without importing the package, which would start far more than
is needed here.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from guanaco.engine.llama import ENGINE_NAME, ENGINE_VERSION
from guanaco.errors import EngineError

_Fields = list[tuple[str, Any]]
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_PADDING_BYTES = 512


class ModelParams(ctypes.Structure):
    """``struct llama_model_params``."""

    _fields_: ClassVar[_Fields] = [
        ("devices", ctypes.c_void_p),
        ("tensor_buft_overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", ctypes.c_void_p),
        ("progress_callback", ctypes.c_void_p),
        ("progress_callback_user_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("no_host", ctypes.c_bool),
        ("no_alloc", ctypes.c_bool),
        ("load_mtp", ctypes.c_bool),
    ]


class ContextParams(ctypes.Structure):
    """``struct llama_context_params``."""

    _fields_: ClassVar[_Fields] = [
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("n_rs_seq", ctypes.c_uint32),
        ("n_outputs_max", ctypes.c_uint32),
        ("n_outputs_max_per_seq", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("ctx_type", ctypes.c_int),
        ("rope_scaling_type", ctypes.c_int),
        ("pooling_type", ctypes.c_int),
        ("attention_type", ctypes.c_int),
        ("flash_attn_type", ctypes.c_int),
        ("rope_freq_base", ctypes.c_float),
        ("rope_freq_scale", ctypes.c_float),
        ("yarn_ext_factor", ctypes.c_float),
        ("yarn_attn_factor", ctypes.c_float),
        ("yarn_beta_fast", ctypes.c_float),
        ("yarn_beta_slow", ctypes.c_float),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag_thold", ctypes.c_float),
        ("cb_eval", ctypes.c_void_p),
        ("cb_eval_user_data", ctypes.c_void_p),
        ("type_k", ctypes.c_int),
        ("type_v", ctypes.c_int),
        ("moe_cache_size", ctypes.c_size_t),
        ("abort_callback", ctypes.c_void_p),
        ("abort_callback_data", ctypes.c_void_p),
        ("embeddings", ctypes.c_bool),
        ("offload_kqv", ctypes.c_bool),
        ("no_perf", ctypes.c_bool),
        ("op_offload", ctypes.c_bool),
        ("swa_full", ctypes.c_bool),
        ("kv_unified", ctypes.c_bool),
        ("samplers", ctypes.c_void_p),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", ctypes.c_void_p),
    ]


# Defaults other than zero. Every field is compared, so one that moved shows at the next.
_MODEL_DEFAULTS: dict[str, object] = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
}
_CONTEXT_DEFAULTS: dict[str, object] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}


class Llama:
    """The engine's functions, opened and checked. Modifies process-wide state: it sets the engine's log."""

    def __init__(self, path: Path, on_log: Callable[[int, str], None]) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise EngineError(f"the engine library {path.name} cannot be opened: {error}") from error
        self._on_log = _LogCallback(lambda level, text, _: on_log(level, text.decode(errors="replace")))
        self._function("llama_log_set", None, _LogCallback, ctypes.c_void_p)(self._on_log, None)
        model = self._defaults("llama_model_default_params", ModelParams, _MODEL_DEFAULTS)
        context = self._defaults("llama_context_default_params", ContextParams, _CONTEXT_DEFAULTS)
        self.model_params: Callable[[], ModelParams] = lambda: ModelParams.from_buffer_copy(model)
        self.context_params: Callable[[], ContextParams] = lambda: ContextParams.from_buffer_copy(context)
        self._function("llama_backend_init", None)()
        handle = ctypes.c_void_p
        self.load_model = self._function("llama_model_load_from_file", handle, ctypes.c_char_p, ModelParams)
        self.free_model = self._function("llama_model_free", None, handle)
        self.new_context = self._function("llama_init_from_model", handle, handle, ContextParams)
        self.free_context = self._function("llama_free", None, handle)

    def has_cpu_feature(self, name: str) -> bool:
        """Whether the engine was built for, and runs on, a processor with this feature ("avx2", "neon")."""
        return bool(self._function(f"ggml_cpu_has_{name}", ctypes.c_int)())

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise EngineError(f"the engine has no function {name}; {_way_out()}") from error
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _defaults(self, name: str, struct: Any, expected: dict[str, object]) -> Any:
        class Padded(ctypes.Structure):  # an engine with a longer struct must not write past the end
            _fields_: ClassVar[_Fields] = [("params", struct), ("padding", ctypes.c_byte * _PADDING_BYTES)]

        returned = self._function(name, Padded)()
        params = struct.from_buffer_copy(returned)
        for field, _ in struct._fields_:
            value = getattr(params, field) or 0
            if value != expected.get(field, 0):
                raise EngineError(
                    f"the engine's {struct.__name__}.{field} is {value!r} by default, not "
                    f"{expected.get(field, 0)!r}: its layout is another version's; {_way_out()}"
                )
        return params


def library_path() -> Path:
    """The engine's shared object; raises EngineError when the package is not installed."""
    spec = importlib.util.find_spec(ENGINE_NAME)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob(f"{ENGINE_NAME}*.so")):
            return path
    raise EngineError(f"the engine {ENGINE_NAME} is not installed; {_way_out()}")


def _way_out() -> str:
    return f"install it with: pip install {ENGINE_NAME}=={ENGINE_VERSION}"
