"""What a simulation found, as a table for people and as rows for programs. Pure; writes no files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from guanaco.simulator.replay import Counts
from guanaco.simulator.trace import Trace


@dataclass(frozen=True)
class Row:
    """One policy over one trace at one budget."""

    trace: str
    budget: float  # percent of the experts resident
    slots: int
    policy: str
    hit_rate: float  # 0 to 1, compulsory misses included
    hits: int
    misses: int
    evictions: int
    evict_hot: int | None
    evict_reread: int | None
    us_per_layer: float | None  # in the cache and its policy; None for the optimum, which is neither


def make_row(label: str, trace: Trace, budget: float, slots: int, policy: str, counts: Counts) -> Row:
    accesses = counts.hits + counts.misses
    calls = sum(bool(ids) for step in trace.steps for ids in step)
    return Row(
        trace=label,
        budget=budget,
        slots=slots,
        policy=policy,
        hit_rate=counts.hits / accesses,
        hits=counts.hits,
        misses=counts.misses,
        evictions=counts.evictions,
        evict_hot=counts.evict_hot,
        evict_reread=counts.evict_reread,
        us_per_layer=None if counts.serve_ns is None else counts.serve_ns / calls / 1000,
    )


def rows_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The stable shape: ``{"rows": [...]}``."""
    return {"rows": [asdict(row) for row in rows]}


def rows_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue()


def render(label: str, trace: Trace, rows: Sequence[Row]) -> str:
    """Hit rates in percent: a line a budget, a column a policy, and what each policy costs below."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    widths = [max(7, len(policy) + 2) for policy in policies]
    lines = [
        f"{_printable(label)}: {trace.n_tokens} tokens, {trace.n_layer} layers x {trace.n_expert} experts, "
        f"top-{trace.top_k}",
        _line("resident", "slots", policies, widths),
    ]
    for budget in dict.fromkeys(row.budget for row in rows):
        found = {row.policy: row for row in rows if row.budget == budget}
        cells = [f"{100 * found[policy].hit_rate:.1f}" for policy in policies]
        lines.append(_line(f"{budget:g} %", str(next(iter(found.values())).slots), cells, widths))
    times = [
        [row.us_per_layer for row in rows if row.policy == policy and row.us_per_layer is not None]
        for policy in policies
    ]
    cells = [f"{max(values):.1f}" if values else "-" for values in times]
    lines.append(_line("us a layer", "", cells, widths))
    return "\n".join(lines)


def _line(first: str, second: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"{first:>11}{second:>8}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
    )


def _printable(text: str) -> str:
    """A trace's own words must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
