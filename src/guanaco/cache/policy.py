"""What a policy may know and what it decides: the same interface as ``native/src/policy.h``.

Owns the three types. Leaves residency to ``reference.Cache`` and each rule to its file in ``policies``. The
future is nowhere in the arguments: a policy hears of a selection when the router has made it, never before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PolicyShape:
    """A group is the experts of one MoE layer, numbered in the order of the layers."""

    n_expert: tuple[int, ...]  # of each group
    size_class: tuple[int, ...]  # of each group
    n_slots: tuple[int, ...]  # of each class
    top_k: tuple[int, ...]  # of each group; 0: unknown

    @property
    def n_groups(self) -> int:
        return len(self.n_expert)


@dataclass(frozen=True)
class Selection:
    """What the router of one layer picked: distinct experts, those of a prompt batch only first."""

    group: int
    experts: tuple[int, ...]
    n_transient: int = 0
    rows: tuple[tuple[int, ...], ...] = ()  # of a prompt batch: what was picked for each token

    @property
    def demand(self) -> tuple[int, ...]:
        """Those that decoding uses."""
        return self.experts[self.n_transient :]

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """What each token used, oldest first: the rows, or the demand of the one token."""
        return self.rows or (self.demand,)


class Policy(Protocol):
    """One object sees all groups and size classes. A token starts where the group does not increase; of a
    prompt batch, all its tokens."""

    def prior(self, group: int, use: Sequence[float]) -> None:
        """Before the first selection: how often each expert was used before, a token. It fades with time."""

    def selected(self, selection: Selection) -> None:
        """A layer's demand, before hits and misses are told apart."""

    def placed(self, group: int, expert: int, slot: int, transient: bool) -> None:
        """An expert took a slot; ``transient``: for a prompt batch only."""

    def emptied(self, size_class: int, slot: int) -> None:
        """A read failed; the slot holds nothing."""

    def victim(self, size_class: int, pins: Sequence[int]) -> int | None:
        """The slot to reuse, None when all are empty or pinned. A slot with a pin is never named."""

    def worth(self, group: int, expert: int) -> float:
        """Greater is sooner used: a guess must not evict something hotter than itself."""

    def served(self, group: int) -> None:
        """The layer's demand is placed."""
