"""The lines a person or a script reads on stderr, made from values. Pure but for ``setup``.

Keeps the published form of the ``[Guanaco Storage]`` and ``[Guanaco HerdCache]`` lines, because scripts read
them. What is not known is left out of a line, never made up.
"""

from __future__ import annotations

import logging
import sys

from guanaco.config import LoadConfig
from guanaco.engine.native import NativeStats
from guanaco.model.map import ModelMap
from guanaco.planner.plan import Plan
from guanaco.units import format_bytes

logger = logging.getLogger("guanaco")


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


def cache_line(stats: NativeStats, model: ModelMap) -> str:
    """The periodic line. "Resident" counts accesses that needed no read."""
    tensors = sum(len(group.parts) for group in model.groups if not group.is_mtp)
    return (
        f"[Guanaco HerdCache] pin cache: {_resident(stats)}, {stats.hits}/{stats.accesses} expert accesses, "
        f"{stats.slots} slots across {tensors} tensors"
    )


def final_line(stats: NativeStats) -> str:
    """The last line of a run."""
    line = (
        f"[Guanaco HerdCache] final: {_resident(stats)}, {stats.accesses} expert accesses "
        f"over {stats.prefetch_calls} prefetch calls, evictions={stats.evictions}, "
        f"bytes_read={stats.bytes_read}, unmanaged={stats.unmanaged}"
    )
    return f"{line}, read_errors={stats.read_errors}" if stats.read_errors else line


def io_line(stats: NativeStats) -> str:
    """Which way experts really come from the drive."""
    return f"[guanaco] reading experts with: {stats.io_mode or 'not chosen yet'}"


def hit_rate(hits: int, accesses: int) -> float | None:
    return hits / accesses if accesses else None


def _resident(stats: NativeStats) -> str:
    rate = hit_rate(stats.hits, stats.accesses)
    return "no accesses" if rate is None else f"{rate:.0%} resident"
