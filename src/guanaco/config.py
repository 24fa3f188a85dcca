"""Settings as frozen values with all defaults in one place.

Built once at the edge (``cli.settings``); nothing below reads the environment. ``validate`` returns a reason,
or None when the setting can work.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

LOAD_MODES = ("auto", "streaming", "mmap")
IO_MODES = ("auto", "uring", "threads", "buffered", "pagecache")
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POLICIES = ("recall", "cycle", "lru", "lfu", "herd")
PILOTS = ("auto", "gate", "transition", "off")
FLASH_ATTN = ("auto", "on", "off")
POOLING = ("none", "mean", "cls", "last", "rank")
NGRAM_DRAFTS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
SPEC_TYPES = ("none", "draft-simple", "draft-mtp", *NGRAM_DRAFTS)
_SHIFTABLE_K_TYPES = ("f16", "f32")  # the engine ends at the first shift of any other
_PLAIN_KV_TYPES = ("f32", "f16", "bf16")
_MOST_INT32 = (1 << 31) - 1  # counts are 32-bit numbers in the engine
_DRAFT_TOKENS, _NGRAM_DRAFT_TOKENS, _MOST_DRAFT_TOKENS = 3, 8, 64
_FEWEST_TOKENS = 2  # the engine tries every context with two tokens at once, and aborts when it cannot


@dataclass(frozen=True)
class LoadConfig:
    """How one model is loaded. Sizes in bytes; None means decided from the machine or the model."""

    model: Path
    memory_bytes: int | None = None  # total budget of parent and worker
    load_mode: str = "auto"
    io: str = "auto"
    max_experts: int = -1  # arena of N experts per MoE layer; -1: from the budget
    policy: str = "recall"
    pilot: str = "auto"  # whose guesses of the next layer's experts are read early
    pilot_mass: float = 0.9  # learned transitions are followed until they cover this much probability
    imatrix: bool = True  # start with the experts that the imatrix beside the model, or earlier use, names
    n_ctx: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    grow_ubatch: bool = False  # nobody chose: a streamed model gets a larger one where it costs little
    n_parallel: int = 1
    n_threads: int | None = None
    n_threads_batch: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    cache_ram_bytes: int | None = None  # host prompt cache; None: planned inside the budget
    ctx_checkpoints: int | None = None  # per slot; None: planned inside the budget
    ctx_shift: bool = (
        False  # when the context is full its oldest half is dropped, instead of ending the answer
    )
    cache_reuse_tokens: int = 0  # smallest piece of an earlier prompt that is reused at another place; 0: off
    slot_save_path: Path | None = None  # folder of saved slots; None: slots are not saved
    sse_ping_s: int | None = None  # a comment on a stream that is silent so long; None: the engine's default
    spec_types: tuple[str, ...] = ()  # where drafts come from, () or none: nowhere; the engine orders them
    draft_model: Path | None = None  # one for draft-simple
    n_draft_max: int | None = None  # tokens of a draft; None: 3, or 8 where n-grams draft
    draft_always: bool = False  # also when it does not pay
    n_gpu_layers: int | None = None
    cpu_moe_layers: int = -1  # leading layers whose experts stay on the host; -1: as few as it takes
    flash_attn: str = "auto"
    embeddings: bool = False
    pooling: str | None = None
    chat_template: str | None = None
    alias: str | None = None

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """What drafts. A draft model that is named drafts, as in llama-server."""
        named = tuple(dict.fromkeys(name for name in self.spec_types if name != "none"))
        has_model = self.draft_model is not None and not self.spec_types
        return (*named, "draft-simple") if has_model else named

    @property
    def drafts_by_mtp(self) -> bool:
        return "draft-mtp" in self.draft_sources

    @property
    def has_draft_context(self) -> bool:
        """Whether what drafts keeps keys and values of its own."""
        return bool({"draft-simple", "draft-mtp"} & set(self.draft_sources))

    @property
    def n_draft(self) -> int:
        """Most tokens of a draft; 0: nothing drafts."""
        if not self.draft_sources:
            return 0
        has_ngrams = any(name in NGRAM_DRAFTS for name in self.draft_sources)
        return self.n_draft_max or (_NGRAM_DRAFT_TOKENS if has_ngrams else _DRAFT_TOKENS)

    @property
    def decode_tokens(self) -> int:
        """Most tokens of a batch in which every request goes on: one of each, and its draft."""
        return self.n_parallel * (1 + self.n_draft)

    @property
    def fewest_batch_tokens(self) -> int:
        """The smallest logical batch."""
        return max(_FEWEST_TOKENS, self.decode_tokens)

    @property
    def fewest_ubatch_tokens(self) -> int:
        """The smallest physical batch: embeddings are computed in one piece, and the engine keeps together
        what a model's own layers may have to take back."""
        if self.embeddings:
            return self.fewest_batch_tokens
        return self.n_draft + 2 if self.drafts_by_mtp else 1

    @property
    def can_shift(self) -> bool:
        """Whether the engine can move what is in the K cache to other places."""
        return self.cache_type_k in _SHIFTABLE_K_TYPES

    def validate(self) -> str | None:
        """A reason this cannot work, or None."""
        for name, value, allowed in (
            ("load mode", self.load_mode, LOAD_MODES),
            ("io mode", self.io, IO_MODES),
            ("policy", self.policy, POLICIES),
            ("pilot", self.pilot, PILOTS),
            ("K cache type", self.cache_type_k, KV_TYPES),
            ("V cache type", self.cache_type_v, KV_TYPES),
            ("flash attention", self.flash_attn, FLASH_ATTN),
            ("pooling", self.pooling or "none", POOLING),
        ):
            if value not in allowed:
                return f"{name} {value!r} is unknown; choose one of {', '.join(allowed)}"
        for name, number in (
            ("batch", self.n_batch),
            ("ubatch", self.n_ubatch),
            ("parallel", self.n_parallel),
        ):
            if number < 1:
                return f"{name} must be at least 1, not {number}"
        if self.n_ctx is not None and (self.n_ctx < 0 or 0 < self.n_ctx < _FEWEST_TOKENS):
            return f"context size must be 0 (from the model) or at least {_FEWEST_TOKENS}, not {self.n_ctx}"
        if self.n_batch < self.fewest_batch_tokens:
            drafted = f" and drafts of {self.n_draft}" if self.n_draft else ""
            return (
                f"batch must be at least {self.fewest_batch_tokens} with {self.n_parallel} requests at once"
                f"{drafted}, not {self.n_batch}; use a larger -b or a smaller -np"
            )
        if self.drafts_by_mtp and self.n_ubatch < self.fewest_ubatch_tokens:
            return (
                f"ubatch must be at least {self.fewest_ubatch_tokens} for drafts of {self.n_draft} by the "
                f"model's own layers, not {self.n_ubatch}; use a larger -ub or a smaller --spec-draft-n-max"
            )
        if self.embeddings and self.n_ubatch < self.fewest_ubatch_tokens:
            return (
                f"ubatch must be at least {self.fewest_batch_tokens} for embeddings with {self.n_parallel} "
                f"requests at once, not {self.n_ubatch}; use a larger -ub or a smaller -np"
            )
        if self.max_experts == 0 or self.max_experts < -1:
            return f"max experts must be -1 (from the budget) or at least 1, not {self.max_experts}"
        if self.load_mode == "mmap" and self.max_experts != -1:
            return "an arena of experts (max experts) has no effect with load mode mmap; drop one of the two"
        for name, count in (("threads", self.n_threads), ("batch threads", self.n_threads_batch)):
            if count is not None and count < 1:
                return f"{name} must be at least 1, not {count}"
        if self.ctx_checkpoints is not None and self.ctx_checkpoints < 0:
            return f"context checkpoints must be 0 or more, not {self.ctx_checkpoints}"
        if self.cache_reuse_tokens < 0:
            return f"cache reuse must be 0 (off) or more tokens, not {self.cache_reuse_tokens}"
        if self.sse_ping_s is not None and self.sse_ping_s < -1:
            return f"SSE ping interval must be -1 (off) or more seconds, not {self.sse_ping_s}"
        if not 0 < self.pilot_mass <= 1:
            return f"pilot mass must be above 0 and at most 1, not {self.pilot_mass:g}"
        if not self.can_shift and (self.ctx_shift or self.cache_reuse_tokens):
            return (
                f"K cache type {self.cache_type_k} cannot be shifted by the engine; "
                "use -ctk f16, or leave out --context-shift and --cache-reuse"
            )
        if self.flash_attn == "off" and self.cache_type_v not in _PLAIN_KV_TYPES:
            return f"V cache type {self.cache_type_v} needs flash attention; drop '-fa off' or use -ctv f16"
        if self.pooling is not None and not self.embeddings:
            return "pooling has no effect without --embeddings; drop it or add --embeddings"
        return (
            self._validate_drafts()
            or self._validate_saving()
            or _too_large(
                context=self.n_ctx,
                batch=self.n_batch,
                ubatch=self.n_ubatch,
                parallel=self.n_parallel,
                threads=self.n_threads,
                batch_threads=self.n_threads_batch,
                context_checkpoints=self.ctx_checkpoints,
                cache_reuse=self.cache_reuse_tokens,
                sse_ping_interval=self.sse_ping_s,
                max_experts=self.max_experts,
            )
        )

    def _validate_saving(self) -> str | None:
        if self.slot_save_path is None:
            return None
        if self.embeddings:
            return "embeddings keep nothing in a slot; drop --slot-save-path"
        if self.has_draft_context:
            return "a saved slot does not hold what a drafting model knows; drop one of the two"
        return None

    def _validate_drafts(self) -> str | None:
        for name in self.spec_types:
            if name not in SPEC_TYPES:
                return f"speculative decoding {name!r} is unknown; choose one of {', '.join(SPEC_TYPES)}"
        if self.draft_sources and self.embeddings:
            return "embeddings are not decoded, so nothing can be drafted; drop --spec-type and -md"
        if self.ctx_shift and any(name.startswith("ngram-map") for name in self.draft_sources):
            return "the engine ends when a context is shifted under ngram-map-k; use ngram-mod instead"
        fewest = max(self.fewest_batch_tokens, self.fewest_ubatch_tokens)
        if self.n_draft and 0 < (self.n_ctx or 0) < fewest:
            return (
                f"context size must be at least {fewest} with drafts of {self.n_draft}, not {self.n_ctx}; "
                "use a larger -c or a smaller --spec-draft-n-max"
            )
        if "draft-simple" in self.draft_sources and self.draft_model is None:
            return "draft-simple needs a draft model; name one with -md"
        if self.draft_model is not None and "draft-simple" not in self.draft_sources:
            return "a draft model has no effect without --spec-type draft-simple; drop -md or add it"
        if self.drafts_by_mtp and self.draft_model is not None:
            return "draft-mtp and a draft model cannot be used together; drop one of the two"
        if self.n_draft_max is not None and not 1 <= self.n_draft_max <= _MOST_DRAFT_TOKENS:
            return f"draft tokens must be 1 to {_MOST_DRAFT_TOKENS}, not {self.n_draft_max}"
        for name, is_set in (
            ("a limit of draft tokens", self.n_draft_max is not None),
            ("drafting always", self.draft_always),
        ):
            if is_set and not self.draft_sources:
                return f"{name} has no effect where nothing drafts; add --spec-type or -md"
        return None


