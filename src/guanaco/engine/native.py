"""The thin Python side of libguanaco.so: the plan file it reads and the counters it writes.

Owns: the text of a plan and the layout of the shared counters (both checked against the library's
ABI version). Leaves deciding to the planner and running to the library. Refuses a library of another ABI.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guanaco.errors import EngineError
from guanaco.model.map import ModelMap
from guanaco.planner.plan import Plan

ABI_VERSION = 5
PLAN_VARIABLE = "GUANACO_PLAN"
PARENT_VARIABLE = "GUANACO_PLAN_PARENT"
LIBRARY_VARIABLE = "GUANACO_LIBRARY"

_MAGIC = 0x314154534E475547
_ERROR_BYTES = 1024
# The 64-bit words of StatsBlock in native/src/stats.h, in order, around the error text.
_WORDS = (
    "magic", "version", "state", "io_mode", "arena_bytes", "slots", "dense_bytes_total",
    "dense_bytes_read", "groups_expected", "groups_bound", "accesses", "hits", "misses", "bytes_read",
    "evictions", "prefetch_calls", "unmanaged", "read_errors", "read_retries", "wait_ns", "graphs", "tokens",
    "evict_hot", "evict_reread", "hot_slots", "pinned", "least_pin_budget", "most_pin_budget",
    "preloaded", "preload_ended",
    "pilot_calls", "pilot_slices", "pilot_guessed", "pilot_right", "pilot_selected", "pilot_useful",
    "pilot_wasted", "pilot_wasted_bytes", "overlapped", "waves", "pilot_control_right", "pilot_control_total",
    "draft_steps", "draft_rests", "draft_accepted", "draft_accesses", "draft_hits",
    "running", "error_length",
)  # fmt: skip
_CONTROLS = (
    "replay_on", "replay_position", "replay_exhausted", "fail_reads", "mutation", "fail_slices",
    "pilot_control", "warm_start", "give_up", "replay_strands",
)  # fmt: skip
_RESERVED_WORDS = 10
_DECODE_TOKENS = 16  # a batch of so few is never taken for a prompt's
_CONTROLS_OFFSET = 8 * len(_WORDS) + _ERROR_BYTES
STATS_BYTES = _CONTROLS_OFFSET + 8 * (len(_CONTROLS) + _RESERVED_WORDS)

_STATES = ("idle", "loading", "ready", "failed")
_IO_MODES = (None, "io_uring, O_DIRECT", "threads, O_DIRECT", "threads, buffered", "page cache")


@dataclass(frozen=True)
class NativeStats:
    """A snapshot of the library's counters. Accesses count distinct experts per layer and batch."""

    state: str
    io_mode: str | None  # None until the library chose one
    arena_bytes: int
    slots: int
    dense_bytes_total: int
    dense_bytes_read: int
    groups_expected: int
    groups_bound: int
    accesses: int
    hits: int
    misses: int
    bytes_read: int
    evictions: int
    prefetch_calls: int
    unmanaged: int
    read_errors: int
    read_retries: int
    wait_s: float
    graphs: int
    tokens: int
    pilot_calls: int
    pilot_slices: int
    pilot_guessed: int
    pilot_right: int
    pilot_selected: int
    pilot_useful: int
    pilot_wasted: int
    pilot_wasted_bytes: int
    overlapped: int
    waves: int  # selections that did not fit the slots and were computed in waves
    pilot_control_right: int
    pilot_control_total: int
    replay_exhausted: bool
    last_error: str
    # What the policy did. Hot: pinned for good, or used more than the median of the resident experts.
    evict_hot: int = 0
    evict_reread: int = 0  # evicted, and read again within as many reads as there are slots
    hot_slots: int = 0
    pinned: int = 0  # experts, with a permanent pin
    least_pin_budget: int = 0  # of the layers
    most_pin_budget: int = 0
    preloaded: int = 0  # experts read before they were asked for
    preload_ended: int = 0  # 1 when no more of them will be
    draft_steps: int = 0  # steps of decoding where something drafts
    draft_rests: int = 0  # of these without a draft, because it did not pay
    draft_accepted: int = 0  # drafted tokens that were right
    # Of accesses and hits, what only drafts that are mostly wrong asked for.
    draft_accesses: int = 0
    draft_hits: int = 0


