"""How long the engine's threads spin at a barrier before they sleep.

Owns the choice, made by a probe. Long enough to meet the other threads of a node, short enough that a busy
neighbour does not stop decoding: a time, so the count of turns depends on the processor
(docs/benchmarks.md has both sides). Leaves setting it to ``launch``.
"""

from __future__ import annotations

import ctypes
import functools

from guanaco.engine import native
from guanaco.errors import EngineError

SPIN_US = 175
BOUND_SPIN_US = 400  # where each thread has its processor: it takes time from that one's neighbours only
_FEWEST, _MOST = 300, 60_000
_UNPROBED_TURN_PS = 27_000  # without the native library, which only --load-mode mmap can do


def count_for(turn_ps: int, spin_us: int) -> int:
    """Turns that take ``spin_us`` when one takes ``turn_ps`` picoseconds."""
    return min(max(round(spin_us * 1_000_000 / max(1, turn_ps)), _FEWEST), _MOST)


def spin_count(*, is_bound: bool) -> int:
    """``GOMP_SPINCOUNT`` for this processor. ``is_bound``: each thread has a processor of its own."""
    return count_for(_turn_ps(), BOUND_SPIN_US if is_bound else SPIN_US)


@functools.cache
def _turn_ps() -> int:
    """Measured once a process, in half a millisecond."""
    try:
        library = ctypes.CDLL(str(native.library_path()))
    except EngineError:
        return _UNPROBED_TURN_PS
    library.guanaco_spin_turn_ps.restype = ctypes.c_ulong
    return int(library.guanaco_spin_turn_ps())
