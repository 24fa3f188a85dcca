"""``guanaco bench``: this machine's own comparison of guanaco with plain llama.cpp on one model."""

from __future__ import annotations

import csv
import json
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from guanaco import __version__
from guanaco.bench import workload
from guanaco.bench.bandwidth import bound_lines, drive_bandwidth, prompt_bound_lines
from guanaco.bench.compare import Budget, budgets_for_shares, compare, ratios
from guanaco.bench.one import PILOT_FIGURES, RunSpec
from guanaco.bench.replay import replay_file
from guanaco.bench.together import take_turns
from guanaco.bench.ways import WAYS, find_ways
from guanaco.cli import workload as of_clients
from guanaco.engine.llama import ENGINE_LABEL
from guanaco.errors import UsageError
from guanaco.files import has_place, replacing
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.model.map import build_model_map
from guanaco.planner.budget import ceiling_of
from guanaco.simulator.generate import PRESETS
from guanaco.units import GIB, KIB, MIB, format_bytes, parse_size

_FIELDS = (
    "budget", "way", "memory_limit_bytes", "run", "prompt_tps", "decode_tps", "hit_rate", "bytes_per_token",
    "cgroup_peak_bytes", "planned_bytes", "load_s", "load_read_bytes", "prompt_n", "prompt_bytes",
    "prompt_read_per_touched", "decode_n", "n_ubatch",
    "slots", "io", "unmanaged", "counted_bytes", "io_bytes", "wait_s", "read_ahead_kib",
    "cached_expert_bytes", "drive_bytes_per_s", "drive_limit_bytes_per_s",
    *(f"pilot_{name}" for name in PILOT_FIGURES),
)  # fmt: skip

_CSV_BYTES = 64 * KIB  # more than a table of all ways takes


def _shares(text: str) -> list[float]:
    shares = []
    for word in text.split(","):
        try:
            share = float(word.strip().removesuffix("%")) / 100
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise UsageError(f"--experts: {word.strip()!r} is not a share like 12.5%; give 25%,12.5%,6.25%")
        shares.append(share)
    return shares


def _bytes_per_s(text: str) -> int:
    try:
        bytes_per_s = parse_size(text.removesuffix("/s"))
    except ValueError as problem:
        raise UsageError(f"--drive-limit: {problem}") from None
    if bytes_per_s < MIB:
        raise UsageError(f"--drive-limit: {text} is less than 1 MiB a second; give a size as 150MB")
    return bytes_per_s


