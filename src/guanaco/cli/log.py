"""The lines a person or a script reads on stderr, made from values. Pure but for ``setup``.

Keeps the published form of the ``[Guanaco Storage]`` and ``[Guanaco HerdCache]`` lines, because scripts read
them. What is not known is left out of a line, never made up.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from guanaco.config import LoadConfig
from guanaco.engine.native import DraftCounts, NativeStats
from guanaco.model.map import ModelMap
from guanaco.planner.plan import Plan
from guanaco.units import format_bytes

logger = logging.getLogger("guanaco")
_CACHE = "[Guanaco HerdCache]"


def setup(verbose: bool) -> None:
    """Guanaco's own lines to stderr; the engine's too when ``verbose``."""
    logging.raiseExceptions = False  # a closed stderr is no reason to stop
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logging.getLogger("guanaco.engine").setLevel(logging.INFO if verbose else logging.WARNING)


def model_lines(model: ModelMap) -> list[str]:
    """What was read from the headers."""
    start = f"[Guanaco Storage] Model config: {model.arch}"
    if not model.is_moe:
        return [f"{start}, dense, layers={model.n_layer}, hidden={model.n_embd}"]
    mtp_layers = {group.layer for group in model.groups if group.is_mtp}
    tensors = sum(len(group.parts) for group in model.groups)
    layers = len({group.layer for group in model.groups})
    return [
        f"{start}, experts={model.n_expert}, top_k={model.n_expert_used}, "
        f"layers={model.n_layer - len(mtp_layers)}, hidden={model.n_embd}",
        f"[Guanaco Storage] Parsed {tensors} expert tensors across {layers} layers "
        f"(from {len(model.files)} shard(s))",
    ]


def plan_lines(plan: Plan) -> list[str]:
    """What will be held in memory, and why."""
    planned, budget = format_bytes(plan.parts.total_bytes), format_bytes(plan.budget_bytes)
    line = f"[guanaco] plan: {plan.mode}, {planned} of {budget}"
    if plan.mode == "streaming":
        line += f", experts: {plan.slots} slots in {format_bytes(plan.parts.arena_bytes)}"
    return [f"{line}; {plan.reason}", *(f"[guanaco] warning: {text}" for text in plan.warnings)]


def card_lines(config: LoadConfig) -> list[str]:
    """As llama-server does, layers for a card are accepted and ignored where the engine has none."""
    if not config.n_gpu_layers:
        return []
    return [
        f"[guanaco] warning: -ngl {config.n_gpu_layers} is ignored: this engine runs on the processor only"
    ]


def cache_lines(stats: NativeStats, model: ModelMap) -> list[str]:
    """The periodic lines. Under a policy without pins, what is hot stands where the pinned experts would."""
    tensors = sum(len(group.parts) for group in model.groups if not group.is_mtp)
    lines = []
    if stats.most_pin_budget:
        lines.append(
            f"{_CACHE} pin budget={stats.most_pin_budget} (dynamic per-tensor "
            f"{stats.least_pin_budget}..{stats.most_pin_budget}), experts pinned now={stats.pinned}"
        )
    lines.append(
        f"{_CACHE} pin cache: {_resident(stats)}, {without_read(stats)}/{stats.accesses} expert accesses, "
        f"distinct experts pinned={stats.pinned or stats.hot_slots} across {tensors} tensors{_early(stats)}"
    )
    return lines


def final_line(stats: NativeStats, prior: Sequence[str]) -> str:
    """The last line of a run. ``prior``: what the cache was started with."""
    line = (
        f"{_CACHE} final: {_resident(stats)}, {stats.accesses} expert accesses "
        f"over {stats.prefetch_calls} prefetch calls, evictions={stats.evictions}, "
        f"pilot: {stats.pilot_calls} calls / {stats.pilot_slices} slices, "
        f"evict_hot={stats.evict_hot} evict_reread={stats.evict_reread} ({churn(stats) or 0:.0%} churn)"
    )
    if prior:
        line += f", {' and '.join(prior)} prior used"
    line += f"{_early(stats)}, bytes_read={stats.bytes_read}, unmanaged={stats.unmanaged}"
    return f"{line}, read_errors={stats.read_errors}" if stats.read_errors else line


def drafting_line(sources: Sequence[str], counts: DraftCounts) -> str:
    """What drafting brought, and how often it rested."""
    line = (
        f"[guanaco] drafts by {', '.join(sources)}: {counts.accepted} tokens right "
        f"in {counts.steps - counts.rests} steps"
    )
    return f"{line}, {counts.rests} steps without because drafts did not pay" if counts.rests else line


def io_line(stats: NativeStats) -> str:
    """Which way experts really come from the drive."""
    return f"[guanaco] reading experts with: {stats.io_mode or 'not chosen yet'}"


def hit_rate(hits: int, accesses: int) -> float | None:
    return hits / accesses if accesses else None


def without_read(stats: NativeStats) -> int:
    """Accesses that needed no read: what was read early, for a guess that came true, was read."""
    return stats.hits - stats.pilot_useful


def churn(stats: NativeStats) -> float | None:
    """Share of the evictions that were taken back soon; None before the first."""
    return stats.evict_reread / stats.evictions if stats.evictions else None


def _resident(stats: NativeStats) -> str:
    rate = hit_rate(without_read(stats), stats.accesses)
    if rate is None:
        return "no accesses"
    return f"{rate:.0%} resident ({stats.hot_slots / max(1, stats.slots):.0%} hot-pinned)"


def _early(stats: NativeStats) -> str:
    if not stats.pilot_useful or not stats.accesses:
        return ""
    return f", {stats.pilot_useful / stats.accesses:.0%} read early"
