"""How hot each expert is: the array in shared memory that ``native/src/heat.cc`` writes while a model runs.

Owns the layout and a snapshot of it. Leaves what is done with it (``top``, the profile of use) to others. A
file that is not whole yet reads as None.
"""

from __future__ import annotations

import os
import struct
import weakref
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MAGIC, _VERSION = 0x3154414548554E47, 1
_HEAD = struct.Struct("=4Q")  # magic, version, layers, experts of all layers
_SHAPE = struct.Struct("=2I")  # layer, experts
_USES_BYTES, _HEAT_BYTES = 4, 2
_RESIDENT, _MOST_HEAT = 1 << 15, (1 << 15) - 1


@dataclass(frozen=True)
class LayerHeat:
    """One layer, as of its last selection."""

    layer: int
    resident: tuple[bool, ...]  # of each expert: it has a slot
    heat: tuple[float, ...]  # share of the layer's recent selections that named it, the latest counting most
    uses: tuple[int, ...]  # by decoding, since the start


def heat_bytes(n_expert: Iterable[int]) -> int:
    """Size of the file for layers with so many experts each."""
    counts = list(n_expert)
    return _HEAD.size + len(counts) * _SHAPE.size + sum(counts) * (_USES_BYTES + _HEAT_BYTES)


class HeatFile:
    """Created by the parent, for the layers of a plan in order."""

    def __init__(self, path: Path, n_expert: Iterable[int]) -> None:
        path.write_bytes(bytes(heat_bytes(n_expert)))
        self._open(path)

    @classmethod
    def attach(cls, path: Path) -> HeatFile:
        """The array that another process made."""
        attached = cls.__new__(cls)
        attached._open(path)
        return attached

    def _open(self, path: Path) -> None:
        # Kept open, as the counters are.
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> tuple[LayerHeat, ...] | None:
        """A snapshot, or None while the library has not started."""
        return parse_heat(os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0))


def parse_heat(block: bytes) -> tuple[LayerHeat, ...] | None:
    """None for anything that is not a whole array."""
    if len(block) < _HEAD.size:
        return None
    magic, version, n_layers, n_experts = _HEAD.unpack_from(block)
    shapes_end = _HEAD.size + n_layers * _SHAPE.size
    uses_end = shapes_end + n_experts * _USES_BYTES
    if (magic, version) != (_MAGIC, _VERSION) or uses_end + n_experts * _HEAT_BYTES > len(block):
        return None
    shapes = list(_SHAPE.iter_unpack(block[_HEAD.size : shapes_end]))
    if sum(count for _, count in shapes) != n_experts:
        return None
    uses = array("I", block[shapes_end:uses_end])
    heat = array("H", block[uses_end : uses_end + n_experts * _HEAT_BYTES])
    layers = []
    first = 0
    for layer, count in shapes:
        words = heat[first : first + count]
        layers.append(
            LayerHeat(
                layer=layer,
                resident=tuple(bool(word & _RESIDENT) for word in words),
                heat=tuple((word & _MOST_HEAT) / _MOST_HEAT for word in words),
                uses=tuple(uses[first : first + count]),
            )
        )
        first += count
    return tuple(layers)
