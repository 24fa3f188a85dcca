"""The plan of a load: resident, streamed or refused.

Owns the choice. Leaves the two plans to ``resident`` and ``streaming`` and the budget to ``budget``. Pure:
the same model, machine, settings and report give the same plan, and within one mode more memory never gives
a smaller batch, fewer experts in RAM or a shorter context. Refuses a budget that cannot work with the
smallest number that does, and one that the machine cannot hold.
"""

from __future__ import annotations

from dataclasses import replace

from guanaco.config import LoadConfig
from guanaco.errors import UsageError
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.budget import budget_for, ceiling_of, refusal, smallest_budget
from guanaco.planner.load import Load
from guanaco.planner.memory import slot_context
from guanaco.planner.plan import Plan
from guanaco.planner.report import EngineReport
from guanaco.planner.resident import mapped_plan, resident_plan
from guanaco.planner.streaming import least_experts_per_layer, streaming_plan
from guanaco.units import format_bytes


def plan(
    model: ModelMap,
    hardware: Hardware,
    config: LoadConfig,
    report: EngineReport | None = None,
    draft: ModelMap | None = None,
) -> Plan:
    """How to load ``model``, and ``draft`` beside it.

    BudgetError when the budget cannot work, UsageError when a setting cannot.
    """
    load = _load(model, hardware, config, report, draft)
    budget_bytes, ceiling = budget_for(config, hardware), ceiling_of(hardware)
    is_excess = ceiling is not None and not ceiling.holds(budget_bytes)
    chosen = None if is_excess else _choose(load, budget_bytes)
    if chosen is None:
        raise refusal(model, config, budget_bytes, _smallest_budget(load), ceiling)
    return _annotate(load, hardware, chosen)


def minimum_budget(
    model: ModelMap,
    hardware: Hardware,
    config: LoadConfig,
    report: EngineReport | None = None,
    draft: ModelMap | None = None,
) -> int:
    """The smallest budget that ``plan`` accepts, in whole MiB."""
    return _smallest_budget(_load(model, hardware, config, report, draft))


def refuse_drafts(model: ModelMap, config: LoadConfig) -> None:
    """Raises UsageError when layers are to draft that the model does not have."""
    has_mtp = any(item.is_mtp for item in model.dense) or any(group.is_mtp for group in model.groups)
    if config.drafts_by_mtp and not has_mtp:
        raise UsageError(
            f"--spec-type draft-mtp: {model.name} has no layers that predict further tokens; "
            "use another type, or leave it out"
        )


def _load(
    model: ModelMap,
    hardware: Hardware,
    config: LoadConfig,
    report: EngineReport | None,
    draft: ModelMap | None,
) -> Load:
    refuse_drafts(model, config)
    load = Load.of(model, hardware, config, report, draft)
    if model.is_moe and load.config.max_experts > 0:
        least = least_experts_per_layer(load)
        if config.max_experts < least:
            raise UsageError(
                f"{config.max_experts} experts per MoE layer are too few for {model.name}: a batch of "
                f"{load.costs.batches[0]} needs more of a layer at once; ask for at least {least}"
            )
    return load


def _choose(load: Load, budget_bytes: int) -> Plan | None:
    if load.config.load_mode == "mmap":
        return mapped_plan(load, budget_bytes)
    if not load.model.is_moe:
        return resident_plan(load, budget_bytes)
    if load.config.load_mode == "auto" and load.config.max_experts < 0:
        fits = resident_plan(load, budget_bytes)
        if fits is not None:
            return fits
    return streaming_plan(load, budget_bytes)


def _smallest_budget(load: Load) -> int:
    return smallest_budget(lambda budget_bytes: _choose(load, budget_bytes) is not None)


def _without_effect(config: LoadConfig) -> list[str]:
    """Settings of streaming that are not at their defaults."""
    usual = LoadConfig(config.model)
    return [
        f"{name} {value}"
        for name, value, default in (
            ("--io", config.io, usual.io),
            ("--policy", config.policy, usual.policy),
            ("--pilot", config.pilot, usual.pilot),
        )
        if value != default
    ]


def _annotate(load: Load, hardware: Hardware, chosen: Plan) -> Plan:
    """What the reader of the plan should know beside it."""
    warnings = list(chosen.warnings)
    asked, available = load.config.memory_bytes, hardware.ram_available_bytes
    if asked is not None and available is not None and asked > available:
        warnings.append(
            f"the budget of {format_bytes(asked)} is more than the {format_bytes(available)} "
            "this machine has available"
        )
    if chosen.mode == "streaming" and load.config.io == "pagecache":
        warnings.append(
            "with --io pagecache the kernel decides which experts stay in memory: the budget is not held"
        )
    if not load.model.is_moe and load.config.load_mode == "streaming":
        warnings.append("a dense model has no experts to stream: it is held in RAM whole")
    idle = _without_effect(load.config)
    if idle and chosen.mode != "streaming":
        warnings.append(f"{', '.join(idle)}: without effect, because no experts are streamed by this plan")
    n_ctx_most = load.model.n_ctx_train * load.config.n_parallel
    if (load.config.n_ctx or 0) > n_ctx_most:
        warnings.append(
            f"a context of {load.config.n_ctx} tokens is more than {load.model.name} can use: it was trained "
            f"for {load.model.n_ctx_train}, and the engine gives no request more; {n_ctx_most} are planned"
        )
    is_cut = load.config.n_ctx is None and chosen.n_ctx < load.costs.sizes[-1]
    sizes_from = "engine" if load.is_reported else "formula"
    return replace(
        chosen,
        warnings=tuple(warnings),
        limited_by="memory" if is_cut else None,
        details={
            **chosen.details,
            "sizes_from": sizes_from,
            "n_ctx_train": load.model.n_ctx_train,
            "n_ctx_slot": slot_context(load.model, chosen.n_ctx, chosen.n_parallel),
        },
    )
