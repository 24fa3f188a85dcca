"""Card, RAM and drive in one plan: what ``card`` leaves on the host is in RAM, or streamed when RAM is short.

Owns putting the two sides together, and the words. Leaves the cards to ``card`` and ``reserve`` and the
streamed host to ``streaming``. Pure. Refuses what neither side can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from guanaco.config import LoadConfig
from guanaco.errors import UsageError
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.budget import budget_for, ceiling_of, smallest_budget
from guanaco.planner.budget import refusal as host_refusal
from guanaco.planner.card import CardPlan, margin_bytes, refusal
from guanaco.planner.card_sizes import can_stay, is_host_table, leaves_with_experts
from guanaco.planner.contexts import ContextCosts, most_threads_for, n_threads_for, ubatch_ladder
from guanaco.planner.load import Load
from guanaco.planner.memory import context_bytes, work_bytes
from guanaco.planner.overheads import headroom_bytes
from guanaco.planner.placement import plan
from guanaco.planner.plan import MemoryParts, Plan
from guanaco.planner.reserve import LIMIT_NAME, place_beside, reserve_bytes
from guanaco.planner.slots import expert_classes
from guanaco.planner.streaming import streaming_plan
from guanaco.units import format_bytes

_NOT_YET = "this version plans for cards and does not load onto them yet: it would run on the processor"


def plan_with_cards(
    model: ModelMap, hardware: Hardware, config: LoadConfig, others: Sequence[ModelMap] = ()
) -> Plan:
    """The plan on a machine with cards, or without. ``others``: the other models of the folder.

    BudgetError when a setting asks for what does not fit, with needed and free bytes.
    """
    if not hardware.cards or config.n_gpu_layers == 0:
        return plan(model, hardware, config)
    if config.draft_sources:
        raise UsageError("drafts are not planned for cards yet; leave out what drafts, or the card")
    if config.max_experts > 0:
        raise UsageError("a number of experts per layer is not planned for cards yet; use --memory instead")
    if config.load_mode == "mmap":
        raise UsageError("load mode mmap has no effect on what goes to a card; leave it out, or the card")
    if 0 < (config.n_gpu_layers or 0) <= model.n_layer:
        raise UsageError(
            f"-ngl {config.n_gpu_layers}: all layers go to a card or none, and experts leave it instead; "
            "use -ngl all or 0, and --n-cpu-moe for experts"
        )
    config = replace(config, grow_ubatch=False)  # the cards are sized for one
    kept_bytes = reserve_bytes(others, config)
    placed = place_beside(model, hardware.cards, config, kept_bytes)
    if placed is None:
        if config.cpu_moe_layers >= 0:
            raise refusal(model, hardware.cards, config)
        made = plan(model, hardware, config)
        free_bytes = sum(card.free_bytes for card in hardware.cards)
        margin = sum(margin_bytes(card.free_bytes, config.n_parallel) for card in hardware.cards)
        why = (
            f"the {format_bytes(free_bytes)} free on the card, of which {format_bytes(margin)} are kept free "
            f"with {config.n_parallel} at once, hold too little of it"
        )
        return replace(made, reason=f"{made.reason}; {why}")
    return _beside(model, hardware, config, placed)


def _beside(model: ModelMap, hardware: Hardware, config: LoadConfig, placed: CardPlan) -> Plan:
    """The host's side of a plan whose layers are on cards."""
    load = _host_load(model, hardware, config, placed)
    budget_bytes, ceiling = budget_for(config, hardware), ceiling_of(hardware)
    made = None
    if ceiling is None or ceiling.holds(budget_bytes):
        made = _on_host(load, budget_bytes)
    if made is None:
        needed_bytes = smallest_budget(lambda size: _on_host(load, size) is not None)
        raise host_refusal(model, config, budget_bytes, needed_bytes, ceiling)
    streams = made.mode == "streaming"
    moved = placed.n_cpu_moe if load.model.groups else 0
    kind = "moe_experts_stream" if streams else "moe_experts_cpu"
    return replace(
        made,
        placement=f"{kind}:{moved}" if moved else "gpu",
        mode=made.mode if streams else "resident" if model.is_moe else "dense",
        group_class=_group_class(model, load, made),
        n_ctx=placed.talk.total_tokens,
        n_parallel=config.n_parallel,
        limited_by=placed.limited_by,
        reason=_reason(model, placed, moved, streams),
        vram_bytes=placed.vram_bytes,
        warnings=(*made.warnings, *_cut(model, config), _NOT_YET),
        card=placed,
        details={
            **made.details,
            "n_ctx_train": model.n_ctx_train,
            "n_ctx_slot": placed.talk.first_tokens,
            "sizes_from": "formula",
        },
    )


