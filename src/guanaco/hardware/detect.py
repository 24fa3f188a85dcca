"""Reads the machine's facts: memory, limits, processors, swap and the drive of a model.

Owns turning /proc and /sys into ``Hardware``; every path is taken below ``root``, so tests describe a
machine with a directory. Decides nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

from guanaco.hardware.cgroup import cpu_quota, effective_limit, own_cgroup
from guanaco.hardware.drive import drive_facts
from guanaco.hardware.facts import Hardware
from guanaco.units import KIB


def detect(
    model: Path | None = None, *, root: Path = Path("/"), affinity: Iterable[int] | None = None
) -> Hardware:
    """The machine as this process may use it; with ``model``, its drive too."""
    memory = _meminfo(root)
    limiting = effective_limit(own_cgroup(root))
    allowed = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    quota = cpu_quota(root)
    n_logical = len(allowed) if quota is None else max(1, min(len(allowed), math.ceil(quota)))
    return Hardware(
        ram_total_bytes=memory.get("MemTotal"),
        ram_available_bytes=memory.get("MemAvailable"),
        cgroup_limit_bytes=limiting.limit_bytes if limiting else None,
        cgroup_used_bytes=limiting.used_bytes if limiting else None,
        n_physical_cores=min(n_logical, _physical_cores(root, allowed)),
        n_logical_cores=n_logical,
        swap_total_bytes=memory.get("SwapTotal"),
        drive=drive_facts(model, root) if model is not None else None,
    )


def _meminfo(root: Path) -> dict[str, int]:
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return {}
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[1] == "kB" and fields[0].isdigit():
            values[name] = int(fields[0]) * KIB
    return values


def _physical_cores(root: Path, allowed: list[int]) -> int:
    """Cores behind the allowed processors; those of one core name the same siblings."""
    cores = set()
    for processor in allowed:
        path = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        try:
            cores.add(path.read_text().strip())
        except OSError:
            cores.add(str(processor))
    return max(1, len(cores))
