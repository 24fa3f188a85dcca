"""What the drive under a model can deliver at the sizes that streaming reads: the best of several depths.

Owns: the measurement, with O_DIRECT reads of random expert slices by threads. Refuses a file system without
O_DIRECT, where the page cache would answer instead.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from guanaco.errors import EngineError
from guanaco.model.map import ModelMap

BOUND_FIELDS = (
    "budget", "way", "token_s", "compute_s", "bytes_per_token", "drive_bytes_per_s", "drive_s", "over_bound",
)  # fmt: skip
PROMPT_BOUND_FIELDS = (
    "budget", "way", "prompt_n", "prompt_s", "compute_s", "prompt_bytes", "drive_bytes_per_s", "drive_s",
    "over_bound", "read_per_touched",
)  # fmt: skip
DEPTHS = (1, 2, 4, 8, 16, 32)
_PAGE = 4096


@dataclass(frozen=True)
class Slice:
    """One read: aligned to 4 KiB on both ends."""

    path: Path
    offset: int
    nbytes: int


def random_slices(model: ModelMap, count: int, seed: int) -> list[Slice]:
    """Slices of random experts, as the store would read them."""
    rng = random.Random(seed)
    parts = [(part, group.n_expert) for group in model.groups if not group.is_mtp for part in group.parts]
    chosen = []
    for _ in range(count):
        part, n_expert = rng.choice(parts)
        begin = part.offset + rng.randrange(n_expert) * part.slice_bytes
        first = begin // _PAGE * _PAGE
        end = -(-(begin + part.slice_bytes) // _PAGE) * _PAGE
        chosen.append(Slice(model.files[part.file_index].path, first, end - first))
    return chosen


def drive_bandwidth(model: ModelMap, *, seconds_per_depth: float = 0.4, seed: int = 1) -> float:
    """Bytes per second of the best depth. Raises EngineError where the cache cannot be gone around."""
    return max(_at_depth(model, depth, seconds_per_depth, seed + index) for index, depth in enumerate(DEPTHS))


def _at_depth(model: ModelMap, depth: int, seconds: float, seed: int) -> float:
    slices = random_slices(model, 4096, seed)
    try:
        files = {path: os.open(path, os.O_RDONLY | os.O_DIRECT) for path in {one.path for one in slices}}
    except OSError as problem:
        raise EngineError(f"the drive cannot be measured: {problem}") from None
    lock = threading.Lock()
    total, at = 0, 0
    stop_at = time.monotonic() + seconds

    def work() -> None:
        nonlocal total, at
        with mmap.mmap(-1, max(one.nbytes for one in slices)) as buffer:
            while time.monotonic() < stop_at:
                with lock:
                    one = slices[at % len(slices)]
                    at += 1
                with memoryview(buffer) as whole, whole[: one.nbytes] as target:
                    got = os.preadv(files[one.path], [target], one.offset)
                with lock:
                    total += got

    started = time.monotonic()
    workers = [threading.Thread(target=work) for _ in range(depth)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return total / (time.monotonic() - started)
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def bound_lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per budget and streamed way: token time over max(compute alone, bytes per token / bandwidth).

    Bytes of wrong guesses do not count.

    Medians of the runs; ``compute`` rows are the runs with all experts in slots.
    """
    lines = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        here = [row for row in rows if row["budget"] == budget]
        compute_s = 1 / median(row["decode_tps"] for row in here if row["way"] == "compute")
        for way in dict.fromkeys(row["way"] for row in here if row["hit_rate"] is not None):
            if way == "compute":
                continue
            mine = [row for row in here if row["way"] == way]
            token_s = 1 / median(row["decode_tps"] for row in mine)
            # What was read for nothing is ours to answer for, not the drive's.
            nbytes = median(
                row["bytes_per_token"] - row["pilot_wasted_bytes"] / row["decode_n"] for row in mine
            )
            drive = median(row["drive_bytes_per_s"] for row in mine)
            drive_s = nbytes / drive
            over = token_s / max(compute_s, drive_s)
            figures = (budget, way, token_s, compute_s, nbytes, drive, drive_s, over)
            lines.append(dict(zip(BOUND_FIELDS, figures, strict=True)))
    return lines


def prompt_bound_lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As ``bound_lines``, of the prompt; and its bytes read over those of the experts it selected."""
    lines = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        here = [row for row in rows if row["budget"] == budget]
        compute_s = median(_prompt_s(row) for row in here if row["way"] == "compute")
        for way in dict.fromkeys(row["way"] for row in here if row["prompt_read_per_touched"] is not None):
            if way == "compute":
                continue
            mine = [row for row in here if row["way"] == way]
            prompt_s = median(_prompt_s(row) for row in mine)
            nbytes = median(row["prompt_bytes"] for row in mine)
            drive = median(row["drive_bytes_per_s"] for row in mine)
            over = prompt_s / max(compute_s, nbytes / drive)
            per_touched = median(row["prompt_read_per_touched"] for row in mine)
            figures = (
                budget, way, mine[0]["prompt_n"], prompt_s, compute_s, nbytes, drive, nbytes / drive, over,
                per_touched,
            )  # fmt: skip
            lines.append(dict(zip(PROMPT_BOUND_FIELDS, figures, strict=True)))
    return lines


def _prompt_s(row: dict[str, Any]) -> float:
    return float(row["prompt_n"] / row["prompt_tps"])
