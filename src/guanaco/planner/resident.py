"""The whole model in RAM: the plan of dense models, of models that fit, and of load mode mmap.

Owns that plan. Leaves the choice between it and streaming to ``placement``. A budget that is too small is
None, except where the user asked for mmap: then the plan says that the budget is not held.
"""

from __future__ import annotations

from guanaco.planner.load import Load
from guanaco.planner.memory import repack_bytes, work_bytes
from guanaco.planner.overheads import file_bytes, headroom_bytes
from guanaco.planner.plan import MemoryParts, Plan
from guanaco.units import format_bytes


def resident_plan(load: Load, budget_bytes: int) -> Plan | None:
    """With faster copies of the weights when those fit too.

    A dense model may get a smaller batch, because there is no other way to run it.
    """
    batches = load.batches[:1] if load.model.is_moe else load.batches
    for n_ubatch in batches:
        for has_copies in (True, False):
            left = budget_bytes - _fixed_bytes(load, budget_bytes, n_ubatch, has_copies)
            if left >= load.context_bytes(load.costs.sizes[0], n_ubatch):
                return _plan(load, budget_bytes, n_ubatch, has_copies, left)
    return None


def mapped_plan(load: Load, budget_bytes: int) -> Plan:
    """Load mode mmap: always possible, because the kernel drops and rereads pages when memory is short."""
    fits = resident_plan(load, budget_bytes)
    if fits is not None:
        return fits
    n_ubatch = load.batches[0]
    left = budget_bytes - _fixed_bytes(load, budget_bytes, n_ubatch, has_copies=False)
    return _plan(load, budget_bytes, n_ubatch, has_copies=False, left_bytes=left)


def _fixed_bytes(load: Load, budget_bytes: int, n_ubatch: int, has_copies: bool) -> int:
    return (
        file_bytes(load.model)
        + _copy_bytes(load, has_copies)
        + _work_bytes(load, n_ubatch)
        + load.overhead(budget_bytes)
    )


def _plan(load: Load, budget_bytes: int, n_ubatch: int, has_copies: bool, left_bytes: int) -> Plan:
    model, config = load.model, load.config
    limit = min(load.context_limit(budget_bytes), left_bytes)
    n_ctx = load.pick_context(limit) if n_ubatch == load.batches[0] else load.costs.sizes[0]
    checkpoints = load.checkpoints(budget_bytes, n_ctx, n_ubatch)
    spare = left_bytes - load.context_bytes(n_ctx, n_ubatch)
    cache_ram_bytes = load.prompt_cache(spare)
    row = load.costs.at(n_ctx, n_ubatch)
    parts = MemoryParts(
        dense_bytes=file_bytes(load.model) - model.expert_bytes,
        kv_bytes=row.kv_bytes + row.state_bytes,
        compute_bytes=row.compute_bytes + row.output_bytes + _work_bytes(load, n_ubatch),
        engine_bytes=load.engine_bytes,
        arena_bytes=0,
        staging_bytes=0,
        prompt_cache_bytes=cache_ram_bytes + checkpoints * load.checkpoint_bytes(n_ctx, n_ubatch),
        headroom_bytes=headroom_bytes(budget_bytes),
        expert_bytes=model.expert_bytes,
        repack_bytes=_copy_bytes(load, has_copies),
        draft_bytes=load.draft_bytes + load.draft_context_bytes(n_ctx, n_ubatch),
    )
    return Plan(
        placement="cpu",
        mode="resident" if model.is_moe else "dense",
        budget_bytes=budget_bytes,
        parts=parts,
        classes=(),
        group_class=(-1,) * len(model.groups),
        n_ctx=n_ctx,
        n_parallel=config.n_parallel,
        n_batch=n_ubatch if config.embeddings else config.n_batch,
        n_ubatch=n_ubatch,
        n_threads=load.n_threads,
        no_extra_bufts=not has_copies,
        cache_ram_bytes=cache_ram_bytes,
        ctx_checkpoints=checkpoints,
        reason=_reason(load, budget_bytes, parts),
        warnings=_warnings(load, budget_bytes, parts),
    )


def _reason(load: Load, budget_bytes: int, parts: MemoryParts) -> str:
    weights = format_bytes(file_bytes(load.model))
    if parts.total_bytes > budget_bytes:
        return f"load mode mmap was asked for; the kernel rereads what it drops of the {weights} of weights"
    copies = f", with {format_bytes(parts.repack_bytes)} of faster copies" if parts.repack_bytes else ""
    kind = "the whole model" if load.model.is_moe else "a dense model"
    return f"{kind} ({weights} of weights{copies}) fits the budget of {format_bytes(budget_bytes)}"


def _warnings(load: Load, budget_bytes: int, parts: MemoryParts) -> tuple[str, ...]:
    if parts.total_bytes <= budget_bytes:
        return ()
    return (
        f"load mode mmap does not hold the budget of {format_bytes(budget_bytes)}: the model takes "
        f"{format_bytes(parts.total_bytes)}, and the kernel decides what of it stays in memory",
    )


def _copy_bytes(load: Load, has_copies: bool) -> int:
    models = [load.model, *([] if load.draft is None else [load.draft])]
    return sum(repack_bytes(model, load.repack_types) for model in models) if has_copies else 0


def _work_bytes(load: Load, n_ubatch: int) -> int:
    products = tuple((group.n_expert, group.top_k) for group in load.model.groups)
    return work_bytes(load.model, n_ubatch, load.most_threads, products)
