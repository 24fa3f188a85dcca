"""The floor that token time is set against."""

from __future__ import annotations

import pytest

from guanaco.bench.bandwidth import bound_lines, drive_bandwidth, prompt_bound_lines, random_slices
from guanaco.cli.demo import demo_model
from guanaco.gguf.reader import read_gguf
from guanaco.model.map import build_model_map


def row(way: str, decode_tps: float, nbytes: float = 0.0, hit_rate: float | None = 0.5) -> dict[str, object]:
    return {
        "budget": "25%",
        "way": way,
        "decode_tps": decode_tps,
        "bytes_per_token": nbytes,
        "hit_rate": hit_rate,
        "drive_bytes_per_s": 1e9,
        "decode_n": 10,
        "pilot_wasted_bytes": 0,
    }


def test_the_greater_of_compute_and_drive_is_the_bound() -> None:
    rows = [row("slots", 5.0, 1e8), row("compute", 10.0), row("mmap", 1.0, 9e8, None)]
    (line,) = bound_lines(rows)
    assert line["way"] == "slots"
    assert line["over_bound"] == pytest.approx(2.0)  # 200 ms; compute 100 ms, drive 100 ms
    wasteful = {**row("slots", 5.0, 2e8), "pilot_wasted_bytes": 5e8}
    (line,) = bound_lines([wasteful, row("compute", 10.0)])
    assert line["bytes_per_token"] == pytest.approx(1.5e8), "5e8 in ten tokens were read for nothing"
    (slower,) = bound_lines([row("slots", 5.0, 2e8), row("compute", 10.0)])
    assert slower["over_bound"] == pytest.approx(1.0)  # the drive needs 200 ms


def test_the_bound_of_a_prompt() -> None:
    def prompt(
        way: str, prompt_tps: float, nbytes: float = 0, per_touched: float | None = None
    ) -> dict[str, object]:
        return {
            **row(way, 1.0),
            "prompt_n": 100,
            "prompt_tps": prompt_tps,
            "prompt_bytes": nbytes,
            "prompt_read_per_touched": per_touched,
        }

    rows = [prompt("slots", 10, 5e9, 0.8), prompt("compute", 25, 8e9, 1.0), prompt("mmap", 5, 9e9)]
    (line,) = prompt_bound_lines(rows)
    assert (line["way"], line["prompt_n"], line["read_per_touched"]) == ("slots", 100, 0.8)
    assert line["over_bound"] == pytest.approx(2.0)  # 10 s; 4 s to compute and 5 s to read
    rows = [prompt("slots", 10, 1e9, 0.8), prompt("compute", 20)]
    assert prompt_bound_lines(rows)[0]["over_bound"] == pytest.approx(2.0)


def test_slices_are_those_the_store_reads() -> None:
    model = build_model_map(read_gguf(demo_model()))
    slices = random_slices(model, 64, 3)
    assert len({one.offset for one in slices}) > 16
    for one in slices:
        assert one.offset % 4096 == 0 and one.nbytes % 4096 == 0
        parts = [part for group in model.groups for part in group.parts]
        assert any(
            part.offset - 4096 < one.offset and one.nbytes <= part.slice_bytes + 2 * 4096 for part in parts
        )


def test_the_drive_is_read() -> None:
    model = build_model_map(read_gguf(demo_model()))
    assert drive_bandwidth(model, seconds_per_depth=0.02) > 1e6