def _cut(model: ModelMap, config: LoadConfig) -> tuple[str, ...]:
    if (config.n_ctx or 0) <= model.n_ctx_train:
        return ()
    return (
        f"a context of {config.n_ctx} tokens is more than {model.name} can use: it was trained for "
        f"{model.n_ctx_train}, and so much is planned",
    )


def _host_load(model: ModelMap, hardware: Hardware, config: LoadConfig, placed: CardPlan) -> Load:
    """What the host holds, as a model of its own: tables, and the experts that left the cards."""
    host = replace(
        model,
        dense=tuple(
            item
            for item in model.dense
            if is_host_table(item.tensor_name) or leaves_with_experts(item.tensor_name, placed.n_cpu_moe)
        ),
        groups=tuple(
            group
            for group in model.groups
            if group.layer < placed.n_cpu_moe and can_stay(group) and not group.is_mtp
        ),
    )
    n_ctx = placed.talk.total_tokens
    config = replace(config, n_ctx=n_ctx, ctx_checkpoints=config.ctx_checkpoints or 0)
    batches = ubatch_ladder(model, config)
    # Conversations are on the cards.
    rows = tuple(
        replace(context_bytes(model, config, n_ctx, n), kv_bytes=0, window_bytes=0, state_bytes=0)
        for n in batches
    )
    return Load(
        model=host,
        config=config,
        costs=ContextCosts((n_ctx,), batches, (rows[-1],), rows),
        classes=expert_classes(host),
        n_threads=n_threads_for(config, hardware),
        most_threads=most_threads_for(config, hardware),
        repack_types=frozenset(),
        is_reported=False,
    )


def _on_host(load: Load, budget_bytes: int) -> Plan | None:
    made = _in_ram(load, budget_bytes)
    return streaming_plan(load, budget_bytes) if made is None and load.classes else made


def _in_ram(load: Load, budget_bytes: int) -> Plan | None:
    """All of the host's side in RAM, or None."""
    if load.config.load_mode == "streaming" and load.classes:
        return None
    model, config = load.model, load.config
    n_ctx, n_ubatch = load.costs.sizes[0], load.batches[0]
    row = load.costs.at(n_ctx, n_ubatch)
    products = tuple((group.n_expert, group.top_k) for group in model.groups)
    parts = MemoryParts(
        dense_bytes=model.dense_bytes,
        kv_bytes=0,
        compute_bytes=row.compute_bytes
        + row.output_bytes
        + work_bytes(model, n_ubatch, load.most_threads, products),
        engine_bytes=load.engine_bytes,
        arena_bytes=0,
        staging_bytes=0,
        prompt_cache_bytes=load.asked_cache_bytes,
        headroom_bytes=headroom_bytes(budget_bytes),
        expert_bytes=model.expert_bytes,
        draft_bytes=load.draft_bytes,
    )
    spare = budget_bytes - parts.total_bytes
    if spare < 0:
        return None
    cache_ram_bytes = load.prompt_cache(spare)
    return Plan(
        placement="gpu",
        mode="resident",
        budget_bytes=budget_bytes,
        parts=replace(parts, prompt_cache_bytes=cache_ram_bytes),
        classes=(),
        group_class=(),
        n_ctx=n_ctx,
        n_parallel=config.n_parallel,
        n_batch=config.n_batch,
        n_ubatch=n_ubatch,
        n_threads=load.n_threads,
        no_extra_bufts=True,
        cache_ram_bytes=cache_ram_bytes,
        ctx_checkpoints=config.ctx_checkpoints or 0,
        reason="",
    )


def _group_class(model: ModelMap, load: Load, made: Plan) -> tuple[int, ...]:
    """Class of each of the model's groups; -1: on a card, or never run."""
    of_host = dict(zip((id(group) for group in load.model.groups), made.group_class, strict=False))
    return tuple(of_host.get(id(group), -1) for group in model.groups)


def _reason(model: ModelMap, placed: CardPlan, moved: int, streams: bool) -> str:
    free = format_bytes(sum(part.free_bytes for part in placed.devices))
    margin = format_bytes(sum(part.margin_bytes for part in placed.devices))
    talk = placed.talk
    room = f"{talk.first_tokens} tokens of conversation"
    if talk.n_parallel > 1:
        room += f" and {talk.n_parallel - 1} of {talk.further_tokens}"
    kept = f", {format_bytes(placed.reserved_bytes)} for another model" if placed.reserved_bytes else ""
    on_card = (
        f"{format_bytes(placed.vram_bytes)} of {free} free on the card, {room}; {margin} kept free{kept}"
    )
    if placed.limited_by == LIMIT_NAME:
        on_card += "; limited by multi_model_reserve"
    if not moved:
        return f"the whole model on the card: {on_card}"
    where = "streamed from the drive" if streams else "in RAM"
    return f"experts of the first {moved} of {model.n_layer} layers {where}, the rest on the card: {on_card}"
