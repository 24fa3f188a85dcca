"""The model map against the specs of the tiny architectures, which it knows nothing of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from guanaco.gguf.reader import read_gguf
from guanaco.model.map import build_model_map
from tests.support.tiny_models import ARCHS, TinySpec, build

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"shards": 2}, {"mixed_quants": True})


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "two shards", "two quantisations"])
@pytest.mark.parametrize("spec", ARCHS, ids=lambda spec: spec.name)
def test_experts_are_found_where_the_spec_puts_them(
    spec: TinySpec, options: dict[str, Any], tmp_path: Path
) -> None:
    found = build_model_map(read_gguf(build(spec, tmp_path, **options)))
    main = [group for group in found.groups if group.family == "exps"]
    assert tuple(group.layer for group in main if not group.is_mtp) == spec.moe_layers
    assert any(group.is_mtp for group in main) == ("mtp" in spec.covers)
    assert {(group.n_expert, group.top_k) for group in main} == {(spec.n_expert, spec.top_k)}
    roles = {tuple(sorted(part.role for part in group.parts)) for group in main}
    layout = next(iter(spec.covers & {"split", "fused", "ungated"}))
    expected = {"split": ("down", "gate", "up"), "fused": ("down", "gate_up"), "ungated": ("down", "up")}
    assert roles == {expected[layout]}
    assert {group.family for group in found.groups} == (
        {"exps", "chexps"} if "second_family" in spec.covers else {"exps"}
    )
    assert len({group.slice_key for group in main}) == (2 if options.get("mixed_quants") else 1)
    assert found.dense_bytes + found.expert_bytes == sum(item.nbytes for item in found.gguf.tensors)
