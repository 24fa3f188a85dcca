"""``guanaco bench --workload``: the same clients before each way of running a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from guanaco.bench import workload
from guanaco.bench.compare import budgets_for_shares, compare, run_once
from guanaco.bench.load import LoadSpec
from guanaco.bench.one import RunSpec
from guanaco.bench.ways import Way
from guanaco.errors import UsageError
from guanaco.model.map import ModelMap
from guanaco.units import format_bytes

FIELDS = (
    "budget", "way", "memory_limit_bytes", "run", "workload", "clients", "requests", "wall_s",
    "requests_per_s", "prompt_tps", "decode_tps", "first_token_p50_s", "first_token_p95_s",
    "longest_prompt_n", "longest_prompt_s", "longest_read_per_touched", "decode_hit_rates", "side_requests",
    "side_p50_s", "side_most_s", "side_most_batches", "hit_rate", "counted_bytes", "cgroup_peak_bytes",
    "planned_bytes", "load_s", "n_ubatch", "slots", "io", "unmanaged", "read_ahead_kib",
    "drive_limit_bytes_per_s",
)  # fmt: skip
FIGURES = ("requests_per_s", "decode_tps", "prompt_tps")
_SPARE_TOKENS = 64  # of each conversation's context
_MODULE = "guanaco.cli.under_load"


def spec_of(
    base: RunSpec, name: str, n_clients: int | None, n_requests: int | None, n_long: int | None
) -> LoadSpec:
    """``base`` with the workload and the context that its conversations need."""
    load = workload.make(name, n_clients, n_requests, n_long)
    n_parallel = len(load.clients) + (load.side is not None)
    fields = {**asdict(base), "n_parallel": n_parallel, "n_ctx": n_parallel * (load.n_ctx + _SPARE_TOKENS)}
    return LoadSpec(**fields, workload=name, n_clients=n_clients, n_requests=n_requests, n_long=n_long)


def run_workload(
    spec: LoadSpec,
    ways: Sequence[Way],
    model: ModelMap,
    shares: Sequence[float],
    *,
    runs: int,
    on_row: Callable[[dict[str, Any]], None],
) -> None:
    """``runs`` interleaved rounds of every way and budget; each row is given to ``on_row``."""
    for way in ways:
        if way.all_in_slots or not (way.is_streaming or way.read_ahead_kib is not None):
            raise UsageError(f"--workload: {way.name} has no budget; choose ways such as slots,mmap")
    files = [file.path for file in model.files]
    n_clients = len(workload.make(spec.workload, spec.n_clients, spec.n_requests, spec.n_long).clients)

    def keep(row: dict[str, Any]) -> None:
        on_row({"workload": spec.workload, "clients": n_clients, **row})

    for budget in budgets_for_shares(model, spec, shares):
        compare(spec, ways, budget, files, runs=runs, on_row=keep, run_one=partial(run_once, module=_MODULE))


def tell(row: dict[str, Any]) -> None:
    parts = [
        f"{row['budget']:>7}  run {row['run']}  {row['way']:<11} "
        f"{row['requests']} requests in {row['wall_s']:.1f} s",
        f"decode {row['decode_tps']:.2f} tok/s",
        f"prompts {row['prompt_tps']:.2f} tok/s",
        f"first token {row['first_token_p50_s']:.1f} s (95 %: {row['first_token_p95_s']:.1f} s)",
    ]
    if row["hit_rate"] is not None:
        parts.append(f"{row['hit_rate']:.1%} hits")
        parts.append(
            "answers " + ", ".join(f"{rate:.1%}" for rate in row["decode_hit_rates"] if rate is not None)
        )
    if row["longest_read_per_touched"] is not None:
        parts.append(f"longest prompt read {row['longest_read_per_touched']:.2f} of the experts it selected")
    if row["side_requests"]:
        waited = f"{row['side_requests']} one-token requests waited {row['side_most_s']:.1f} s at most"
        batches = row["side_most_batches"]
        parts.append(waited + (f", {batches} batches" if batches else ""))
    peak, limit = format_bytes(row["cgroup_peak_bytes"]), format_bytes(row["memory_limit_bytes"])
    parts.append(f"peak {peak} of {limit}")
    click.echo(", ".join(parts), err=True)
