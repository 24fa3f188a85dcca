"""What the engine itself says a context would take, as frozen values.

Owns the shape of that report and of the question it answers. Leaves asking to ``engine.dryrun`` and
formulas for when there is no report to ``memory``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContextBytes:
    """Memory of one context of ``n_ctx`` tokens in all, processed ``n_ubatch`` at a time."""

    n_ctx: int
    n_ubatch: int
    kv_bytes: int  # every KV cache, sliding windows included
    window_bytes: int  # the part of kv_bytes in sliding windows: what a context checkpoint copies
    state_bytes: int  # recurrent state of all sequences
    compute_bytes: int
    output_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.state_bytes + self.compute_bytes + self.output_bytes


@dataclass(frozen=True)
class ReportRequest:
    """The contexts to ask the engine about, and the settings that change their size."""

    contexts: tuple[tuple[int, int], ...]  # (n_ctx, n_ubatch)
    n_batch: int
    n_parallel: int
    n_threads: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    embeddings: bool
    n_draft: int = 0  # most tokens of a draft
    has_mtp: bool = False  # the model's own layers draft, in a context of their own
    draft_model: str | None = None  # first file of a model that drafts, in a context of its own
    draft_identity: tuple[int, ...] = ()  # what tells its files from changed ones


@dataclass(frozen=True)
class EngineReport:
    """One answer. ``repack_types`` are the quantisations this engine build copies to a faster layout."""

    engine_version: str
    contexts: tuple[ContextBytes, ...]
    repack_types: tuple[str, ...]

    def find(self, n_ctx: int, n_ubatch: int) -> ContextBytes | None:
        for row in self.contexts:
            if (row.n_ctx, row.n_ubatch) == (n_ctx, n_ubatch):
                return row
        return None
