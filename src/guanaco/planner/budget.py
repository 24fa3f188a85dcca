"""The budget when the user names none, and the words of a refusal.

Owns these, and what is refused before the engine is asked. Pure: the machine is a value.
"""

from __future__ import annotations

from guanaco.config import LoadConfig
from guanaco.errors import BudgetError, UsageError
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.memory import context_bytes
from guanaco.units import GIB, MIB, format_bytes

_RESERVE_BYTES = 2 * GIB
_RESERVE_PERCENT = 12
_ENGINE_CELL_BYTES = 48  # what the engine keeps of every token of a context beside its values
_HOPELESS_BUDGETS = 2
_CHEAP_TO_ASK_BYTES = 2 * GIB  # the engine sizes less than this in no time, and its number is the right one


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


def budget_for(config: LoadConfig, hardware: Hardware) -> int:
    return config.memory_bytes if config.memory_bytes is not None else default_budget(hardware)


def refuse_hopeless_context(model: ModelMap, hardware: Hardware, config: LoadConfig) -> None:
    """Before the engine is asked: sizing a context takes it memory and time for every token of it.

    Refuses only what is hopeless by far, because these sizes are not the engine's own. Raises BudgetError.
    """
    if not config.n_ctx or config.load_mode == "mmap":
        return
    budget_bytes = budget_for(config, hardware)
    row = context_bytes(model, config, config.n_ctx, 1)
    needed_bytes = max(row.kv_bytes + row.window_bytes, config.n_ctx * _ENGINE_CELL_BYTES)
    if needed_bytes > max(_HOPELESS_BUDGETS * budget_bytes, _CHEAP_TO_ASK_BYTES):
        raise BudgetError(
            f"a context of {config.n_ctx} tokens takes about {format_bytes(needed_bytes)} for {model.name}, "
            f"much more than the budget of {format_bytes(budget_bytes)}; ask for a shorter one (-c)",
            needed_bytes=needed_bytes,
            budget_bytes=budget_bytes,
        )


def refusal(model: ModelMap, config: LoadConfig, budget_bytes: int, needed_bytes: int) -> BudgetError:
    """The error for a budget that cannot work; its number does."""
    given = "" if config.memory_bytes is not None else ", which is what this machine leaves free,"
    how = "streaming its experts" if model.is_moe else "a dense model stays in RAM whole, so it"
    return BudgetError(
        f"{format_bytes(budget_bytes)}{given} is too little memory for {model.name}: {how} takes at least "
        f"{needed_bytes // MIB} MiB; use --memory {needed_bytes // MIB}MiB, a shorter context (-c) or "
        "smaller cache types (-ctk, -ctv)",
        needed_bytes=needed_bytes,
        budget_bytes=budget_bytes,
    )