@dataclass(frozen=True)
class DraftCounts:
    """Steps of decoding with a drafter, those of them without a draft, drafted tokens that were right.

    ``accesses``, ``hits``: of the experts that only drafts which are mostly wrong asked for.
    """

    steps: int
    rests: int
    accepted: int
    accesses: int = 0
    hits: int = 0


def library_path() -> Path:
    """The built library: beside the package, or where ``GUANACO_LIBRARY`` says (development and tests).

    Raises EngineError when there is none that can be opened, or it has another ABI.
    """
    override = os.environ.get(LIBRARY_VARIABLE)
    path = Path(override).absolute() if override else Path(__file__).resolve().parent.parent / "libguanaco.so"
    if not path.is_file():
        raise EngineError(
            f"the native library {path} is missing; {_again(override)}, or load with --load-mode mmap"
        )
    try:
        library = ctypes.CDLL(str(path))
        version = int(library.guanaco_abi_version())
        library.guanaco_stats_bytes.restype = ctypes.c_ulong
        stats_bytes = int(library.guanaco_stats_bytes())
    except (OSError, AttributeError) as problem:
        raise EngineError(
            f"the native library {path} cannot be loaded ({problem}); {_again(override)}, "
            "or load with --load-mode mmap"
        ) from None
    if version != ABI_VERSION or stats_bytes != STATS_BYTES:
        raise EngineError(
            f"the native library {path} has ABI {version} and this guanaco needs ABI {ABI_VERSION}; "
            f"{_again(override)}"
        )
    return path


def _again(override: str | None) -> str:
    return f"unset {LIBRARY_VARIABLE}" if override else "install guanaco-llm again"


def plan_environment(plan_file: Path) -> dict[str, str]:
    """Makes a child of this process use the plan, and no other process that inherits the variables."""
    return {PLAN_VARIABLE: str(plan_file), PARENT_VARIABLE: str(os.getpid())}


def has_uring() -> bool:
    """True when the library was built with io_uring."""
    return bool(ctypes.CDLL(str(library_path())).guanaco_has_uring())


