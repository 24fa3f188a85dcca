"""``guanaco simulate``: what each policy would have had in memory, on recorded or made-up routing.

Owns the flags. Leaves replaying to ``simulator.replay``, which runs the engine's own policies, and tables to
``simulator.report``. Needs no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import click
from click.core import ParameterSource

from guanaco.cache.registry import POLICIES
from guanaco.engine.native import library_path
from guanaco.errors import UsageError
from guanaco.files import replacing
from guanaco.simulator.generate import PRESETS, generate
from guanaco.simulator.replay import BELADY, Counts, replay, replay_recorded, shape_for
from guanaco.simulator.report import Row, make_row, render, rows_csv, rows_json
from guanaco.simulator.trace import Trace, read_trace

_ENGINE = "engine"  # as counted while the trace was recorded
_BUDGETS = "3%,6.25%,12.5%,25%,50%"


@click.command("simulate", short_help="Replay routing traces through the cache policies.")
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path))
@click.option("--budgets", default=_BUDGETS, show_default=True, help="Shares of the experts in memory.")
@click.option(
    "--policies", default="all", show_default=True, help=f"Of {', '.join((*POLICIES, BELADY))}; or all."
)
@click.option(
    "--phase",
    default="decode",
    show_default=True,
    type=click.Choice(("decode", "all")),
    help="all: prompt tokens too, one by one.",
)
@click.option(
    "--as-recorded", is_flag=True, help="The slots and selections that guanaco trace recorded; no --budgets."
)
@click.option("--by-bytes", is_flag=True, help="A pool of slots for each size of expert, as in the engine.")
@click.option("--generated", multiple=True, metavar="PRESET", help=f"Also make one up: {', '.join(PRESETS)}.")
@click.option(
    "--tokens", "n_tokens", default=1500, show_default=True, type=click.IntRange(1, 100_000),
    help="Tokens to make up.",
)  # fmt: skip
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of what is made up.")
@click.option(
    "--csv", "csv_path", default=None, type=click.Path(path_type=Path), help="Also write rows here."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def simulate_command(
    traces: tuple[Path, ...],
    budgets: str,
    policies: str,
    phase: str,
    as_recorded: bool,
    by_bytes: bool,
    generated: tuple[str, ...],
    n_tokens: int,
    seed: int,
    csv_path: Path | None,
    as_json: bool,
) -> None:
    """Hit rates of the policies, and of the best that is possible, for each trace and budget."""
    shares = parse_shares(budgets)
    are_usual = click.get_current_context().get_parameter_source("budgets") is ParameterSource.DEFAULT
    names = parse_policies(policies)
    unknown = [preset for preset in generated if preset not in PRESETS]
    if unknown:
        raise UsageError(f"--generated: {unknown[0]!r} is not a preset; one of {', '.join(PRESETS)}")
    if not traces and not generated:
        raise UsageError("no trace: name a trace file, or a preset with --generated")
    library = library_path()
    if as_recorded:
        if generated:
            raise UsageError("--as-recorded: what --generated makes up was not recorded; drop one of the two")
        results = [_as_recorded(library, path, names) for path in traces]
    else:
        cases = [(str(path), _tokens_of(path, phase)) for path in traces]
        made = [generate(preset, n_tokens, seed) for preset in generated]
        cases += [(trace.name, trace) for trace in made]
        if are_usual:
            shares = _those_that_fit(shares, [trace for _, trace in cases], by_bytes=by_bytes)
        results = _on_ladder(library, cases, shares, names, by_bytes)
    rows = [row for _, _, of_trace in results for row in of_trace]
    if csv_path is not None:
        _write(csv_path, rows_csv(rows))
    tables = [render(*result) for result in results]
    click.echo(json.dumps(rows_json(rows)) if as_json else "\n\n".join(tables))


_Result = tuple[str, Trace, list[Row]]


def _those_that_fit(shares: Sequence[Fraction], traces: Sequence[Trace], *, by_bytes: bool) -> list[Fraction]:
    """Of the shares nobody asked for, those that hold one layer of a token in every trace."""
    fitting: list[Fraction] = []
    problems: list[UsageError] = []
    for share in shares:
        try:
            for trace in traces:
                shape_for(trace, share, by_bytes=by_bytes)
            fitting.append(share)
        except UsageError as problem:
            problems.append(problem)
    if not fitting:
        raise problems[-1]
    for unfit in problems:
        click.echo(f"guanaco: left out: {unfit}", err=True)
    return fitting


def _on_ladder(
    library: Path,
    cases: Sequence[tuple[str, Trace]],
    shares: Sequence[Fraction],
    names: Sequence[str],
    by_bytes: bool,
) -> list[_Result]:
    # Every budget is checked against every trace before the first is replayed.
    shapes = [[shape_for(trace, share, by_bytes=by_bytes) for share in shares] for _, trace in cases]
    results = []
    for (label, trace), ladder in zip(cases, shapes, strict=True):
        of_trace = [
            make_row(
                label,
                trace,
                float(100 * share),
                sum(shape.n_slots),
                name,
                replay(library, name, trace, shape),
            )
            for share, shape in zip(shares, ladder, strict=True)
            for name in names
        ]
        results.append((label, trace, of_trace))
    return results


def _as_recorded(library: Path, path: Path, names: Sequence[str]) -> _Result:
    """What the engine counted, and what each policy would have."""
    trace = read_trace(path)
    recorded = trace.recorded
    if recorded is None:
        raise UsageError(f"{path} does not say what the cache was asked: record it with guanaco trace")
    if not recorded.selections:
        raise UsageError(f"{path} holds tokens but no experts: nothing to replay")
    slots = sum(recorded.shape.n_slots)
    budget = round(100 * slots / sum(recorded.shape.n_expert), 2)
    counts = {name: replay_recorded(library, name, recorded, trace.name) for name in names}
    found = {_ENGINE: Counts(**recorded.counters), **counts}
    return str(path), trace, [make_row(str(path), trace, budget, slots, *item) for item in found.items()]


def parse_shares(text: str) -> list[Fraction]:
    """Shares of one, exactly as written: 12.5% is 1/8."""
    shares = []
    for word in text.split(","):
        number = word.strip().removesuffix("%").rstrip()
        share = Fraction(number) / 100 if re.fullmatch(r"\d{1,3}(\.\d{1,9})?", number) else Fraction(0)
        if not 0 < share <= 1:
            raise UsageError(f"--budgets: {word.strip()!r} is not a share like 12.5%; give {_BUDGETS}")
        if share not in shares:
            shares.append(share)
    return shares


def parse_policies(text: str) -> list[str]:
    """Names from the list, in the order given; ``all`` is every one."""
    known = (*POLICIES, BELADY)
    names: list[str] = []
    for word in known if text.strip() == "all" else text.split(","):
        name = word.strip()
        if name not in known:
            raise UsageError(f"--policies: {name!r} is not a policy; all, or of {', '.join(known)}")
        if name not in names:
            names.append(name)
    return names


def _tokens_of(path: Path, phase: str) -> Trace:
    trace = read_trace(path)
    used = trace if phase == "all" else trace.decoded()
    if not used.steps:
        raise UsageError(f"{path} has no decode tokens; add --phase all")
    if not any(ids for step in used.steps for ids in step):
        raise UsageError(f"{path} holds tokens but no experts: nothing to replay")
    return used


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text)
