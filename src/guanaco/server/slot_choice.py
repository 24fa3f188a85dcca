"""Which of the engine's slots answers a request. Pure.

llama.cpp fills each batch from its slots in the order of their numbers: a long prompt in a low slot keeps the
prompts of all higher ones waiting until it has been read. Owns the choice that avoids this and still finds
the conversation a request goes on with. Long is what one batch does not hold. Of long prompts one is read at
a time, which takes no longer in all: reading them is bound by computing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

_BLOCK_BYTES = 256  # requests are compared in pieces of it
_SUM_BYTES = 4
_MOST_BYTES = 1 << 20  # of a request that are looked at
_MOSTLY_READ = 0.5
_SIMILAR = 0.1  # share of a request that was answered here before; llama.cpp's own measure


@dataclass
class Slot:
    """One slot of the engine, as far as is known outside."""

    is_taken: bool = False
    is_reading: bool = False  # a long prompt
    digest: bytes = b""  # of the last request's prompt
    used: int = 0  # larger is later
    taken_s: float = 0.0  # when the last request was let in, on the event loop's clock


@dataclass(frozen=True)
class Choice:
    index: int
    is_long: bool


def digest_of(content: bytes) -> bytes:
    """A checksum of each whole block: two requests that begin alike have digests that begin alike."""
    end = min(len(content), _MOST_BYTES) - _BLOCK_BYTES + 1
    blocks = (content[at : at + _BLOCK_BYTES] for at in range(0, end, _BLOCK_BYTES))
    return b"".join(zlib.crc32(block).to_bytes(_SUM_BYTES, "little") for block in blocks)


def choose(digest: bytes, n_tokens: int, slots: Sequence[Slot], n_batch: int) -> Choice | None:
    """The slot for a request, or None: it waits until one is free or a long prompt is read."""
    free = [index for index, slot in enumerate(slots) if not slot.is_taken]
    if not free:
        return None
    similar = {index: similarity(digest, slots[index].digest) for index in free}
    best = max(free, key=lambda index: (similar[index], -index))
    is_long = n_tokens * (1 - similar[best]) > n_batch
    # A long prompt stays in a slot before others only for what saves most of its reading.
    goes_on = similar[best] > (_MOSTLY_READ if is_long else _SIMILAR)
    if is_long and any(slot.is_reading for slot in slots):
        return None
    if goes_on:
        return Choice(best, is_long)
    if is_long:
        return Choice(free[-1], is_long)
    return Choice(min(free, key=lambda index: _unfit_for_short(index, slots)), is_long)


def _unfit_for_short(index: int, slots: Sequence[Slot]) -> tuple[bool, bool, int, int]:
    """After a long prompt it would wait; the last slot is for long ones; else the one used longest ago."""
    waits = any(slot.is_reading for slot in slots[:index])
    return waits, index == len(slots) - 1, slots[index].used, index


def similarity(digest: bytes, before: bytes) -> float:
    """The share of a request that begins like the one before."""
    same, differs = 0, min(len(digest), len(before)) // _SUM_BYTES + 1
    while differs - same > 1:
        middle = (same + differs) // 2
        if digest[same * _SUM_BYTES : middle * _SUM_BYTES] == before[same * _SUM_BYTES : middle * _SUM_BYTES]:
            same = middle
        else:
            differs = middle
    return same * _SUM_BYTES / max(1, len(digest))
