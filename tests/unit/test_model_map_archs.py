"""The map of every tiny architecture, against the shapes the ``gguf`` package reads from the same file."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest

from guanaco.gguf.reader import read_gguf
from guanaco.model.map import build_model_map
from tests.support.tiny_models import ARCHS, TinySpec, build


@pytest.mark.parametrize("spec", ARCHS, ids=[spec.name for spec in ARCHS])
def test_every_stacked_expert_tensor_is_a_slice(tmp_path: Path, spec: TinySpec) -> None:
    model = build_model_map(read_gguf(build(spec, tmp_path, shards=2, mixed_quants=True)))
    assert len(model.files) == 2
    expected: dict[str, tuple[int, int, int]] = {}
    total_bytes = 0
    for file in model.files:
        for item in gguf.GGUFReader(file.path).tensors:
            total_bytes += int(item.n_bytes)
            if re.fullmatch(r"blk\.\d+\.\w+exps\.weight", item.name) and len(item.shape) == 3:
                n_expert = int(item.shape[2])
                expected[item.name] = (int(item.data_offset), int(item.n_bytes) // n_expert, n_expert)
    found = {
        part.tensor_name: (part.offset, part.slice_bytes, group.n_expert)
        for group in model.groups
        for part in group.parts
    }
    assert found == expected and expected
    assert {group.layer for group in model.groups} >= set(spec.moe_layers)
    assert model.dense_bytes + model.expert_bytes == total_bytes
    assert all(1 <= group.top_k <= group.n_expert for group in model.groups)
    assert not [note for note in model.notes if "not streamed" in note or "treated as dense" in note]
