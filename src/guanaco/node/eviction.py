"""Which models make room for another: the cheapest set that is enough, or none at all.

Owns that choice. Pure. Whether models fit together is the planner's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

# Can the first be loaded beside the others, which hold what they hold?
Fits = Callable[[str, frozenset[str]], bool]
_MOST_EXHAUSTIVE = 10  # models of which every set is looked at


@dataclass(frozen=True)
class Candidate:
    """A model that could go. The cost of its going is what it takes to load it again."""

    model: str
    reload_bytes: int
    idle_since_s: float


def cheapest_set(
    model: str, holders: Iterable[str], candidates: Sequence[Candidate], fits: Fits
) -> frozenset[str] | None:
    """Of ``candidates``, those to unload so that ``model`` fits; None when all of them are not enough.

    Fewest bytes to load again; among equals those longest unused.
    """
    held = frozenset(holders)
    if not fits(model, held - {item.model for item in candidates}):
        return None
    if len(candidates) > _MOST_EXHAUSTIVE:
        return _greedy(model, held, candidates, fits)
    sets = [chosen for count in range(len(candidates) + 1) for chosen in combinations(candidates, count)]
    sets.sort(key=_cost)
    return next(
        frozenset(names)
        for names in ([item.model for item in chosen] for chosen in sets)
        if fits(model, held - frozenset(names))
    )


def _cost(chosen: Sequence[Candidate]) -> tuple[int, float]:
    return sum(item.reload_bytes for item in chosen), sum(item.idle_since_s for item in chosen)


def _greedy(model: str, held: frozenset[str], candidates: Sequence[Candidate], fits: Fits) -> frozenset[str]:
    """Longest unused first until it is enough, then back those that turn out not to be needed."""
    gone: list[str] = []
    for item in sorted(candidates, key=lambda item: item.idle_since_s):
        gone.append(item.model)
        if fits(model, held - frozenset(gone)):
            break
    for name in sorted(gone, key=lambda name: -_bytes_of(candidates, name)):
        fewer = [other for other in gone if other != name]
        if fits(model, held - frozenset(fewer)):
            gone = fewer
    return frozenset(gone)


def _bytes_of(candidates: Sequence[Candidate], name: str) -> int:
    return next(item.reload_bytes for item in candidates if item.model == name)
