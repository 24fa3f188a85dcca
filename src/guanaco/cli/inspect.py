"""``guanaco inspect``: what a model file holds, from its header alone. Loads nothing, needs no engine.

Leaves errors to ``cli.main``: a ModelError is raised, not printed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from guanaco.gguf.reader import read_gguf
from guanaco.gguf.types import TensorInfo
from guanaco.model.map import ModelMap, build_model_map
from guanaco.units import format_bytes


@click.command("inspect")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect_command(model: Path, as_json: bool) -> None:
    """Show what MODEL, a GGUF file or any shard of one, holds."""
    facts = describe(build_model_map(read_gguf(model)))
    click.echo(json.dumps(facts, indent=2) if as_json else render(facts))


def describe(model: ModelMap) -> dict[str, Any]:
    """The facts as JSON values; the shape is stable, more fields may come."""
    routed = [group for group in model.groups if not group.is_mtp]
    return {
        "name": model.name,
        "arch": model.arch,
        "gguf_version": model.gguf.version,
        "layers": model.n_layer,
        "moe_layers": sorted({group.layer for group in model.groups}),
        "mtp_layers": sorted({group.layer for group in model.groups if group.is_mtp}),
        "experts": model.n_expert,
        "top_k": sorted({group.top_k for group in routed if group.family == "exps"}) or [model.n_expert_used],
        "embedding_length": model.n_embd,
        "vocab_size": model.n_vocab,
        "context_length": model.n_ctx_train,
        "tied_output": not model.has_own_output,
        "tensors": len(model.gguf.tensors),
        "tensor_bytes": model.dense_bytes + model.expert_bytes,
        "dense_bytes": model.dense_bytes,
        "expert_bytes": model.expert_bytes,
        "size_classes": _size_classes(model),
        "types": _types(model.gguf.tensors),
        "shards": [
            {
                "path": str(file.path),
                "size_bytes": file.size_bytes,
                "header_bytes": file.header_bytes,
                "tensors": sum(tensor.file_index == index for tensor in model.gguf.tensors),
            }
            for index, file in enumerate(model.files)
        ],
        "notes": list(model.notes),
    }


def render(facts: dict[str, Any]) -> str:
    """The same facts for people."""
    rows = [
        ("model", f"{facts['name']} ({facts['arch']}, GGUF v{facts['gguf_version']})"),
        ("layers", f"{facts['layers']}, with experts: {_ranges(facts['moe_layers'])}"),
        ("size", f"{format_bytes(facts['tensor_bytes'])} in {facts['tensors']} tensors"),
        ("dense", format_bytes(facts["dense_bytes"])),
    ]
    if facts["moe_layers"]:
        used = " or ".join(map(str, facts["top_k"]))
        rows.append(("experts", f"{facts['experts']} a layer, {used} used by a token"))
        rows.append(("", f"{format_bytes(facts['expert_bytes'])} in all"))
        for item in facts["size_classes"]:
            parts = ", ".join(f"{role} {format_bytes(size)}" for role, size in item["slice_bytes"].items())
            where = f"layers {_ranges(item['layers'])}"
            rows.append(("", f"{item['experts']} x {format_bytes(item['expert_bytes'])} ({parts}; {where})"))
    rows += [
        ("context", f"{facts['context_length']} tokens"),
        ("vocabulary", f"{facts['vocab_size']} tokens, {'tied' if facts['tied_output'] else 'own'} output"),
        ("types", ", ".join(f"{item['type']} {format_bytes(item['bytes'])}" for item in facts["types"])),
    ]
    shards = [f"{item['path']} ({format_bytes(item['size_bytes'])})" for item in facts["shards"]]
    rows += [("file" if not index else "", text) for index, text in enumerate(shards)]
    rows += [("note", text) for text in facts["notes"]]
    return "\n".join(f"{label:<12}{_printable(text)}" for label, text in rows)


def _size_classes(model: ModelMap) -> list[dict[str, Any]]:
    """Experts whose slices have the same sizes share slots; largest total first."""
    classes = defaultdict(list)
    for group in model.groups:
        classes[group.slice_key].append(group)
    rows: list[dict[str, Any]] = [
        {
            "slice_bytes": dict(key),
            "expert_bytes": groups[0].expert_bytes,
            "experts": sum(group.n_expert for group in groups),
            "layers": sorted({group.layer for group in groups}),
        }
        for key, groups in classes.items()
    ]
    return sorted(rows, key=lambda row: -row["experts"] * row["expert_bytes"])


def _types(tensors: Iterable[TensorInfo]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        row = rows.setdefault(tensor.type_name, {"type": tensor.type_name, "tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += tensor.nbytes
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _ranges(numbers: list[int]) -> str:
    """``0-3, 7`` for [0, 1, 2, 3, 7]; ``none`` for []."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans) or "none"


def _printable(text: str) -> str:
    """A model's own words must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
