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
_FEWEST, _MOST = 300, 20_000
_UNPROBED = 6500  # without the native library, which only --load-mode mmap can do


def count_for(turn_ps: int, spin_us: int = SPIN_US) -> int:
    """Turns that take ``spin_us`` when one takes ``turn_ps`` picoseconds."""
    return min(max(round(spin_us * 1_000_000 / max(1, turn_ps)), _FEWEST), _MOST)


@functools.cache
def spin_count() -> int:
    """``GOMP_SPINCOUNT`` for this processor; measured once a process, in half a millisecond."""
    try:
        library = ctypes.CDLL(str(native.library_path()))
    except EngineError:
        return _UNPROBED
    library.guanaco_spin_turn_ps.restype = ctypes.c_ulong
    return count_for(int(library.guanaco_spin_turn_ps()))