def _too_large(**counts: int | None) -> str | None:
    for name, count in counts.items():
        if count is not None and count > _MOST_INT32:
            return f"{name.replace('_', ' ')} must be at most {_MOST_INT32}, not {count}"
    return None


@dataclass(frozen=True)
class SamplingConfig:
    """How tokens are picked when a request does not say. None: the model's own default, else the engine's."""

    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    n_predict: int | None = None  # -1: until the model stops

    def validate(self) -> str | None:
        """A reason this cannot work, or None."""
        for name, share in (("top-p", self.top_p), ("min-p", self.min_p)):
            if share is not None and not 0.0 <= share <= 1.0:
                return f"{name} must lie between 0 and 1, not {share}"
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            return f"temperature must be 0 (greedy) or more, not {self.temperature}"
        if self.top_k is not None and self.top_k < 0:
            return f"top-k must be 0 (off) or more, not {self.top_k}"
        if self.n_predict is not None and self.n_predict < -1:
            return f"tokens to predict must be -1 (until the model stops) or more, not {self.n_predict}"
        if self.seed is not None and not -1 <= self.seed < 1 << 32:
            return f"seed must be -1 (random) or below 2^32, not {self.seed}"
        return _too_large(top_k=self.top_k, tokens_to_predict=self.n_predict)


@dataclass(frozen=True)
class ServeConfig:
    """Where the HTTP server listens and who may use it."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def validate(self) -> str | None:
        """A reason this cannot work, or None."""
        if not 0 <= self.port <= 65535:
            return f"port must lie between 0 (any free one) and 65535, not {self.port}"
        if not self.is_loopback and not self.api_keys:
            return (
                f"host {self.host} can be reached from other machines; "
                "set --api-key as well, or listen on 127.0.0.1"
            )
        return None
