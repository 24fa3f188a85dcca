"""From what the native library wrote down while a model ran to a trace that can be kept and replayed.

Owns the format of the library's recording (``native/src/recorder.h``) and the writing of a recorded trace.
Leaves reading one to ``trace``. Refuses a file that is not such a recording.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from guanaco.cache.policy import PolicyShape
from guanaco.errors import EngineError
from guanaco.files import replacing
from guanaco.simulator.trace import DECODE, FORMAT_VERSION, PROMPT

_MAGIC, _VERSION = b"GNRC", 2
_HEAD = struct.Struct("=7I")  # graph, group, rows, ids a row, experts, transient, flags
_HAS_SCORES, _IS_BATCH = 1, 2
_WAS_RESIDENT = 1 << 31
_MOST_WORDS = 1 << 26


@dataclass(frozen=True)
class Served:
    """One layer's selection: the rows of the batch in the router's order, and what the cache was asked."""

    graph: int
    group: int
    rows: tuple[tuple[int, ...], ...]
    experts: tuple[int, ...]
    n_transient: int
    resident: frozenset[int]
    scores: tuple[tuple[float, ...], ...] | None  # of the rows
    is_batch: bool = False  # of a prompt: the policy learned from every row

    @property
    def has_scores(self) -> bool:
        """A layer that ran none of a batch's tokens has nothing to score."""
        return self.scores is not None or not self.rows


@dataclass(frozen=True)
class About:
    """What a recorded trace says of the run besides its routing."""

    name: str
    layer: tuple[int, ...]  # of the model, of each group
    expert_bytes: tuple[int, ...]
    policy: str
    shape: PolicyShape
    has_guesses: bool
    counters: dict[str, int]  # ``recorded.COUNTERS``
    n_prompt: int  # tokens that come before the first decoded one


@dataclass(frozen=True)
class Written:
    n_prompt: int
    n_decode: int
    n_selections: int
    has_scores: bool


def read_recording(path: Path) -> Iterator[Served]:
    """The selections of a recording, oldest first. A last one that is cut off is left out."""
    with path.open("rb") as file:
        if file.read(8) != _MAGIC + struct.pack("=I", _VERSION):
            raise EngineError(f"{path} is not a recording of this version's native library")
        while True:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            served = _read_selection(file, *_HEAD.unpack(head))
            if served is None:
                return
            yield served


def _read_selection(
    file: BinaryIO,
    graph: int,
    group: int,
    n_rows: int,
    n_used: int,
    n_experts: int,
    n_transient: int,
    flags: int,
) -> Served | None:
    if n_rows * n_used > _MOST_WORDS or n_experts > _MOST_WORDS:
        raise EngineError(f"a selection of {n_rows} x {n_used} experts in a recording: it is damaged")
    ids = _words(file, "i", n_rows * n_used)
    words = _words(file, "I", n_experts)
    scores = _words(file, "f", n_rows * n_used) if flags & _HAS_SCORES else None
    if (
        len(ids) < n_rows * n_used
        or len(words) < n_experts
        or (scores is not None and len(scores) < len(ids))
    ):
        return None
    experts = tuple(word & ~_WAS_RESIDENT for word in words)
    return Served(
        graph=graph,
        group=group,
        rows=tuple(tuple(ids[row * n_used : (row + 1) * n_used]) for row in range(n_rows)),
        experts=experts,
        n_transient=n_transient,
        resident=frozenset(e for e, word in zip(experts, words, strict=True) if word & _WAS_RESIDENT),
        scores=None
        if scores is None
        else tuple(tuple(scores[row * n_used : (row + 1) * n_used]) for row in range(n_rows)),
        is_batch=bool(flags & _IS_BATCH),
    )


def _words(file: BinaryIO, code: str, count: int) -> array[int]:
    """Fewer than ``count`` at the end of the file."""
    raw = file.read(4 * count)
    values: array[int] = array(code)
    values.frombytes(raw[: len(raw) // 4 * 4])
    return values


def write_recorded(served: Iterable[Served], about: About, path: Path, n_served: int) -> Written:
    """Write a trace, through a temporary name; the whole of ``served`` is never in memory.

    Raises EngineError, and writes none, when ``served`` has not the ``n_served`` selections that there were.
    """
    n_tokens = n_selections = 0
    has_scores = True
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(_header(about)) + "\n")
        for _, group in groupby(served, key=lambda item: item.graph):
            batch = list(group)
            n_selections += len(batch)
            has_scores = has_scores and all(item.has_scores for item in batch)
            for line in _lines(batch, about, n_tokens):
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            n_tokens += _n_rows(batch)
        if n_selections != n_served:
            raise EngineError(
                f"only {n_selections} of {n_served} selections were recorded; "
                f"is there room on the drive of {path}?"
            )
    n_prompt = min(n_tokens, about.n_prompt)
    return Written(n_prompt, n_tokens - n_prompt, n_selections, has_scores and n_selections > 0)


def _header(about: About) -> dict[str, object]:
    shape = about.shape
    return {
        "guanaco_trace": FORMAT_VERSION,
        "name": about.name,
        "n_layer": shape.n_groups,
        "n_expert": max(shape.n_expert),
        "top_k": max(shape.top_k),
        "expert_bytes": list(about.expert_bytes),
        "layer": list(about.layer),
        "cache": {
            "policy": about.policy,
            "slots": list(shape.n_slots),
            "class": list(shape.size_class),
            "n_expert": list(shape.n_expert),
            "top_k": list(shape.top_k),
            "guesses": about.has_guesses,
        },
        "counters": about.counters,
    }


def _lines(batch: Sequence[Served], about: About, n_before: int) -> Iterator[dict[str, object]]:
    """The tokens of one graph. Those served together come after a line that says how."""
    n_rows = _n_rows(batch)
    if not _is_one_token(batch):
        yield {
            "batch": n_rows,
            "served": [_asked(item) for item in batch],
        }
    first = {item.group: item for item in reversed(batch)}  # a layer served twice shows its first selection
    groups = range(about.shape.n_groups)
    with_scores = all(item.has_scores for item in batch)
    for row in range(n_rows):
        rows = [_row(first.get(group), row - n_rows) for group in groups]
        line: dict[str, object] = {
            "phase": PROMPT if n_before + row < about.n_prompt else DECODE,
            "layers": [ids for ids, _, _ in rows],
            "resident": [resident for _, resident, _ in rows],
        }
        if with_scores:
            line["weights"] = [scores for _, _, scores in rows]
        yield line


def _asked(item: Served) -> list[object]:
    asked: list[object] = [item.group, item.n_transient, list(item.experts)]
    return [*asked, 1] if item.is_batch else asked


def _row(item: Served | None, from_end: int) -> tuple[list[int], list[int], list[float]]:
    """Ids, residency and scores of one token. A layer may run the last tokens of a batch only."""
    if item is None or -from_end > len(item.rows):
        return [], [], []
    ids = list(item.rows[from_end])
    scores = item.scores[from_end] if item.scores is not None else ()
    return ids, [int(e in item.resident) for e in ids], [float(f"{score:.6g}") for score in scores]


def _is_one_token(batch: Sequence[Served]) -> bool:
    """Whether the token's own line says all: each layer once, in order, asked for what its router picked."""
    order = [item.group for item in batch]
    return order == sorted(set(order)) and all(
        len(item.rows) == 1 and item.rows[0] == item.experts and item.n_transient == 0 for item in batch
    )


def _n_rows(batch: Sequence[Served]) -> int:
    return max(len(item.rows) for item in batch)
