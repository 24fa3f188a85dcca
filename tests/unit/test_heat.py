"""The heat of experts as another process reads it."""

from __future__ import annotations

import ctypes
import struct
from array import array
from pathlib import Path

import pytest

from guanaco.engine.heat import HeatFile, heat_bytes, parse_heat

RESIDENT, MOST = 1 << 15, (1 << 15) - 1


def block() -> bytes:
    """Two layers, of three experts and of two, as ``native/src/heat.cc`` lays them out."""
    head = struct.pack("=4Q", 0x3154414548554E47, 1, 2, 5)
    shapes = struct.pack("=4I", 1, 3, 7, 2)
    uses = array("I", [10, 0, 3, 4, 5]).tobytes()
    heat = array("H", [RESIDENT | MOST, 0, 100, RESIDENT, MOST]).tobytes()
    return head + shapes + uses + heat


def test_layers_are_told_apart() -> None:
    layers = parse_heat(block())
    assert layers is not None
    first, second = layers
    assert (first.layer, second.layer) == (1, 7)
    assert first.resident == (True, False, False)
    assert first.heat[:2] == (1.0, 0.0)
    assert first.heat[2] == pytest.approx(100 / MOST)
    assert first.uses == (10, 0, 3)
    assert second.resident == (True, False)
    assert second.heat == (0.0, 1.0)
    assert second.uses == (4, 5)
    assert len(block()) == heat_bytes((3, 2))


def test_a_file_nobody_wrote_yet(tmp_path: Path) -> None:
    made = HeatFile(tmp_path / "heat", (3, 2))
    assert made.path.stat().st_size == heat_bytes((3, 2))
    assert made.read() is None
    made.path.write_bytes(block())
    attached = HeatFile.attach(tmp_path / "heat").read()
    assert attached is not None
    assert attached[1].uses == (4, 5)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        block()[:31],
        block()[:-1],
        b"\0" * len(block()),
        block()[:8] + struct.pack("=Q", 2) + block()[16:],
        block()[:16] + struct.pack("=2Q", 1 << 60, 5) + block()[32:],
        block()[:16] + struct.pack("=2Q", 2, 1 << 60) + block()[32:],
        block()[:32] + struct.pack("=4I", 1, 4, 7, 2) + block()[48:],
    ],
)
def test_what_is_not_whole_reads_as_nothing(damaged: bytes) -> None:
    assert parse_heat(damaged) is None


def test_words_have_the_sizes_of_the_library() -> None:
    assert (array("I").itemsize, array("H").itemsize) == (4, 2)
    assert ctypes.sizeof(ctypes.c_uint32) == 4
