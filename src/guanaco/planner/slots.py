"""Slot size classes: how an expert lies in a slot, how many slots each class gets, how few can work.

Owns that arithmetic. Leaves the bytes there are for slots to ``placement``. Refuses nothing: what cannot
work is None, and the caller knows the budget to name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guanaco.model.map import ExpertGroup, ModelMap
from guanaco.planner.plan import SizeClass
from guanaco.units import KIB, MIB

PAGE_BYTES = 4 * KIB
HUGE_PAGE_BYTES = 2 * MIB
# Shares of a class are counted in these steps, so that every class gets the same fraction.
_SHARE_STEPS = 1 << 24
# A batch whose layers pass through the slots in waves takes half of these: enough reads to keep a drive busy.
_WAVE_SLOTS = 16
# Reads in flight that need a staging buffer: enough to keep a drive busy, bounded for large slices.
_STAGING_BYTES = 32 * MIB
_STAGING_FEWEST, _STAGING_MOST = 4, 32


@dataclass(frozen=True)
class ExpertClass:
    """All experts whose slices have the same sizes, and the layers they belong to."""

    layout: SizeClass  # without slots
    n_experts: int
    layers: tuple[tuple[ExpertGroup, ...], ...]  # groups by layer

    @property
    def top_k_sum(self) -> int:
        """Experts one token uses here: with fewer slots a recency policy never hits."""
        return sum(group.top_k for groups in self.layers for group in groups)

    @property
    def expert_bytes(self) -> int:
        return sum(self.layout.slice_bytes)

    def needed(self, n_ubatch: int) -> int:
        """Slots that one layer's worst batch of ``n_ubatch`` tokens needs at once."""
        return max(
            sum(min(group.n_expert, n_ubatch * group.top_k) for group in groups) for groups in self.layers
        )

    def needed_in_waves(self, n_ubatch: int) -> int:
        """Slots such a batch can run with, its experts in turn if they do not fit; one token never has to."""
        return min(self.needed(n_ubatch), max(self.needed(1), _WAVE_SLOTS))

    def with_slots(self, slots: int) -> SizeClass:
        layout = self.layout
        return SizeClass(layout.roles, layout.slice_bytes, layout.part_offsets, layout.stride_bytes, slots)


_Key = tuple[bool, tuple[tuple[str, int], ...]]


def _key(group: ExpertGroup) -> _Key:
    """Layers that draft have slots of their own: drafts never push out what the model itself uses."""
    return group.is_mtp, group.slice_key


def expert_classes(model: ModelMap, *, has_mtp: bool = False) -> tuple[ExpertClass, ...]:
    """The classes of the groups that decoding runs, in the order they first appear.

    ``has_mtp``: with the layers that draft.
    """
    by_key: dict[_Key, list[ExpertGroup]] = {}
    for group in model.groups:
        if has_mtp or not group.is_mtp:
            by_key.setdefault(_key(group), []).append(group)
    classes = []
    for groups in by_key.values():
        layers: dict[int, list[ExpertGroup]] = {}
        for group in groups:
            layers.setdefault(group.layer, []).append(group)
        classes.append(
            ExpertClass(
                layout=_layout(groups[0]),
                n_experts=sum(group.n_expert for group in groups),
                layers=tuple(tuple(same_layer) for same_layer in layers.values()),
            )
        )
    return tuple(classes)


def group_classes(model: ModelMap, *, has_mtp: bool = False) -> tuple[int, ...]:
    """Class of each group; -1: an MTP group whose sizes no class has, which nothing runs."""

    def key_of(group: ExpertGroup) -> _Key:
        return _key(group) if has_mtp else (False, group.slice_key)

    keys = list(dict.fromkeys(key_of(group) for group in model.groups if has_mtp or not group.is_mtp))
    return tuple(keys.index(key_of(group)) if key_of(group) in keys else -1 for group in model.groups)


def arena_bytes(classes: Sequence[ExpertClass], slots: Sequence[int]) -> int:
    """Each class is a run of whole huge pages, committed at start."""
    return sum(
        _round_up(count * item.layout.stride_bytes, HUGE_PAGE_BYTES)
        for item, count in zip(classes, slots, strict=True)
    )


def needed_slots(classes: Sequence[ExpertClass], n_ubatch: int, *, in_waves: bool = False) -> tuple[int, ...]:
    return tuple(item.needed_in_waves(n_ubatch) if in_waves else item.needed(n_ubatch) for item in classes)


def capped_slots(classes: Sequence[ExpertClass], per_layer: int) -> tuple[int, ...]:
    """``per_layer`` experts of every group, or all of one that has fewer."""
    return tuple(
        sum(min(per_layer, group.n_expert) for groups in item.layers for group in groups) for item in classes
    )


def share_slots(
    classes: Sequence[ExpertClass], step: int, least: Sequence[int], most: Sequence[int]
) -> tuple[int, ...]:
    """The same fraction ``step`` of every class, within ``least`` and ``most``."""
    return tuple(
        min(max(low, item.n_experts * step // _SHARE_STEPS), high)
        for item, low, high in zip(classes, least, most, strict=True)
    )


def fit_slots(
    classes: Sequence[ExpertClass],
    least: Sequence[int],
    most: Sequence[int],
    fits: Callable[[tuple[int, ...]], bool],
) -> tuple[int, ...] | None:
    """The largest equal share that ``fits``; None when not even ``least`` does."""
    if not fits(share_slots(classes, 0, least, most)):
        return None
    low, high = 0, _SHARE_STEPS
    while low < high:
        middle = (low + high + 1) // 2
        if fits(share_slots(classes, middle, least, most)):
            low = middle
        else:
            high = middle - 1
    return share_slots(classes, low, least, most)


def staging_bytes(model: ModelMap) -> int:
    """Buffers for slices that are not whole pages: read there, then copied to the start of their place."""
    spans = [
        _round_up(part.slice_bytes, PAGE_BYTES) + PAGE_BYTES
        for group in model.groups
        for part in group.parts
        if part.slice_bytes % PAGE_BYTES
    ]
    span = max(spans, default=0)
    return span * max(_STAGING_FEWEST, min(_STAGING_MOST, _STAGING_BYTES // span)) if span else 0


def _layout(group: ExpertGroup) -> SizeClass:
    """Each part at a page, with a page of room for the head of a slice that begins within one."""
    offsets, at = [], 0
    for part in group.parts:
        offsets.append(at)
        at += _round_up(part.slice_bytes, PAGE_BYTES) + PAGE_BYTES
    return SizeClass(
        roles=tuple(part.role for part in group.parts),
        slice_bytes=tuple(part.slice_bytes for part in group.parts),
        part_offsets=tuple(offsets),
        stride_bytes=at,
        slots=0,
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
