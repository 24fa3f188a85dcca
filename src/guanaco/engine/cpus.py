"""Which processor each of the engine's threads runs on.

Owns that choice. With as many threads as processors each gets one of its own: the kernel, which balances by
how many run where, may else leave two of them on one processor beside a busy neighbour, and each then spins
at a barrier while the other, which it waits for, cannot run (docs/benchmarks.md). With fewer threads the
kernel chooses: it can move them away from a neighbour. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

# Who sets one of these decides.
_BINDING_VARIABLES = frozenset(("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"))


def one_each(
    thread_counts: Collection[int], allowed: Collection[int], environment: Mapping[str, str], most: int
) -> tuple[int, ...]:
    """The processors to bind threads to, one each, or none.

    ``thread_counts``: of tokens and of prompts, which share threads. ``allowed``: numbers of the processors
    that may be used. ``most``: numbers that the engine knows.
    """
    is_bindable = all(count == len(allowed) > 1 for count in thread_counts) and max(allowed) < most
    if not is_bindable or _BINDING_VARIABLES & environment.keys():
        return ()
    return tuple(sorted(allowed))