def plan_text(
    model: ModelMap,
    plan: Plan,
    io: str,
    stats_path: Path,
    *,
    engine: str = "",
    replay_path: Path | None = None,
    record_path: Path | None = None,
    heat_path: Path | None = None,
    prior: Sequence[Sequence[float]] = (),
    testing: bool = False,
    manage: bool = True,
    policy: str = "lru",
    pilot: str = "off",
    pilot_mass: float = 0.9,
    overlap: bool = True,
    batch_threads: int | None = None,
    decode_tokens: int = 1,
    has_mtp: bool = False,
    draft_always: bool = False,
) -> str:
    """The plan file's text. ``manage=False`` writes one that only replays routing.

    ``decode_tokens``: most of a batch in which every request goes on. ``has_mtp``: with the layers that
    draft. ``prior``: of each of the model's groups, the uses a token to expect of each expert; empty:
    unknown.
    """
    lines = [
        "guanaco-plan 1",
        f"io {io}",
        f"policy {policy}",
        f"pilot {pilot}",
        f"pilot_mass {pilot_mass:g}",
        f"overlap {int(overlap)}",
        f"threads {plan.n_threads}",
        f"batch_threads {batch_threads or plan.n_threads}",
        f"batch_tokens {max(_DECODE_TOKENS, decode_tokens)}",
        f"draft_always {int(draft_always)}",
        f"staging_bytes {plan.parts.staging_bytes}",
        f"testing {int(testing)}",
        f"manage {int(manage)}",
        f"stats {stats_path}",
    ]
    if engine:
        lines.append(f"engine {engine}")
    if replay_path is not None:
        lines.append(f"replay {replay_path}")
    if record_path is not None:
        lines.append(f"record {record_path}")
    if heat_path is not None:
        lines.append(f"heat {heat_path}")
    for file in model.files:
        if "\n" in str(file.path):
            raise EngineError(f"the model path {str(file.path)!r} holds a line break; rename the file")
        lines.append(
            f"file {file.device} {file.inode} {file.size_bytes} {file.mtime_ns} {file.path.absolute()}"
        )
    # A peer's plan still names the groups, so that the replay finds the expert products.
    if manage:
        lines += [
            f"dense {d.file_index} {d.offset} {d.nbytes}"
            for d in model.dense
            if not (d.is_lazy_table or (d.is_mtp and not has_mtp))
        ]
    for size_class in plan.classes:
        offsets = " ".join(map(str, size_class.part_offsets))
        lines.append(
            f"class {size_class.slots} {size_class.stride_bytes} {len(size_class.part_offsets)} {offsets}"
        )
    for group, class_index in zip(model.groups, plan.group_class, strict=True):
        if class_index < 0:  # never run by a plain decode, and of sizes that no slot has: left to the mapping
            continue
        lines.append(
            f"group {group.layer} {class_index} {group.n_expert} {int(not group.is_mtp)} {group.top_k}"
        )
        lines += [
            f"part {p.role} {p.file_index} {p.offset} {p.slice_bytes} {p.tensor_name}" for p in group.parts
        ]
    planned = [index for index, class_index in enumerate(plan.group_class) if class_index >= 0]
    lines += [
        f"prior {number} {' '.join(f'{use:.6g}' for use in prior[index])}"
        for number, index in enumerate(planned)
        if index < len(prior) and prior[index]
    ]
    return "\n".join(lines) + "\n"


class StatsFile:
    """The shared counters of one worker: created by the parent, written by the library."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(STATS_BYTES))
        self._open(path)

    @classmethod
    def attach(cls, path: Path) -> StatsFile:
        """The counters that another process made."""
        attached = cls.__new__(cls)
        attached._open(path)
        return attached

    def _open(self, path: Path) -> None:
        # Kept open: shared memory files lose their names when their user logs out (systemd's RemoveIPC).
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> NativeStats | None:
        """A snapshot, or None while the library has not started."""
        block = os.pread(self._descriptor, STATS_BYTES, 0)
        words = dict(zip(_WORDS, struct.unpack_from(f"={len(_WORDS)}Q", block), strict=True))
        if words.pop("magic") != _MAGIC or words.pop("version") != ABI_VERSION:
            return None
        controls = struct.unpack_from(f"={len(_CONTROLS)}Q", block, _CONTROLS_OFFSET)
        length = min(words.pop("error_length"), _ERROR_BYTES)
        words.pop("running")
        text_at = 8 * len(_WORDS)
        return NativeStats(
            state=_STATES[words.pop("state")],
            io_mode=_IO_MODES[words.pop("io_mode")],
            wait_s=words.pop("wait_ns") / 1e9,
            replay_exhausted=bool(controls[2]),
            last_error=block[text_at : text_at + length].decode(errors="replace"),
            **words,
        )

    def running_graph(self) -> int:
        """Number of the graph that is being computed; 0: none."""
        block = os.pread(self._descriptor, 8, 8 * _WORDS.index("running"))
        return int.from_bytes(block, sys.byteorder)

    def control(self, name: str, value: int) -> None:
        """Sets one control word: replay of routing, or a fault for tests."""
        offset = _CONTROLS_OFFSET + 8 * _CONTROLS.index(name)
        os.pwrite(self._descriptor, struct.pack("=Q", value), offset)
