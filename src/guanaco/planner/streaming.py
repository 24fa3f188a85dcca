"""Experts in slots, the rest on the drive: the plan of a MoE model that does not fit.

Owns that plan: the batch size, the slots of every class, what is left for the prompt cache. Leaves the
choice between it and the resident plan to ``placement``. A budget that is too small is None.
"""

from __future__ import annotations

from guanaco.config import LoadConfig
from guanaco.planner.load import Load, resident_dense_bytes
from guanaco.planner.memory import OVERLAP_ROWS, rows_bytes, work_bytes
from guanaco.planner.overheads import headroom_bytes
from guanaco.planner.plan import MemoryParts, Plan
from guanaco.planner.slots import (
    arena_bytes,
    capped_slots,
    fit_slots,
    group_classes,
    needed_slots,
    staging_bytes,
)
from guanaco.units import MIB, format_bytes

_LAZY_SHARE, _LAZY_FEWEST_BYTES = 16, 64 * MIB
# Of the budget, for a batch larger than the usual one.
_GROWTH_SHARE = 32


def streaming_plan(load: Load, budget_bytes: int) -> Plan | None:
    """The largest batch that has room, its layers in waves if need be, then as many experts as fit."""
    larger: int | None = None
    for n_ubatch in load.batches:
        slots = _slots(load, budget_bytes, n_ubatch, larger)
        if slots is not None:
            return _plan(load, budget_bytes, _grown_batch(load, budget_bytes, n_ubatch, slots), slots)
        larger = n_ubatch
    return None


def least_experts_per_layer(load: Load) -> int:
    """The smallest arena, in experts per MoE layer, that can run the smallest batch."""
    needed = _needed_slots(load, load.costs.batches[0])
    most = max(group.n_expert for group in load.model.groups)
    return next(
        (
            count
            for count in range(1, most + 1)
            if all(have >= need for have, need in zip(capped_slots(load.classes, count), needed, strict=True))
        ),
        most,
    )


def _needed_slots(load: Load, n_ubatch: int) -> tuple[int, ...]:
    # The page cache has no slots that experts could pass through.
    return needed_slots(load.classes, n_ubatch, in_waves=load.config.io != "pagecache")


def _slots(load: Load, budget_bytes: int, n_ubatch: int, larger: int | None) -> tuple[int, ...] | None:
    """Slots of each class, or None. ``larger``: the next batch size up, which had no room.

    Slots beyond what that batch needs are not taken: otherwise a little more memory would buy the larger
    batch and pay for it with experts.
    """
    room = _room(load, budget_bytes, n_ubatch)

    def fits(slots: tuple[int, ...]) -> bool:
        return arena_bytes(load.classes, slots) + _work_bytes(load, n_ubatch, slots) <= room

    needed = _needed_slots(load, n_ubatch)
    if load.config.max_experts > 0:
        asked = capped_slots(load.classes, load.config.max_experts)
        return asked if all(map(int.__ge__, asked, needed)) and fits(asked) else None
    everything = tuple(item.n_experts for item in load.classes)
    most = everything if larger is None else _needed_slots(load, larger)
    growth = _growth_share(load, budget_bytes) if larger is None else 0
    room -= growth
    found = fit_slots(load.classes, needed, most, fits)
    if found is not None or not growth:
        return found
    room += growth
    return needed if fits(needed) else None


