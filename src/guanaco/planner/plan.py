"""The plan of one load, as frozen values: what is held in memory, where the experts go, and why.

Pure data between the planner and the engine. The JSON of ``guanaco plan`` is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guanaco.planner.card import CardPlan


@dataclass(frozen=True)
class SizeClass:
    """Slots of one size. A slot holds every part of one expert, each at ``part_offsets`` (4 KiB aligned)
    with 4 KiB of room for the head of an unaligned slice; slots lie ``stride_bytes`` apart."""

    roles: tuple[str, ...]
    slice_bytes: tuple[int, ...]
    part_offsets: tuple[int, ...]
    stride_bytes: int
    slots: int


@dataclass(frozen=True)
class MemoryParts:
    """Where the budget goes, in bytes. Their sum is the planned total."""

    dense_bytes: int
    kv_bytes: int
    compute_bytes: int
    engine_bytes: int  # libraries, interpreter, parent, malloc arenas, header cache, vocabulary
    arena_bytes: int
    staging_bytes: int
    prompt_cache_bytes: int
    headroom_bytes: int
    expert_bytes: int = 0  # experts of a resident model, in the file's mapping
    repack_bytes: int = 0  # the engine's faster copies of weights
    draft_bytes: int = 0  # a draft model, or what else finds drafts

    @property
    def total_bytes(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class Plan:
    placement: str  # "gpu" | "moe_experts_cpu:N" | "moe_experts_stream:N" | "cpu" | "stream"
    mode: str  # "resident" | "streaming" | "dense"
    budget_bytes: int
    parts: MemoryParts
    classes: tuple[SizeClass, ...]
    group_class: tuple[int, ...]  # class of each ModelMap.groups entry; -1: none
    n_ctx: int
    n_parallel: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    no_extra_bufts: bool
    cache_ram_bytes: int
    ctx_checkpoints: int
    reason: str
    warnings: tuple[str, ...] = ()
    limited_by: str | None = None
    vram_bytes: int = 0
    drive_bytes: int = 0  # expert bytes left on the drive
    card: CardPlan | None = None  # what is on cards; None: nothing
    details: dict[str, int | float | str | None] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return sum(item.slots for item in self.classes)
