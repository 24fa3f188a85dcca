"""Hit rates on the two real traces: the published table, and what the default must add to it."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from guanaco.engine.native import library_path
from guanaco.simulator.replay import replay, shape_for
from guanaco.simulator.trace import Trace, read_trace
from tests.support import markdown

TRACES = Path(__file__).parents[1] / "data" / "traces"
DOCS = Path(__file__).parents[2] / "docs"
QWEN, KIMI = TRACES / "qwen3-30b-a3b.route.csv", TRACES / "kimi-linear-48b.jsonl"

# Percent resident -> hit rate in percent of lru, lfu, cycle, belady.
COLUMNS = ("lru", "lfu", "cycle", "belady")
TABLE = {
    (QWEN, "3"): (0.0, 26.6, 29.8, 44.9),
    (QWEN, "6.25"): (37.7, 41.0, 45.8, 62.9),
    (QWEN, "12.5"): (57.9, 59.9, 65.2, 78.5),
    (QWEN, "25"): (81.6, 81.2, 83.5, 89.5),
    (KIMI, "3"): (0.0, 29.6, 35.3, 50.8),
    (KIMI, "6.25"): (41.8, 41.2, 48.5, 64.2),
    (KIMI, "12.5"): (57.6, 55.2, 61.2, 75.3),
    (KIMI, "25"): (73.0, 71.7, 74.5, 84.9),
}


@cache
def decoded(path: Path) -> Trace:
    return read_trace(path).decoded()


@cache
def hit_percent(path: Path, percent: str, policy: str) -> float:
    trace = decoded(path)
    counts = replay(library_path(), policy, trace, shape_for(trace, Fraction(percent) / 100))
    return 100 * counts.hits / (counts.hits + counts.misses)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: f"{cell[0].name[:5]}-{cell[1]}")
def test_the_published_table_is_reproduced(cell: tuple[Path, str], column: str) -> None:
    assert hit_percent(*cell, column) == pytest.approx(TABLE[cell][COLUMNS.index(column)], abs=1.0)


@pytest.mark.parametrize("cell", TABLE, ids=lambda cell: f"{cell[0].name[:5]}-{cell[1]}")
def test_the_default_is_at_least_the_cycle_column_and_never_far_below_lru(cell: tuple[Path, str]) -> None:
    found = hit_percent(*cell, "recall")
    assert found >= TABLE[cell][COLUMNS.index("cycle")]
    assert found >= hit_percent(*cell, "lru") - 0.5


def test_the_default_gains_over_the_cycle_column_on_average() -> None:
    gains = [hit_percent(*cell, "recall") - row[COLUMNS.index("cycle")] for cell, row in TABLE.items()]
    assert sum(gains) / len(gains) >= 1.2


@pytest.mark.parametrize("policy", ["lru", "lfu", "cycle", "recall", "herd"])
@pytest.mark.parametrize("path", [QWEN, KIMI], ids=["qwen3", "kimi"])
def test_no_policy_beats_belady_and_all_of_the_experts_miss_once(path: Path, policy: str) -> None:
    trace = decoded(path)
    for percent in ("3", "6.25", "12.5", "25", "50"):
        assert hit_percent(path, percent, policy) <= hit_percent(path, percent, "belady")
    distinct = {(layer, e) for step in trace.steps for layer, ids in enumerate(step) for e in ids}
    whole = replay(library_path(), policy, trace, shape_for(trace, Fraction(1)))
    assert (whole.misses, whole.evictions) == (len(distinct), 0)


def test_below_one_token_cycle_lru_never_hits() -> None:
    """What a layer used for the token before leaves just before it is asked for."""
    trace = decoded(KIMI)
    one_layer_less = (trace.n_layer - 1) * trace.top_k
    shape = shape_for(trace, Fraction(one_layer_less, trace.n_layer * trace.n_expert))
    assert replay(library_path(), "lru", trace, shape).hits == 0


def test_the_page_shows_what_is_measured() -> None:
    rows = markdown.rows(markdown.section((DOCS / "cache.md").read_text(), "What they reach"))
    named = {"Qwen3-30B-A3B": QWEN, "Kimi-Linear-48B": KIMI}
    shown = [row for row in rows if row[0] in named]
    assert len(shown) == 2 * 5
    for name, percent, *cells in shown:
        for policy, cell in zip(("lru", "lfu", "herd", "cycle", "recall", "belady"), cells, strict=True):
            found = hit_percent(named[name], percent.removesuffix(" %"), policy)
            assert found == pytest.approx(float(cell.strip("*")), abs=0.051), (name, percent, policy)
