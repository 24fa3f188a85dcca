"""The ways of a comparison by name, and what sets them apart."""

from __future__ import annotations

import pytest

from guanaco.bench.ways import WAYS, find_ways
from guanaco.errors import UsageError


def test_ways_come_in_the_order_asked_for() -> None:
    assert [way.name for way in find_ways("mmap, slots,pagecache")] == ["mmap", "slots", "pagecache"]


@pytest.mark.parametrize("names", ["slots,fast", "", "slots,,mmap", "SLOTS"])
def test_an_unknown_way_is_refused_with_those_there_are(names: str) -> None:
    with pytest.raises(UsageError, match=r"--ways: '.*' is unknown; choose from slots, .*pagecache, mmap"):
        find_ways(names)


def test_the_peer_is_llama_cpp_as_its_users_run_it() -> None:
    peer = WAYS["mmap"]
    assert not peer.is_streaming
    assert peer.read_ahead_kib == 128
    assert peer.spin_count is None, "our spin setting is no part of it"
    assert WAYS["mmap-spin"].spin_count is not None
    assert all(not way.engine_defaults for name, way in WAYS.items() if name.startswith("mmap"))
    assert all(way.read_ahead_kib is None for way in WAYS.values() if way.is_streaming)
