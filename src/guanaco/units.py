"""Sizes and rates as people write and read them. Imports nothing but the error base."""

from __future__ import annotations

import re
from decimal import Decimal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")
# "8G" means GiB, as in llama.cpp, systemd and docker; only a trailing "B" without "i" is decimal.
_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": 1 << 40, "tib": 1 << 40, "tb": 1000**4,
}  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes from ``8GiB``, ``8G``, ``8GB``, ``512MiB`` or a plain number.

    Raises ValueError with a reason that names the text.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write it as 8GiB, 512MiB or a number of bytes")
    size_bytes = int(Decimal(match["number"]) * factor)
    if not 0 < size_bytes < 1 << 63:
        raise ValueError(
            f"{text!r} is not a size above zero that any machine has; write it as 8GiB or 512MiB"
        )
    return size_bytes


def format_bytes(size_bytes: int | None) -> str:
    """``1.50 GiB``, ``12.0 MiB``, ``4096 B``; ``unknown`` for None."""
    if size_bytes is None:
        return "unknown"
    for factor, unit, digits in ((GIB, "GiB", 2), (MIB, "MiB", 1), (KIB, "KiB", 1)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.{digits}f} {unit}"
    return f"{size_bytes} B"
