"""``guanaco plan``: what a load would hold and where, on this machine or a described one. Loads nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from guanaco.cli import log
from guanaco.cli.loading import prepare
from guanaco.cli.options import setting_options
from guanaco.cli.session import resolve_flags
from guanaco.cli.settings import load_config, model_path
from guanaco.errors import UsageError
from guanaco.hardware.detect import detect
from guanaco.hardware.facts import Hardware
from guanaco.planner.plan import Plan
from guanaco.planner.render import plan_json
from guanaco.units import format_bytes, parse_size

_GROUPS = ("model", "load")


@click.command("plan")
@click.argument("model", required=False)
@setting_options(*_GROUPS)
@click.option("--ram", metavar="SIZE", help="Plan for a machine with this much free RAM instead of this one.")
@click.option("--card", metavar="SIZE", help="Free memory of a graphics card; not in this version.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan_command(model: str | None, ram: str | None, card: str | None, as_json: bool, **given: Any) -> None:
    """Show where the weights, the experts and the memory of MODEL would go, and why."""
    log.setup(verbose=False)
    if card is not None:
        raise UsageError("--card is not in this version: models run on the processor; leave it out")
    resolved = resolve_flags(_GROUPS, given)
    path = model_path(model, given, resolved)
    hardware = detect(path)
    if ram is not None:
        hardware = described(hardware, _size("--ram", ram))
    plan = prepare(load_config(path, resolved), hardware=hardware).plan
    click.echo(json.dumps(plan_json(plan)) if as_json else render(plan))


def described(hardware: Hardware, ram_bytes: int) -> Hardware:
    """This machine's processors with another machine's memory."""
    return replace(
        hardware,
        ram_total_bytes=ram_bytes,
        ram_available_bytes=ram_bytes,
        cgroup_limit_bytes=None,
        cgroup_used_bytes=None,
    )


def render(plan: Plan) -> str:
    """The plan for people; the parts add up to the planned total."""
    rows = [
        ("mode", plan.mode),
        ("placement", plan.placement),
        ("budget", format_bytes(plan.budget_bytes)),
        ("planned", format_bytes(plan.parts.total_bytes)),
        *(
            (f"  {name.removesuffix('_bytes').replace('_', ' ')}", format_bytes(size))
            for name, size in vars(plan.parts).items()
            if size
        ),
    ]
    if plan.slots:
        rows.append(("slots", f"{plan.slots} experts in RAM"))
        rows.append(("on the drive", format_bytes(plan.drive_bytes)))
    rows += [
        ("context", f"{plan.n_ctx} tokens, {plan.n_parallel} at once"),
        ("batch", f"{plan.n_batch}, ubatch {plan.n_ubatch}, {plan.n_threads} threads"),
        ("reason", plan.reason),
        *(("limited by", text) for text in [plan.limited_by] if text),
        *(("warning", text) for text in plan.warnings),
    ]
    return "\n".join(f"{label:<16}{text}" for label, text in rows)


def _size(flag: str, word: str) -> int:
    try:
        return parse_size(word)
    except ValueError as problem:
        raise UsageError(f"{flag}: {problem}") from None
