"""Sizes as people write them."""

from __future__ import annotations

import pytest

from guanaco.units import GIB, MIB, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * GIB),
        ("8G", 8 * GIB),
        ("8GB", 8 * 10**9),
        ("1.5 MiB", MIB + MIB // 2),
        ("4096", 4096),
        ("9007199254740993", 9007199254740993),
        ("0.1GiB", GIB // 10),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "12parrots", "-1", "0", "0.0001", "1e9", "GiB", "9" * 310, "9" * 310 + "G", "8EiB"]
)
def test_what_is_no_size_is_said_so(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
