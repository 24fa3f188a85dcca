"""What is known about the machine, as frozen values.

Owns the shape of the facts. Leaves finding them to ``detect``, ``cgroup`` and ``drive``, and judging them
to the planner. A fact that could not be read is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DriveFacts:
    """The block device under a model file."""

    device: str | None = None  # kernel name of the whole disk, "nvme0n1"
    read_ahead_bytes: int | None = None
    rotational: bool | None = None
    direct_io: bool | None = None  # whether an O_DIRECT read of the file worked


@dataclass(frozen=True)
class CardFacts:
    """A graphics card."""

    free_bytes: int
    name: str | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Hardware:
    """RAM, limits and processors that this process may use."""

    ram_total_bytes: int | None
    ram_available_bytes: int | None
    cgroup_limit_bytes: int | None  # smallest memory limit on the way to the root; None: unlimited
    cgroup_used_bytes: int | None  # of the cgroup with that limit, without reclaimable file cache
    n_physical_cores: int
    n_logical_cores: int  # respects affinity and the cgroup's processor quota
    swap_total_bytes: int | None = None
    drive: DriveFacts | None = None
    cards: tuple[CardFacts, ...] = ()
