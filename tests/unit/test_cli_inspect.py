"""guanaco inspect: what it prints and what it raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import guanaco
from guanaco.cli.inspect import inspect_command
from guanaco.errors import ModelError
from tests.support.gguf_builder import Q8_0, STRING, GgufBuilder, add_experts, language_model

DEMO = Path(guanaco.__file__).parent / "data" / "guanaco-demo-q8_0.gguf"


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(inspect_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_text() -> None:
    lines = _run(str(DEMO)).splitlines()
    assert lines[0] == "model       guanaco-demo (qwen3moe, GGUF v3)"
    assert "experts     32 a layer, 4 used by a token" in lines
    assert any(
        "128 x 57.4 KiB (gate 19.1 KiB, up 19.1 KiB, down 19.1 KiB; layers 0-3)" in line for line in lines
    )
    assert "types       q8_0 7.2 MiB, f16 1.5 MiB, f32 103.8 KiB" in lines
    assert f"file        {DEMO} (8.8 MiB)" in lines


def test_json() -> None:
    facts = json.loads(_run(str(DEMO), "--json"))
    assert (facts["arch"], facts["layers"], facts["experts"], facts["top_k"]) == ("qwen3moe", 4, 32, [4])
    assert (facts["dense_bytes"], facts["expert_bytes"]) == (1679104, 7520256)
    assert facts["tensor_bytes"] == sum(item["bytes"] for item in facts["types"])
    assert facts["size_classes"] == [
        {
            "slice_bytes": {"gate": 19584, "up": 19584, "down": 19584},
            "expert_bytes": 58752,
            "experts": 128,
            "layers": [0, 1, 2, 3],
        }
    ]
    (shard,) = facts["shards"]
    assert (shard["path"], shard["tensors"], shard["size_bytes"]) == (str(DEMO), 51, DEMO.stat().st_size)
    assert (facts["context_length"], facts["vocab_size"], facts["notes"]) == (1024, 1024, [])


def test_sparse_layers_classes_and_notes(tmp_path: Path) -> None:
    made = language_model(n_layer=5, expert_count=2, expert_used_count=1, nextn_predict_layers=1)
    for layer in (0, 1, 3):
        add_experts(made, layer, 2)
    add_experts(made, 4, 2, type_id=Q8_0)
    text = _run(str(made.write(tmp_path / "m.gguf")))
    assert "layers      5, with experts: 0-1, 3-4" in text
    assert "layers 0-1, 3)" in text and "layers 4)" in text
    assert "note        1 of 5 layers predict further tokens" in text


def test_dense_model(tmp_path: Path) -> None:
    path = language_model("llama").tensor("token_embd.weight", (64, 10)).write(tmp_path / "m.gguf")
    text = _run(str(path))
    assert "layers      2, with experts: none" in text
    assert "vocabulary  10 tokens, tied output" in text
    assert "a layer" not in text


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    made = GgufBuilder().key("general.architecture", STRING, "llama").key("general.name", STRING, "\x1b[2Jx")
    for key in ("block_count", "embedding_length", "context_length"):
        made.key(f"llama.{key}", 4, 1)
    text = _run(str(made.tensor("t", (8,)).write(tmp_path / "m.gguf")))
    assert "\x1b" not in text and "model       [2Jx (llama" in text


def test_errors_are_raised_for_main_to_print(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        CliRunner().invoke(inspect_command, [str(tmp_path / "x.gguf")], catch_exceptions=False)