def _growth_share(load: Load, budget_bytes: int) -> int:
    """Set aside for a larger batch, whether it is enough for one or not.

    Else a little more memory would buy the batch and pay for it with experts. What is not needed goes to the
    prompt cache.
    """
    if not load.grown_batches:
        return 0
    everything = tuple(item.n_experts for item in load.classes)
    most = _growth_bytes(load, load.costs.sizes[-1], load.batches[0], load.grown_batches[0], everything)
    return min(budget_bytes // _GROWTH_SHARE, most)


def _growth_bytes(load: Load, n_ctx: int, n_ubatch: int, larger: int, slots: tuple[int, ...]) -> int:
    return (load.context_bytes(n_ctx, larger) + _work_bytes(load, larger, slots)) - (
        load.context_bytes(n_ctx, n_ubatch) + _work_bytes(load, n_ubatch, slots)
    )


def _left_for_growth(load: Load, budget_bytes: int, slots: tuple[int, ...]) -> int:
    """Of what is set aside for a larger batch, what the slots have left.

    All that is left when they hold every expert.
    """
    n_ubatch = load.batches[0]
    taken = arena_bytes(load.classes, slots) + _work_bytes(load, n_ubatch, slots)
    left = _room(load, budget_bytes, n_ubatch) - taken
    return left if _holds_all(load, slots) else min(_growth_share(load, budget_bytes), left)


def _holds_all(load: Load, slots: tuple[int, ...]) -> bool:
    return all(count == item.n_experts for item, count in zip(load.classes, slots, strict=True))


def _grown_batch(load: Load, budget_bytes: int, n_ubatch: int, slots: tuple[int, ...]) -> int:
    """The largest batch that what is set aside pays for, or the one that has room anyway."""
    if n_ubatch != load.batches[0] or not load.grown_batches:
        return n_ubatch
    left = _left_for_growth(load, budget_bytes, slots)
    n_ctx = load.pick_context(load.context_limit(budget_bytes))
    fitting = (
        size
        for size in load.grown_batches
        if _growth_bytes(load, n_ctx, n_ubatch, size, slots) <= left
        and all(map(int.__ge__, slots, _needed_slots(load, size)))
    )
    return next(fitting, n_ubatch)


def _room(load: Load, budget_bytes: int, n_ubatch: int) -> int:
    """What is left for the arena and the work buffer."""
    return budget_bytes - (
        _dense_bytes(load, budget_bytes)
        + staging_bytes(load.model)
        + load.overhead(budget_bytes)
        + load.context_share(budget_bytes, n_ubatch)
    )


def _dense_bytes(load: Load, budget_bytes: int) -> int:
    """Dense weights, and file cache for tables that are read by rows."""
    tables = sum(item.nbytes for item in load.model.dense if item.is_lazy_table)
    return resident_dense_bytes(load.model, has_mtp=load.config.drafts_by_mtp) + min(
        tables, max(_LAZY_FEWEST_BYTES, budget_bytes // _LAZY_SHARE)
    )


def _work_bytes(load: Load, n_ubatch: int, slots: tuple[int, ...]) -> int:
    """The engine's row tables span a whole class at worst, because a layer's slots may lie anywhere in it."""
    products = tuple(
        (count, max(group.top_k for groups in item.layers for group in groups))
        for item, count in zip(load.classes, slots, strict=True)
    )
    engine = work_bytes(load.model, n_ubatch, load.most_threads, products)
    return engine + _overlap_bytes(load, n_ubatch, products)


def _overlap_bytes(load: Load, n_ubatch: int, products: tuple[tuple[int, int], ...]) -> int:
    """Of products that the library computes itself while experts are read: a work buffer, rows in and out."""
    # One expert may be every token's.
    rows = min(max(OVERLAP_ROWS, n_ubatch), n_ubatch * max(n_used for _, n_used in products))
    of_token = work_bytes(load.model, 1, load.most_threads, products)
    of_rows = work_bytes(load.model, rows, load.most_threads, tuple((count, 1) for count, _ in products))
    return max(of_token, of_rows) + rows_bytes(load.model, rows)


def _n_batch(config: LoadConfig, n_ubatch: int) -> int:
    """With several clients what is computed at once: between two batches the engine serves the others."""
    if config.embeddings or config.n_parallel > 1:
        return max(n_ubatch, config.fewest_batch_tokens)
    return config.n_batch


def _plan(load: Load, budget_bytes: int, n_ubatch: int, slots: tuple[int, ...]) -> Plan:
    model, config, classes = load.model, load.config, load.classes
    arena, work = arena_bytes(classes, slots), _work_bytes(load, n_ubatch, slots)
    n_ctx = load.pick_context(load.context_limit(budget_bytes))
    row = load.costs.at(n_ctx, n_ubatch)
    usual = min(n_ubatch, load.batches[0])
    spare = load.context_share(budget_bytes, usual) - load.context_bytes(n_ctx, usual)
    if usual == load.batches[0] and (load.grown_batches or _holds_all(load, slots)):
        spare += _left_for_growth(load, budget_bytes, slots)
    spare -= _growth_bytes(load, n_ctx, usual, n_ubatch, slots)
    checkpoints = load.checkpoints(budget_bytes, n_ctx, n_ubatch)
    cache_ram_bytes = load.prompt_cache(spare)
    held_bytes = sum(item.expert_bytes * count for item, count in zip(classes, slots, strict=True))
    return Plan(
        placement="stream",
        mode="streaming",
        budget_bytes=budget_bytes,
        parts=MemoryParts(
            dense_bytes=_dense_bytes(load, budget_bytes),
            kv_bytes=row.kv_bytes + row.state_bytes,
            compute_bytes=row.compute_bytes + row.output_bytes + work,
            engine_bytes=load.engine_bytes,
            arena_bytes=arena,
            staging_bytes=staging_bytes(model),
            prompt_cache_bytes=cache_ram_bytes + checkpoints * load.checkpoint_bytes(n_ctx, n_ubatch),
            headroom_bytes=headroom_bytes(budget_bytes),
            draft_bytes=load.draft_bytes + load.draft_context_bytes(n_ctx, n_ubatch),
        ),
        classes=tuple(item.with_slots(count) for item, count in zip(classes, slots, strict=True)),
        group_class=group_classes(model, has_mtp=config.drafts_by_mtp),
        n_ctx=n_ctx,
        n_parallel=config.n_parallel,
        n_batch=_n_batch(config, n_ubatch),
        n_ubatch=n_ubatch,
        n_threads=load.n_threads,
        no_extra_bufts=True,
        cache_ram_bytes=cache_ram_bytes,
        ctx_checkpoints=checkpoints,
        reason=_reason(load, budget_bytes, slots),
        warnings=_warnings(load, n_ubatch, slots),
        drive_bytes=model.expert_bytes - held_bytes,
        details={
            "experts": sum(item.n_experts for item in classes),
            "token_cycle_slots": sum(item.top_k_sum for item in classes),
        },
    )


def _reason(load: Load, budget_bytes: int, slots: tuple[int, ...]) -> str:
    total = sum(item.n_experts for item in load.classes)
    share = f"{100 * sum(slots) / total:.1f} % of its experts in RAM, the others are read from the drive"
    if sum(slots) == total:
        share = "there is room for all of its experts, and each is read when it is first used"
    if load.config.max_experts > 0:
        return f"{load.config.max_experts} experts per MoE layer were asked for: {share}"
    if load.config.load_mode == "streaming":
        return f"load mode streaming was asked for: {share}"
    weights = format_bytes(load.model.dense_bytes + load.model.expert_bytes)
    return f"{weights} of weights do not fit the budget of {format_bytes(budget_bytes)}: {share}"


def _warnings(load: Load, n_ubatch: int, slots: tuple[int, ...]) -> tuple[str, ...]:
    warnings = []
    if n_ubatch < load.batches[0]:
        warnings.append(
            f"prompts are processed {n_ubatch} tokens at a time instead of {load.batches[0]}: "
            + (
                "more tokens may need more experts of one layer than there is room for"
                if load.config.io == "pagecache"
                else "the buffers of more leave no room for experts"
            )
        )
    most = max(sum(group.n_expert for group in groups) for item in load.classes for groups in item.layers)
    if any(map(int.__lt__, slots, needed_slots(load.classes, n_ubatch))) and load.config.io != "pagecache":
        warnings.append(
            f"a prompt batch may need all {most} experts of a layer at once, more than there is room for: "
            "they are read in turn, each once a batch, and none is kept for the next"
        )
    cycle = sum(item.top_k_sum for item in load.classes)
    if any(count < item.top_k_sum for item, count in zip(load.classes, slots, strict=True)):
        warnings.append(
            f"there is room for {sum(slots)} experts, but one token uses {cycle}: every expert is gone "
            "before it is used again, so nearly all of them are read for every token; give more memory"
        )
    return tuple(warnings)
