"""``guanaco plan``: what a load would hold and where, on this machine or a described one. Loads nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from guanaco.cli import log
from guanaco.cli.loading import prepare, read_model
from guanaco.cli.options import setting_options
from guanaco.cli.session import resolve_flags
from guanaco.cli.settings import load_config, model_path
from guanaco.errors import UsageError
from guanaco.hardware.detect import detect
from guanaco.hardware.facts import CardFacts, Hardware
from guanaco.planner.plan import Plan
from guanaco.planner.render import plan_json
from guanaco.planner.split import plan_with_cards
from guanaco.units import format_bytes, parse_size

_GROUPS = ("model", "load")


@click.command("plan")
@click.argument("model", required=False)
@setting_options(*_GROUPS)
@click.option("--ram", metavar="SIZE", help="Plan for a machine with this much free RAM instead of this one.")
@click.option(
    "--card", metavar="SIZE,...", help="Plan for graphics cards with this much free memory, one size each."
)
@click.option(
    "-ncmoe",
    "--n-cpu-moe",
    "n_cpu_moe",
    metavar="N",
    type=click.IntRange(-1),
    help="With --card: keep the experts of the first N layers off the card. Default: as few as it takes.",
)
@click.option(
    "--beside",
    metavar="MODEL",
    multiple=True,
    help="With --card: another model of the same folder, to keep room for the smallest of them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan_command(
    model: str | None,
    ram: str | None,
    card: str | None,
    n_cpu_moe: int | None,
    beside: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Show where the weights, the experts and the memory of MODEL would go, and why."""
    log.setup(verbose=False)
    if card is None and (n_cpu_moe is not None or beside):
        raise UsageError("--n-cpu-moe and --beside are about a card; describe one with --card 8GiB")
    resolved = resolve_flags(_GROUPS, given)
    path = model_path(model, given, resolved)
    hardware = detect(path)
    if ram is not None:
        hardware = described(hardware, _size("--ram", ram))
    config = load_config(path, resolved)
    if card is None:
        plan = prepare(config, hardware=hardware).plan
    else:
        config = replace(config, cpu_moe_layers=-1 if n_cpu_moe is None else n_cpu_moe)
        cards = tuple(CardFacts(_size("--card", word)) for word in card.split(","))
        if not all(beside):
            raise UsageError("--beside names no file; give the path of a .gguf file")
        others = [read_model(Path(other)) for other in beside]
        plan = plan_with_cards(read_model(path), replace(hardware, cards=cards), config, others)
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
    for part in plan.card.devices if plan.card else ():
        of_card = f"{part.n_layers} layers: {format_bytes(part.weights_bytes)} of weights"
        of_card += (
            f", {format_bytes(part.kv_bytes)} of conversations, {format_bytes(part.margin_bytes)} kept free"
        )
        rows.append((part.name, f"{of_card}, of {format_bytes(part.free_bytes)}"))
    if plan.slots:
        rows.append(("slots", f"{plan.slots} experts in RAM"))
        rows.append(("on the drive", format_bytes(plan.drive_bytes)))
    rows += [
        ("context", f"{context_tokens(plan)} tokens, {plan.n_parallel} at once"),
        ("batch", f"{plan.n_batch}, ubatch {plan.n_ubatch}, {plan.n_threads} threads"),
        ("reason", plan.reason),
        *(("limited by", text) for text in [plan.limited_by] if text),
        *(("warning", text) for text in plan.warnings),
    ]
    return "\n".join(f"{label:<16}{text}" for label, text in rows)


def context_tokens(plan: Plan) -> int:
    return plan.card.talk.first_tokens if plan.card else plan.n_ctx


def _size(flag: str, word: str) -> int:
    try:
        return parse_size(word)
    except ValueError as problem:
        raise UsageError(f"{flag}: {problem}") from None
