"""Peak memory of this process and its worker, as the kernel reports it.

Owns one number: the sum of ``VmHWM`` (highest resident set) of both. It is an upper bound of what both held
at one moment, counts pages shared between them twice, and does not count file cache that neither has mapped;
what a memory limit charges is the cgroup's own peak, which benchmarks read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from guanaco.units import KIB


def high_water_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Highest resident set of a process; None when it is gone."""
    return _status_bytes(pid, "VmHWM:", proc)


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Resident set of a process now; None when it is gone."""
    return _status_bytes(pid, "VmRSS:", proc)


def _status_bytes(pid: int, name: str, proc: Path) -> int | None:
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith(name)), None)


class PeakMeter:
    """Keeps the last known high water mark of each process, so that it survives the process."""

    def __init__(self, pids: Sequence[int], read: Callable[[int], int | None] = high_water_bytes) -> None:
        self._marks: dict[int, int | None] = dict.fromkeys(pids)
        self._read = read

    def sample(self) -> None:
        for pid, before in self._marks.items():
            now = self._read(pid)
            if now is not None:
                self._marks[pid] = max(now, before or 0)

    @property
    def peak_bytes(self) -> int | None:
        """None until every process has been seen once."""
        marks = [mark for mark in self._marks.values() if mark is not None]
        return sum(marks) if len(marks) == len(self._marks) else None
