"""The ways of running one model that a benchmark compares, as rows of data.

Owns: what each way sets. Every way answers the same requests with the same threads, in a memory cgroup of the
same limit; they differ in who decides what is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.errors import UsageError

LAPTOP_READ_AHEAD_KIB = 128  # the kernel's default; virtual drives often have much more
OUR_SPIN = "ours"


@dataclass(frozen=True)
class Way:
    """One row of the comparison."""

    name: str
    title: str
    is_streaming: bool  # guanaco's expert store; else llama.cpp alone
    io: str = "auto"
    policy: str = "recall"
    pilot: str = "auto"
    overlap: bool = True  # resident experts compute while others of their layer are read
    read_ahead_kib: int | None = None  # of the drive while it runs; None: as it is
    spin_count: str | None = (
        OUR_SPIN  # GOMP_SPINCOUNT; "ours": as guanaco sets it; None: the engine's default
    )
    engine_defaults: bool = False  # weight repacking and warm-up as llama.cpp does by itself
    guanaco_decides: bool = False  # --load-mode auto
    all_in_slots: bool = False  # no limit, every expert in a slot before the decode that counts


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way("slots", "guanaco, expert slots", is_streaming=True),
        # What each part brings, alone and without it.
        Way("lru", "guanaco, LRU, no overlap, no pilot", True, policy="lru", pilot="off", overlap=False),
        Way("policy", "guanaco, policy alone", True, pilot="off", overlap=False),
        Way("overlap", "guanaco, LRU with overlap", True, policy="lru", pilot="off"),
        Way("pilot", "guanaco, LRU with pilot", True, policy="lru", overlap=False),
        Way("no-pilot", "guanaco, without pilot", True, pilot="off"),
        Way("gate", "guanaco, every guess of the next router read", True, pilot="gate"),
        Way("threads", "guanaco, expert slots, thread pool", is_streaming=True, io="threads"),
        Way("pagecache", "guanaco, --io pagecache", is_streaming=True, io="pagecache"),
        Way(
            "mmap",
            "llama.cpp, mmap, 128 KiB read-ahead, no repack",
            is_streaming=False,
            read_ahead_kib=LAPTOP_READ_AHEAD_KIB,
            spin_count=None,
        ),
        Way(
            "mmap-spin",
            "llama.cpp, mmap, 128 KiB read-ahead, no repack, our thread spin",
            is_streaming=False,
            read_ahead_kib=LAPTOP_READ_AHEAD_KIB,
        ),
        Way(
            "mmap-ra512",
            "llama.cpp, mmap, 512 KiB read-ahead, no repack",
            is_streaming=False,
            read_ahead_kib=512,
            spin_count=None,
        ),
        Way(
            "mmap-ra32",
            "llama.cpp, mmap, 32 KiB read-ahead, no repack",
            is_streaming=False,
            read_ahead_kib=32,
            spin_count=None,
        ),
        Way(
            "mmap-own",
            "llama.cpp, mmap, the drive's own read-ahead, no repack",
            is_streaming=False,
            spin_count=None,
        ),
        # The floor of any streaming: the hook on, nothing to read.
        Way("compute", "guanaco, all experts in slots", True, pilot="off", all_in_slots=True),
        Way("auto", "guanaco, --load-mode auto", False, engine_defaults=True, guanaco_decides=True),
        Way(
            "plain", "llama.cpp with its defaults", is_streaming=False, engine_defaults=True, spin_count=None
        ),
    )
}


def find_ways(names: str) -> tuple[Way, ...]:
    """Ways from ``slots,mmap``. Raises UsageError for a name that is none."""
    chosen = []
    for name in names.split(","):
        way = WAYS.get(name.strip())
        if way is None:
            raise UsageError(f"--ways: {name.strip()!r} is unknown; choose from {', '.join(WAYS)}")
        chosen.append(way)
    return tuple(chosen)
