"""A cache of experts without the experts: slots, residency, pins and a policy, as the native one has them.

Owns who is resident and the counters. Leaves the choice of victims to the policy, except that the experts
of a prompt batch go first. Refuses a selection that its slots cannot hold, before anything changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.cache.policy import Policy, PolicyShape, Selection


@dataclass(frozen=True)
class Served:
    """What one selection did: how many experts were missing, and who left for them, in that order."""

    misses: int
    victims: tuple[tuple[int, int], ...]  # (group, expert)


class Cache:
    """Serves selections one after another; used from one thread."""

    def __init__(self, shape: PolicyShape, policy: Policy) -> None:
        self.shape = shape
        self.policy = policy
        self.hits = self.misses = self.evictions = 0
        self._slot_of: dict[tuple[int, int], int] = {}
        self._owner: list[list[tuple[int, int] | None]] = [[None] * n for n in shape.n_slots]
        self._pins = [[0] * n for n in shape.n_slots]
        self._empty = [list(range(n - 1, -1, -1)) for n in shape.n_slots]  # the lowest is taken first
        self._transient: list[list[int]] = [[] for _ in shape.n_slots]  # slots, in the order they were filled

    def is_resident(self, group: int, expert: int) -> bool:
        return (group, expert) in self._slot_of

    def serve(self, selection: Selection) -> Served | None:
        """Makes the selection resident; None when there are fewer slots than experts."""
        group, experts = selection.group, selection.experts
        size_class = self.shape.size_class[group]
        if len(experts) > self.shape.n_slots[size_class]:
            return None
        self.policy.selected(selection)
        # Pin what is resident first, so that no miss takes the slot of a hit.
        pins = self._pins[size_class]
        pinned, missing = [], []
        for index, expert in enumerate(experts):
            slot = self._slot_of.get((group, expert))
            if slot is None:
                missing.append((index, expert))
                continue
            pins[slot] += 1
            pinned.append(slot)
            if index >= selection.n_transient and slot in self._transient[size_class]:
                self._transient[size_class].remove(slot)
        victims = []
        for index, expert in missing:
            slot, evicted = self._take_slot(size_class)
            if evicted is not None:
                victims.append(evicted)
            self._owner[size_class][slot] = (group, expert)
            self._slot_of[group, expert] = slot
            pins[slot] += 1
            pinned.append(slot)
            is_transient = index < selection.n_transient
            if is_transient:
                self._transient[size_class].append(slot)
            self.policy.placed(group, expert, slot, is_transient)
        self.policy.served(group)
        for slot in pinned:
            pins[slot] -= 1
        self.hits += len(experts) - len(missing)
        self.misses += len(missing)
        self.evictions += len(victims)
        return Served(len(missing), tuple(victims))

    def pass_through(self, selection: Selection) -> Served:
        """Counts a selection that ``serve`` refused: it passes through slots that are empty afterwards, half
        of them at most. The policy learns nothing from it."""
        group, experts = selection.group, selection.experts
        size_class = self.shape.size_class[group]
        n_missing = sum((group, expert) not in self._slot_of for expert in experts)
        taken, victims = [], []
        for _ in range(min(n_missing, max(self.shape.n_slots[size_class] // 2, 1))):
            slot, evicted = self._take_slot(size_class)
            taken.append(slot)
            self._pins[size_class][slot] += 1
            if evicted is not None:
                victims.append(evicted)
                self._owner[size_class][slot] = None
                self.policy.emptied(size_class, slot)
        misses = sum((group, expert) not in self._slot_of for expert in experts)
        for slot in taken:
            self._pins[size_class][slot] -= 1
            self._empty[size_class].append(slot)
        self.hits += len(experts) - misses
        self.misses += misses
        self.evictions += len(victims)
        return Served(misses, tuple(victims))

    def _take_slot(self, size_class: int) -> tuple[int, tuple[int, int] | None]:
        if self._empty[size_class]:
            return self._empty[size_class].pop(), None
        pins, transient = self._pins[size_class], self._transient[size_class]
        slot = next((slot for slot in reversed(transient) if not pins[slot]), None)
        if slot is not None:
            transient.remove(slot)
        else:
            slot = self.policy.victim(size_class, pins)
        if slot is None or pins[slot]:
            raise AssertionError(f"the policy named slot {slot} of class {size_class}, which is not free")
        evicted = self._owner[size_class][slot]
        assert evicted is not None  # noqa: S101 - no slot is empty here
        del self._slot_of[evicted]
        return slot, evicted