@click.command("bench", short_help="Compare guanaco with plain llama.cpp on this machine.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--experts", default="25%,12.5%,6.25%", help="Shares of the experts that fit, one budget each.")
@click.option("--resident", is_flag=True, help="No limit: the whole model in memory (ways auto and plain).")
@click.option(
    "--together", is_flag=True, help="With --resident: load all ways at once and let them take turns."
)
@click.option("--ways", default=None, help=f"Ways to compare: {', '.join(WAYS)}.")
@click.option(
    "--bound",
    is_flag=True,
    help="Also measure the drive and the compute alone, and set token time against the greater.",
)
@click.option("--runs", default=3, type=click.IntRange(1), help="Interleaved rounds.")
@click.option(
    "--workload",
    "load_name",
    default=None,
    metavar="NAME",
    help=f"Several clients before a server, not one prompt and one decode: {', '.join(workload.NAMES)}.",
)
@click.option("--clients", "n_clients", default=None, type=click.IntRange(1, 64), help="With --workload.")
@click.option(
    "--requests", "n_requests", default=None, type=click.IntRange(1), help="Of each client, with --workload."
)
@click.option(
    "--prompt",
    "n_prompt",
    default=None,
    type=click.IntRange(1),
    help="Prompt tokens: 256, or as the workload has them.",
)
@click.option("--decode", "n_decode", default=None, type=click.IntRange(2), help="Tokens to decode: 96.")
@click.option("-t", "--threads", "n_threads", default=None, type=click.IntRange(1))
@click.option("-ub", "--ubatch-size", "n_ubatch", default=512, type=click.IntRange(1))
@click.option(
    "--replay",
    default=None,
    metavar="TRACE",
    help=f"Routing for a synthetic model: a trace file, or PRESET[:TOKENS[:SEED]] of {', '.join(PRESETS)}.",
)
@click.option(
    "--busy", default=0, type=click.IntRange(0), help="Busy processes beside every decode, as neighbours."
)
@click.option(
    "--drive-limit",
    default=None,
    metavar="SIZE",
    help="Read at most so much a second from the drive, as 150MB: a slower drive, for every way.",
)
@click.option(
    "--csv", "csv_path", default=None, type=click.Path(path_type=Path), help="Also write every row here."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def bench_command(
    model: Path,
    experts: str,
    resident: bool,
    together: bool,
    ways: str | None,
    bound: bool,
    runs: int,
    load_name: str | None,
    n_clients: int | None,
    n_requests: int | None,
    n_prompt: int | None,
    n_decode: int | None,
    n_threads: int | None,
    n_ubatch: int,
    replay: str | None,
    busy: int,
    drive_limit: str | None,
    csv_path: Path | None,
    as_json: bool,
) -> None:
    """Each run is a fresh process with a cold file cache, in a memory cgroup of the plan's total size."""
    if bound and drive_limit is not None:
        raise UsageError("--bound measures the drive as it is; leave out --drive-limit, or --bound")
    if together and (not resident or bound or busy or replay is not None or drive_limit is not None):
        raise UsageError("--together compares whole models, with --resident and the turns' own sizes only")
    if load_name is None and (n_clients or n_requests):
        raise UsageError("--clients and --requests are of a workload; name one with --workload")
    if load_name is not None and (resident or bound or busy or n_decode):
        raise UsageError(
            "--workload has its own answers and limits: without --resident, --bound, --busy, --decode"
        )
    n_prompt_given, n_prompt, n_decode = n_prompt, n_prompt or 256, n_decode or 96
    chosen = find_ways(ways or ("auto,plain" if resident else "slots,pagecache,mmap"))
    if bound:
        chosen = (*chosen, WAYS["compute"])
    model_map = build_model_map(read_gguf(model))
    if not model_map.is_moe and not resident:
        raise UsageError(f"{model} has no experts to stream; compare it with --resident")
    scratch = click.get_current_context().with_resource(tempfile.TemporaryDirectory(prefix="guanaco-bench-"))
    replay_path = None if replay is None else replay_file(replay, model_map, Path(scratch))
    if csv_path is not None:
        _check_writable(csv_path)
    machine = detect()
    ceiling = ceiling_of(machine)
    base = RunSpec(
        model=str(model),
        way=chosen[0].name,
        memory_bytes=64 * GIB if ceiling is None else ceiling.limit_bytes,
        max_experts=-1,
        n_prompt=n_prompt,
        n_decode=n_decode,
        n_ctx=n_prompt + n_decode + 64,
        n_threads=n_threads,
        n_ubatch=n_ubatch,
        replay=None if replay_path is None else str(replay_path),
        replay_start=0,
        seed=1,
        drive_limit_bytes_per_s=None if drive_limit is None else _bytes_per_s(drive_limit),
        busy=busy,
    )
    shares = _shares(experts)
    ladder = [Budget("whole", None, -1)] if resident else budgets_for_shares(model_map, base, shares)
    fields, tell = (_FIELDS, _tell) if load_name is None else (of_clients.FIELDS, of_clients.tell)
    files = [file.path for file in model_map.files]
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        tell(row)
        if csv_path is not None:
            _write_csv(csv_path, fields, rows)

    if load_name is not None:
        spec = of_clients.spec_of(base, load_name, n_clients, n_requests, n_prompt_given)
        of_clients.run_workload(spec, chosen, model_map, shares, runs=runs, on_row=keep)
    elif together:
        take_turns(base, chosen, model_map, runs=runs, on_row=keep)
    file_bytes = sum(path.stat().st_size for path in files)
    for budget in () if together or load_name is not None else ladder:
        if budget.memory_bytes is not None and budget.memory_bytes > file_bytes:
            click.echo(
                f"guanaco: {budget.label}: the limit of {format_bytes(budget.memory_bytes)} holds the whole "
                f"{format_bytes(file_bytes)} model: plain llama.cpp reads nothing twice; use --resident",
                err=True,
            )
        measure = (lambda: drive_bandwidth(model_map)) if bound else None
        compare(base, chosen, budget, files, runs=runs, on_row=keep, bandwidth=measure)
    about = {
        "system": platform.platform(),
        "cores": machine.n_physical_cores,
        "ram_bytes": machine.ram_total_bytes,
        "guanaco": __version__,
        "engine": ENGINE_LABEL,
    }
    names = [way.name for way in chosen if not way.all_in_slots]
    summary = _ratios(rows, names, ("decode_tps", "prompt_tps") if load_name is None else of_clients.FIGURES)
    bounds = bound_lines(rows) if bound else []
    prompt_bounds = prompt_bound_lines(rows) if bound else []
    if as_json:
        shown = [{key: row.get(key) for key in fields} for row in rows]
        click.echo(
            json.dumps(
                {
                    "machine": about,
                    "rows": shown,
                    "ratios": summary,
                    "bounds": bounds,
                    "prompt_bounds": prompt_bounds,
                }
            )
        )
        return
    width = max((len(line["figure"]) for line in summary), default=0)
    for line in summary:
        lowest = "" if line["lower_90"] is None else f", at least {line['lower_90']:.2f} (90 %)"
        click.echo(
            f"{line['budget']:>7}  {line['figure']:<{width}}  {line['way']} / {line['against']}: "
            f"{line['mean']:.2f} times{lowest}, {line['pairs']} pairs"
        )
    for line in bounds:
        click.echo(_bound_text(line))
    for line in prompt_bounds:
        click.echo(_prompt_bound_text(line))


def _bound_text(line: dict[str, Any]) -> str:
    read, speed = format_bytes(round(line["bytes_per_token"])), format_bytes(round(line["drive_bytes_per_s"]))
    return (
        f"{line['budget']:>7}  {line['way']}: a token takes {line['token_s'] * 1e3:.0f} ms, "
        f"{line['over_bound']:.2f} times the greater of {line['compute_s'] * 1e3:.0f} ms (compute alone) and "
        f"{line['drive_s'] * 1e3:.0f} ms ({read} at {speed}/s)"
    )


def _prompt_bound_text(line: dict[str, Any]) -> str:
    read, speed = format_bytes(round(line["prompt_bytes"])), format_bytes(round(line["drive_bytes_per_s"]))
    return (
        f"{line['budget']:>7}  {line['way']}: a prompt of {line['prompt_n']} tokens takes "
        f"{line['prompt_s']:.1f} s, {line['over_bound']:.2f} times the greater of {line['compute_s']:.1f} s "
        f"(compute alone) and {line['drive_s']:.1f} s ({read} at {speed}/s); it read "
        f"{line['read_per_touched']:.2f} of what it selected"
    )


def _tell(row: dict[str, Any]) -> None:
    hit = "" if row["hit_rate"] is None else f", {row['hit_rate']:.1%} hits"
    asked_kib, set_kib = WAYS[row["way"]].read_ahead_kib, row["read_ahead_kib"]
    if asked_kib not in (None, set_kib):
        hit += f", read-ahead {'unknown' if set_kib is None else f'{set_kib} KiB'} instead of {asked_kib} KiB"
    click.echo(
        f"{row['budget']:>7}  run {row['run']}  {row['way']:<11} prompt {row['prompt_tps']:7.2f} tok/s, "
        f"decode {row['decode_tps']:6.2f} tok/s{hit}, {format_bytes(int(row['bytes_per_token']))}/token, "
        f"peak {format_bytes(row['cgroup_peak_bytes'])} of {format_bytes(row['memory_limit_bytes'])}",
        err=True,
    )


def _check_writable(path: Path) -> None:
    """Hours of runs must not end in a file that cannot be written."""
    way_out = "name a file in a folder that exists and can be written to"
    try:
        if path.is_dir():
            raise UsageError(f"--csv: {path} is a folder; {way_out}")
        if has_place(path):
            with tempfile.TemporaryFile(dir=path.resolve().parent) as file:
                file.write(bytes(_CSV_BYTES))
    except OSError as problem:
        raise UsageError(f"--csv: {path} cannot be written: {problem.strerror}; {way_out}") from None


def _write_csv(path: Path, fields: Sequence[str], rows: list[dict[str, Any]]) -> None:
    with replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _ratios(rows: list[dict[str, Any]], ways: list[str], figures: Sequence[str]) -> list[dict[str, Any]]:
    """The first way over each other one, by budget and figure."""
    lines = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        of_budget = [row for row in rows if row["budget"] == budget]
        for other in ways[1:]:
            for figure in figures:
                ratio = ratios(of_budget, ways[0], other, figure)
                lines.append(
                    {"budget": budget, "figure": figure, "way": ways[0], "against": other, **asdict(ratio)}
                )
    return lines
