"""The budget when the user names none, the most that a machine can hold, and the words of a refusal.

Owns these, and what is refused before the engine is asked. Pure: the machine is a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from guanaco.config import LoadConfig
from guanaco.errors import BudgetError, UsageError
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.contexts import context_ladder
from guanaco.planner.memory import context_bytes
from guanaco.planner.slots import PAGE_BYTES
from guanaco.units import GIB, MIB, format_bytes

_RESERVE_BYTES = 2 * GIB
_RESERVE_PERCENT = 12
_ENGINE_CELL_BYTES = 48  # what the engine keeps of every token of a context beside its values
_HOPELESS_BUDGETS = 2
_LARGEST_BUDGET_MIB = 1 << 40
_CHEAP_TO_ASK_BYTES = 2 * GIB  # the engine sizes less than this in no time, and its number is the right one


@dataclass(frozen=True)
class Ceiling:
    """What no budget can exceed: the memory cgroup's limit, or all the RAM there is."""

    limit_bytes: int
    is_cgroup: bool

    @property
    def name(self) -> str:
        size = format_bytes(self.limit_bytes)
        return f"the memory cgroup's limit of {size}" if self.is_cgroup else f"this machine's RAM of {size}"

    def holds(self, budget_bytes: int) -> bool:
        # The kernel keeps a cgroup's limit in whole pages, rounded down from what was asked for.
        return budget_bytes < self.limit_bytes + PAGE_BYTES


def ceiling_of(hardware: Hardware) -> Ceiling | None:
    """The lower of the two; None when neither is known."""
    known = [
        Ceiling(limit_bytes, is_cgroup)
        for limit_bytes, is_cgroup in (
            (hardware.cgroup_limit_bytes, True),
            (hardware.ram_total_bytes, False),
        )
        if limit_bytes is not None
    ]
    return min(known, key=lambda ceiling: ceiling.limit_bytes, default=None)


def usable_bytes(hardware: Hardware) -> int | None:
    """The smaller of the cgroup's limit and available RAM; None when neither is known."""
    known = [n for n in (hardware.cgroup_limit_bytes, hardware.ram_available_bytes) if n is not None]
    return min(known, default=None)


def default_budget(hardware: Hardware) -> int:
    """What is usable, less a reserve for everything else: 2 GiB or 12 %, at most half of a small machine."""
    usable = usable_bytes(hardware)
    if usable is None:
        raise UsageError(
            "how much memory there is cannot be found out here; say how much to use: --memory 8GiB"
        )
    reserve = min(max(_RESERVE_BYTES, usable * _RESERVE_PERCENT // 100), usable // 2)
    if usable == hardware.cgroup_limit_bytes:
        # Others in the same cgroup may already hold more than the reserve.
        reserve = max(reserve, min(usable, hardware.cgroup_used_bytes or 0))
    return usable - reserve


def smallest_budget(works: Callable[[int], bool]) -> int:
    """In whole MiB, by bisection: a budget that works goes on working when it grows."""
    low, high = 0, 1
    while not works(high * MIB) and high < _LARGEST_BUDGET_MIB:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if works(middle * MIB):
            high = middle
        else:
            low = middle
    return high * MIB


def budget_for(config: LoadConfig, hardware: Hardware) -> int:
    return config.memory_bytes if config.memory_bytes is not None else default_budget(hardware)


def refuse_hopeless_context(model: ModelMap, hardware: Hardware, config: LoadConfig) -> None:
    """Before the engine is asked: sizing a context takes it memory and time for every token of it.

    Refuses only what is hopeless by far, because these sizes are not the engine's own. Raises BudgetError.
    """
    if config.n_ctx is None or config.load_mode == "mmap":
        return
    budget_bytes = budget_for(config, hardware)
    (n_ctx,) = context_ladder(model, config)
    row = context_bytes(model, config, n_ctx, 1)
    needed_bytes = max(row.kv_bytes + row.window_bytes, n_ctx * _ENGINE_CELL_BYTES)
    if needed_bytes > max(_HOPELESS_BUDGETS * budget_bytes, _CHEAP_TO_ASK_BYTES):
        raise BudgetError(
            f"a context of {n_ctx} tokens takes about {format_bytes(needed_bytes)} for {model.name}, "
            f"much more than the budget of {format_bytes(budget_bytes)}; ask for a shorter one (-c)",
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
        )


def refusal(
    model: ModelMap, config: LoadConfig, budget_bytes: int, needed_bytes: int, ceiling: Ceiling | None
) -> BudgetError:
    """The error for a budget that cannot work. It names a budget only where that one can be had here."""
    how = "streaming its experts" if model.is_moe else "a dense model stays in RAM whole, so it"
    needed_mib = needed_bytes // MIB
    takes = f"{how} takes at least {needed_mib} MiB"
    smaller = "a shorter context (-c) or smaller cache types (-ctk, -ctv)"
    given = "" if config.memory_bytes is not None else ", which is what this machine leaves free,"
    little = f"{format_bytes(budget_bytes)}{given} is too little memory for {model.name}"
    excess = f"a budget of {format_bytes(budget_bytes)} cannot be had here"
    if ceiling is None or (ceiling.holds(budget_bytes) and ceiling.holds(needed_bytes)):
        message = f"{little}: {takes}; use --memory {needed_mib}MiB, {smaller}"
    elif ceiling.holds(needed_bytes):
        message = (
            f"{excess}: it is more than {ceiling.name}; use --memory {ceiling.limit_bytes // MIB}MiB or less"
            f"{', or raise that limit' if ceiling.is_cgroup else ''}"
        )
    else:
        more = f"raise that limit to {needed_mib} MiB" if ceiling.is_cgroup else "use a machine with more RAM"
        why = (
            f"{little}, and so is {ceiling.name}"
            if ceiling.holds(budget_bytes)
            else f"{excess}: {ceiling.name} is too small for {model.name}"
        )
        message = f"{why}: {takes}; {more}, or use {smaller}"
    limit = {} if ceiling is None else {"limit_bytes": ceiling.limit_bytes}
    return BudgetError(message, needed_bytes=needed_bytes, budget_bytes=budget_bytes, **limit)
