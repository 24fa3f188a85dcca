"""The one file that knows xllamacpp's Python names.

Owns: the pinned engine version, the settings a worker is started with, and how they become the engine's own
parameters. Leaves processes to ``engine.engine`` and expert streaming to the native library. Refuses an
engine of another version: the seam is proven for exactly one. Imports the engine only in a worker.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guanaco.config import LoadConfig, SamplingConfig
from guanaco.errors import EngineError
from guanaco.planner.plan import Plan
from guanaco.units import MIB

ENGINE_NAME = "xllamacpp"
ENGINE_VERSION = "2026.10.11549"
ENGINE_LABEL = f"{ENGINE_NAME} {ENGINE_VERSION}"
COMPUTE_ERROR = "Compute error."  # what the requests of a batch whose graph failed are told
MOST_CPUS = 512  # processors that the engine can name
_HTTP_THREADS = 2  # always alive; the engine adds one per open request and ends it afterwards
_LOG_WARN, _LOG_INFO = 2, 3


@dataclass(frozen=True)
class WorkerSettings:
    """All a worker needs to start its engine; travels as JSON."""

    model_path: str
    alias: str
    api_key: str
    streaming: bool
    preload: str | None  # library that must have been preloaded
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_parallel: int
    n_threads: int
    n_threads_batch: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    no_extra_bufts: bool
    cache_ram_bytes: int
    ctx_checkpoints: int
    ctx_shift: bool
    cache_reuse_tokens: int
    sse_ping_s: int | None
    embeddings: bool
    pooling: str | None
    chat_template: str | None
    slot_save_path: str | None
    draft_sources: tuple[str, ...]
    draft_model_path: str | None
    n_draft: int
    sampling: SamplingConfig
    verbose: bool
    warmup: bool
    cpus: tuple[int, ...]  # one for each thread; (): the kernel chooses

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerSettings:
        fields = json.loads(text)
        fields["sampling"], fields["cpus"] = SamplingConfig(**fields["sampling"]), tuple(fields["cpus"])
        fields["draft_sources"] = tuple(fields["draft_sources"])
        return cls(**fields)


def worker_settings(
    config: LoadConfig,
    plan: Plan,
    sampling: SamplingConfig,
    *,
    first_file: Path,
    alias: str,
    api_key: str,
    preload: str | None,
    verbose: bool,
    warmup: bool = True,
    cpus: tuple[int, ...] = (),
) -> WorkerSettings:
    """What the user asked for, as far as the plan allows it. Pure."""
    return WorkerSettings(
        model_path=str(first_file),
        alias=alias,
        api_key=api_key,
        streaming=plan.mode == "streaming",
        preload=preload,
        n_ctx=plan.n_ctx,
        n_batch=plan.n_batch,
        n_ubatch=plan.n_ubatch,
        n_parallel=plan.n_parallel,
        n_threads=plan.n_threads,
        n_threads_batch=config.n_threads_batch or plan.n_threads,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        flash_attn=config.flash_attn,
        no_extra_bufts=plan.no_extra_bufts,
        cache_ram_bytes=plan.cache_ram_bytes,
        ctx_checkpoints=plan.ctx_checkpoints,
        ctx_shift=config.ctx_shift,
        cache_reuse_tokens=config.cache_reuse_tokens,
        sse_ping_s=config.sse_ping_s,
        embeddings=config.embeddings,
        pooling=config.pooling,
        chat_template=config.chat_template,
        slot_save_path=None if config.slot_save_path is None else f"{config.slot_save_path}/",
        draft_sources=config.draft_sources,
        draft_model_path=None if config.draft_model is None else str(config.draft_model),
        n_draft=config.n_draft,
        sampling=sampling,
        verbose=verbose,
        warmup=warmup,
        cpus=cpus,
    )


def import_engine() -> Any:
    """The engine's module; raises EngineError when it is missing or not the pinned version."""
    try:
        import xllamacpp
    except ImportError as problem:
        raise EngineError(
            f"the engine {ENGINE_NAME} cannot be imported ({problem}); "
            f"install it with: pip install {ENGINE_NAME}=={ENGINE_VERSION}"
        ) from problem
    check_version(str(xllamacpp.__version__))
    return xllamacpp


def check_version(installed: str) -> None:
    """Raises EngineError unless ``installed`` is the version the seam was proven for."""
    if installed != ENGINE_VERSION:
        raise EngineError(
            f"the installed {ENGINE_NAME} is version {installed}, but this Guanaco works with "
            f"{ENGINE_VERSION} only; install it with: pip install {ENGINE_NAME}=={ENGINE_VERSION}",
            installed=installed,
            required=ENGINE_VERSION,
        )


