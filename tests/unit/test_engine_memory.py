"""The peak of two processes."""

from __future__ import annotations

import os
from pathlib import Path

from guanaco.engine.memory import PeakMeter, high_water_bytes, resident_bytes
from guanaco.units import KIB


def test_the_last_known_mark_of_each_process_counts() -> None:
    marks: dict[int, int | None] = {1: 10, 2: None}
    meter = PeakMeter((1, 2), lambda pid: marks[pid])
    meter.sample()
    assert meter.peak_bytes is None, "one has not been seen: unknown, not zero"
    marks.update({1: 30, 2: 5})
    meter.sample()
    marks.update({1: 20, 2: None})
    meter.sample()
    assert meter.peak_bytes == 35


def test_status_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmHWM:\t    42 kB\nVmRSS:\t 40 kB\n")
    assert high_water_bytes(7, tmp_path) == 42 * KIB
    assert resident_bytes(7, tmp_path) == 40 * KIB
    assert high_water_bytes(8, tmp_path) is None


def test_our_own_mark_is_at_least_what_we_hold() -> None:
    now, peak = resident_bytes(os.getpid()), high_water_bytes(os.getpid())
    assert now is not None
    assert peak is not None
    assert peak >= now > 1 << 20
