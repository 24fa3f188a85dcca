"""Settings as frozen values with all defaults in one place.

Built once at the edge (``cli.settings``); nothing below reads the environment. ``validate`` returns a reason, or
None when the setting can work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOAD_MODES = ("auto", "streaming", "mmap")
IO_MODES = ("auto", "uring", "threads", "buffered", "pagecache")
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
POLICIES = ("lru",)


@dataclass(frozen=True)
class LoadConfig:
    """How one model is loaded. Sizes in bytes; None means decided from the machine or the model."""

    model: Path
    memory_bytes: int | None = None  # total budget of parent and worker
    load_mode: str = "auto"
    io: str = "auto"
    max_experts: int = -1  # arena of N experts per MoE layer; -1: from the budget
    policy: str = "lru"
    n_ctx: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = 1
    n_threads: int | None = None
    n_threads_batch: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    cache_ram_bytes: int | None = None  # host prompt cache; None: planned inside the budget
    ctx_checkpoints: int | None = None  # per slot; None: planned inside the budget
    n_gpu_layers: int | None = None
    embeddings: bool = False
    pooling: str | None = None
    chat_template: str | None = None
    alias: str | None = None

    def validate(self) -> str | None:
        """A reason this cannot work, or None."""
        for name, value, allowed in (
            ("load mode", self.load_mode, LOAD_MODES),
            ("io mode", self.io, IO_MODES),
            ("policy", self.policy, POLICIES),
            ("K cache type", self.cache_type_k, KV_TYPES),
            ("V cache type", self.cache_type_v, KV_TYPES),
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
        if self.n_ctx is not None and self.n_ctx < 0:
            return f"context size must be 0 (from the model) or more, not {self.n_ctx}"
        if self.max_experts == 0 or self.max_experts < -1:
            return f"max experts must be -1 (from the budget) or at least 1, not {self.max_experts}"
        if self.load_mode == "mmap" and self.max_experts != -1:
            return "an arena of experts (max experts) has no effect with load mode mmap; drop one of the two"
        return None