def common_params(settings: WorkerSettings, engine: Any) -> Any:
    """The engine's ``CommonParams``. What is not set here keeps llama.cpp's default."""
    params = engine.CommonParams()
    params.model.path = settings.model_path
    params.model_alias = {settings.alias}

    # Only our own parent talks to it: loopback, a free port, a random key, no browser pages.
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings.api_key]
    params.cors_origins = "localhost"
    params.ui = False
    params.n_threads_http = _HTTP_THREADS
    params.endpoint_metrics = True
    params.verbosity = _LOG_INFO if settings.verbose else _LOG_WARN

    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = settings.n_ubatch
    params.n_parallel = settings.n_parallel
    params.cpuparams.n_threads = settings.n_threads
    params.cpuparams_batch.n_threads = settings.n_threads_batch
    for threads in (params.cpuparams, params.cpuparams_batch) if settings.cpus else ():
        threads.cpumask = [cpu in settings.cpus for cpu in range(MOST_CPUS)]
        threads.mask_valid = threads.strict_cpu = True
    params.cache_type_k = _kv_type(engine, settings.cache_type_k)
    params.cache_type_v = _kv_type(engine, settings.cache_type_v)
    params.flash_attn_type = _flash_attn(engine, settings.flash_attn)
    params.cache_ram_mib = settings.cache_ram_bytes // MIB
    params.cache_idle_slots = params.cache_ram_mib > 0
    params.n_ctx_checkpoints = settings.ctx_checkpoints
    params.ctx_shift = settings.ctx_shift
    params.n_cache_reuse = settings.cache_reuse_tokens
    if settings.slot_save_path is not None:
        params.slot_save_path = settings.slot_save_path
    if settings.sse_ping_s is not None:
        params.sse_ping_interval = settings.sse_ping_s
    params.n_gpu_layers = 0  # this engine build has no card
    params.fit_params = False  # the plan is the only one who decides sizes
    params.no_extra_bufts = settings.no_extra_bufts
    params.warmup = settings.warmup

    if settings.streaming:
        # Weights stay where the file maps them, nothing is copied, moved or read ahead of use.
        params.load_mode = engine.llama_load_mode.LLAMA_LOAD_MODE_MMAP
        params.no_extra_bufts = True
        params.no_op_offload = True
        params.warmup = False
        params.check_tensors = False

    params.embedding = settings.embeddings
    if settings.pooling is not None:
        name = f"LLAMA_POOLING_TYPE_{settings.pooling.upper()}"
        params.pooling_type = engine.llama_pooling_type[name]
    if settings.chat_template is not None:
        params.chat_template = settings.chat_template
    _apply_drafting(params.speculative, settings, engine)
    _apply_sampling(params, settings.sampling, engine)
    return params


def start_server(settings: WorkerSettings) -> tuple[Any, str]:
    """Load the model and start the engine's server; returns it and its ``host:port``.

    Blocks, and holds the interpreter lock, until the model is loaded. Keep the server object alive.
    """
    engine = import_engine()
    try:
        server = engine.Server(common_params(settings, engine))
    except (RuntimeError, ValueError, MemoryError) as problem:
        raise EngineError(
            f"llama.cpp could not load {Path(settings.model_path).name}",
            engine_message=str(problem),
        ) from problem
    return server, str(server.listening_address).removeprefix("http://")


def _kv_type(engine: Any, name: str) -> Any:
    return engine.ggml_type[f"GGML_TYPE_{name.upper()}"]


def _flash_attn(engine: Any, name: str) -> Any:
    word = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[name]
    return engine.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{word}"]


def _apply_drafting(speculative: Any, settings: WorkerSettings, engine: Any) -> None:
    """``speculative``: the engine's ``CommonParamsSpeculative``."""
    if not settings.draft_sources:
        return
    kinds = engine.common_speculative_type
    speculative.types = [
        kinds[f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}"] for name in settings.draft_sources
    ]
    speculative.draft.n_max = settings.n_draft
    if settings.draft_model_path is not None:
        speculative.draft.mparams.path = settings.draft_model_path
    for ngrams in (speculative.ngram_simple, speculative.ngram_map_k, speculative.ngram_map_k4v):
        ngrams.size_m = settings.n_draft
    # It drafts nothing that is shorter than what it looks for.
    speculative.ngram_simple.size_n = min(speculative.ngram_simple.size_n, settings.n_draft)
    speculative.ngram_mod.n_max = settings.n_draft
    speculative.ngram_mod.n_min = min(speculative.ngram_mod.n_min, settings.n_draft)


def _apply_sampling(params: Any, sampling: SamplingConfig, engine: Any) -> None:
    """Set what the user chose and mark it, so that the model's own recommendations do not replace it."""
    chosen = {
        "temp": (sampling.temperature, "TEMP"),
        "top_k": (sampling.top_k, "TOP_K"),
        "top_p": (sampling.top_p, "TOP_P"),
        "min_p": (sampling.min_p, "MIN_P"),
    }
    for name, (value, mark) in chosen.items():
        if value is not None:
            setattr(params.sampling, name, value)
            bit = engine.common_params_sampling_config[f"COMMON_PARAMS_SAMPLING_CONFIG_{mark}"].value
            params.sampling.user_sampling_config |= bit
    if sampling.seed is not None:
        params.sampling.seed = sampling.seed & 0xFFFFFFFF  # -1 is the engine's "random"
    if sampling.n_predict is not None:
        params.n_predict = sampling.n_predict
