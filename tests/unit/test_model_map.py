"""From headers to dense ranges and expert slices, over every layout the engine knows."""

from __future__ import annotations

from pathlib import Path

import pytest

import guanaco
from guanaco.errors import ModelError
from guanaco.gguf.reader import read_gguf
from guanaco.model.map import ModelMap, build_model_map
from guanaco.model.recipes import ENGINE_ARCHS, FAMILIES, RECIPES
from guanaco.units import GIB
from tests.support.gguf_builder import (
    F16,
    FLOAT32,
    MXFP4,
    Q8_0,
    STRING,
    U32,
    GgufBuilder,
    add_experts,
    language_model,
    shard,
)

DEMO = Path(guanaco.__file__).parent / "data" / "guanaco-demo-q8_0.gguf"
FUSED = ("ffn_gate_up_exps", "ffn_down_exps")
UP_DOWN = ("ffn_up_exps", "ffn_down_exps")


def _map(tmp_path: Path, made: GgufBuilder) -> ModelMap:
    return build_model_map(read_gguf(made.write(tmp_path / "m.gguf")))


def _message(tmp_path: Path, made: GgufBuilder) -> str:
    with pytest.raises(ModelError) as caught:
        _map(tmp_path, made)
    assert caught.value.message.startswith(f"{tmp_path / 'm.gguf'}: ")
    return caught.value.message


def _moe(n_expert: int = 4, used: int = 2, n_layer: int = 2, **numbers: int) -> GgufBuilder:
    return language_model("qwen3moe", n_layer, expert_count=n_expert, expert_used_count=used, **numbers)


def _covers_every_byte_once(model: ModelMap) -> None:
    """Dense ranges and slices together are exactly the tensors."""
    spans = [(item.file_index, item.offset, item.nbytes) for item in model.dense]
    for group in model.groups:
        spans += [
            (part.file_index, part.offset + expert * part.slice_bytes, part.slice_bytes)
            for part in group.parts
            for expert in range(group.n_expert)
        ]
    ends: dict[tuple[int, int], int] = {}
    for file_index, offset, nbytes in sorted(spans):
        assert offset >= ends.get((file_index, 0), 0)
        ends[file_index, 0] = offset + nbytes
    total = sum(tensor.nbytes for tensor in model.gguf.tensors)
    assert sum(nbytes for _, _, nbytes in spans) == total == model.dense_bytes + model.expert_bytes


def test_demo_model() -> None:
    model = build_model_map(read_gguf(DEMO))
    shape = (model.name, model.arch, model.n_layer, model.n_embd, model.n_vocab, model.n_ctx_train)
    assert shape == ("guanaco-demo", "qwen3moe", 4, 192, 1024, 1024)
    assert (model.n_expert, model.n_expert_used, model.has_own_output) == (32, 4, True)
    assert [group.layer for group in model.groups] == [0, 1, 2, 3]
    assert {group.slice_key for group in model.groups} == {(("gate", 19584), ("up", 19584), ("down", 19584))}
    assert (model.dense_bytes, model.expert_bytes, model.token_embd_bytes) == (1679104, 7520256, 393216)
    assert model.notes == ()
    _covers_every_byte_once(model)


def test_parts_are_in_reading_order_with_their_offsets(tmp_path: Path) -> None:
    made = add_experts(_moe(n_layer=1), 0, 4, ("ffn_down_exps", "ffn_up_exps", "ffn_gate_exps"), F16)
    model = _map(tmp_path, made)
    (group,) = model.groups
    offsets = {tensor.name: tensor.offset for tensor in model.gguf.tensors}
    assert [part.role for part in group.parts] == ["gate", "up", "down"]
    assert [part.offset for part in group.parts] == [
        offsets[f"blk.0.ffn_{role}_exps.weight"] for role in ("gate", "up", "down")
    ]
    assert (group.n_expert, group.top_k, group.is_mtp) == (4, 2, False)
    assert {part.slice_bytes for part in group.parts} == {64 * 32 * 2}
    assert model.dense == ()


@pytest.mark.parametrize(
    ("parts", "roles"),
    [(FUSED, ["gate_up", "down"]), (UP_DOWN, ["up", "down"])],
    ids=["fused", "up and down"],
)
def test_other_layouts(tmp_path: Path, parts: tuple[str, ...], roles: list[str]) -> None:
    model = _map(tmp_path, add_experts(_moe(), 1, 4, parts))
    assert [part.role for part in model.groups[0].parts] == roles
    _covers_every_byte_once(model)


def test_everything_else_stays_dense(tmp_path: Path) -> None:
    made = _moe(n_layer=1)
    dense = [
        ("token_embd.weight", (64, 10)),
        ("blk.0.ffn_gate_inp.weight", (64, 4)),
        ("blk.0.exp_probs_b.bias", (4,)),
        ("blk.0.ffn_gate_exps.bias", (32, 4)),
        ("blk.0.ffn_up_exps.scale", (4,)),
        ("blk.0.ffn_down_exps.input_scale", (4,)),
        ("blk.0.ffn_gate_shexp.weight", (64, 32)),
        ("blk.0.ffn_norm_exps.weight", (64,)),
        ("blk.0.attn_q.lora_a", (64, 8, 4)),
        ("output_norm.weight", (64,)),
    ]
    for name, dims in dense:
        made.tensor(name, dims)
    model = _map(tmp_path, add_experts(made, 0, 4))
    assert [item.tensor_name for item in model.dense] == [name for name, _ in dense]
    assert len(model.groups) == 1
    assert (model.n_vocab, model.has_own_output) == (10, False)
    _covers_every_byte_once(model)


def test_leading_dense_and_sparse_layers(tmp_path: Path) -> None:
    made = _moe(n_layer=6)
    for layer in range(6):
        if layer in (2, 5):
            add_experts(made, layer, 4)
        else:
            made.tensor(f"blk.{layer}.ffn_up.weight", (64, 32))
    model = _map(tmp_path, made)
    assert [group.layer for group in model.groups] == [2, 5]
    assert len(model.dense) == 4


def test_two_quantisations_make_two_size_classes(tmp_path: Path) -> None:
    made = add_experts(_moe(n_layer=3), 0, 4, type_id=Q8_0)
    add_experts(made, 1, 4, type_id=MXFP4)
    model = _map(tmp_path, add_experts(made, 2, 4, type_id=Q8_0))
    keys = [group.slice_key for group in model.groups]
    assert keys[0] == keys[2] != keys[1]
    assert keys[1] == (("gate", 1088), ("up", 1088), ("down", 1088))
    _covers_every_byte_once(model)


def test_prediction_layers(tmp_path: Path) -> None:
    made = add_experts(_moe(n_layer=3, nextn_predict_layers=1), 1, 4)
    made.tensor("blk.1.attn_q.weight", (64, 64)).tensor("blk.2.nextn.eh_proj.weight", (128, 64))
    model = _map(tmp_path, add_experts(made, 2, 4))
    assert [(group.layer, group.is_mtp) for group in model.groups] == [(1, False), (2, True)]
    assert [(item.tensor_name, item.is_mtp) for item in model.dense] == [
        ("blk.1.attn_q.weight", False),
        ("blk.2.nextn.eh_proj.weight", True),
    ]
    assert model.mtp_dense_bytes == 128 * 64 * 4
    assert model.notes[0].startswith("1 of 3 layers predict further tokens (128.0 KiB)")


def test_prediction_layers_that_were_stripped(tmp_path: Path) -> None:
    model = _map(tmp_path, add_experts(_moe(n_layer=3, nextn_predict_layers=1), 1, 4))
    assert [group.is_mtp for group in model.groups] == [False]


def test_a_model_of_prediction_layers_alone(tmp_path: Path) -> None:
    model = _map(tmp_path, language_model(nextn_predict_layers=2).tensor("blk.0.attn_q.weight", (64, 64)))
    assert not model.dense[0].is_mtp


def test_experts_used_by_layer(tmp_path: Path) -> None:
    made = language_model(n_layer=3, expert_count=8).array("qwen3moe.expert_used_count", U32, [0, 2, 5])
    add_experts(made, 1, 8)
    model = _map(tmp_path, add_experts(made, 2, 8, width=16))
    assert [group.top_k for group in model.groups] == [2, 5]
    assert model.n_expert_used == 5
    assert len({group.slice_key for group in model.groups}) == 2


def test_shared_chunk_experts_are_a_group_of_their_own(tmp_path: Path) -> None:
    chunks = ("ffn_gate_chexps", "ffn_up_chexps", "ffn_down_chexps")
    made = language_model("grovemoe", 1, expert_count=8, expert_used_count=6, experts_per_group=2)
    model = _map(tmp_path, add_experts(add_experts(made, 0, 8), 0, 4, chunks, width=8))
    assert [(group.family, group.n_expert, group.top_k) for group in model.groups] == [
        ("exps", 8, 6),
        ("chexps", 4, 4),
    ]
    _covers_every_byte_once(model)


def test_value_experts(tmp_path: Path) -> None:
    made = language_model(
        "k2-horizon", 2, attention__value_expert_count=6, attention__value_expert_used_count=2
    )
    model = _map(tmp_path, made.tensor("blk.1.attn_v_exps.weight", (64, 16, 6)))
    (group,) = model.groups
    assert (group.family, group.n_expert, group.top_k, group.parts[0].role) == ("v_exps", 6, 2, "value")


def test_experts_stored_one_by_one_stay_dense(tmp_path: Path) -> None:
    made = language_model("llama", 1, expert_count=2, expert_used_count=2)
    for expert in range(2):
        for part in ("gate", "up", "down"):
            made.tensor(f"blk.0.ffn_{part}.{expert}.weight", (64, 64))
    model = _map(tmp_path, made)
    assert (model.groups, len(model.dense)) == ((), 6)
    assert "stored one by one" in model.notes[0] and len(model.notes) == 1


def test_declared_experts_without_tensors(tmp_path: Path) -> None:
    model = _map(tmp_path, _moe().tensor("blk.0.ffn_up.weight", (64, 32)))
    assert not model.is_moe
    assert model.notes == ("4 experts are declared, but no expert tensors are there: treated as dense",)


def test_one_declared_expert_can_mean_none(tmp_path: Path) -> None:
    made = language_model("hunyuan-dense", 1, expert_count=1, expert_used_count=1)
    model = _map(tmp_path, made.tensor("blk.0.ffn_up.weight", (64, 32)))
    assert (model.n_expert, model.n_expert_used, model.notes) == (0, 0, ())


def test_unknown_and_stray_expert_tensors_stay_dense(tmp_path: Path) -> None:
    made = add_experts(_moe(n_layer=1), 0, 4).tensor("blk.0.ffn_new_exps.weight", (64, 32, 4))
    model = _map(tmp_path, add_experts(made, 1, 4))
    assert len(model.groups) == 1 and len(model.dense) == 4
    assert "3 expert tensors lie beyond the 1 declared layers (blk.1.ffn_gate_exps.weight" in model.notes[0]
    assert "1 expert tensors have unknown names (blk.0.ffn_new_exps.weight" in model.notes[1]
    _covers_every_byte_once(model)


@pytest.mark.parametrize(
    ("arch", "rows", "is_lazy"),
    [("gemma4", 2**22, True), ("gemma4", 2**18, False), ("gemma3n", 2**22, False)],
)
def test_lazy_tables(tmp_path: Path, arch: str, rows: int, is_lazy: bool) -> None:
    made = language_model(arch, 1).tensor("per_layer_token_embd.weight", (1024, rows), F16)
    model = _map(tmp_path, made.tensor("token_embd.weight", (64, rows), F16))
    assert [item.is_lazy_table for item in model.dense] == [is_lazy, False]
    assert bool(model.notes) == is_lazy
    assert not is_lazy or model.dense[0].nbytes == 8 * GIB


def test_exactly_4_gib_is_not_lazy(tmp_path: Path) -> None:
    made = language_model("gemma4", 1).tensor("per_layer_token_embd.weight", (1024, 2**21), F16)
    assert not _map(tmp_path, made).dense[0].is_lazy_table


def test_shards_keep_their_file_index(tmp_path: Path) -> None:
    first = shard(0, 2, 4, _moe(n_layer=1)).tensor("token_embd.weight", (64, 10))
    first.write(tmp_path / "m-00001-of-00002.gguf")
    path = add_experts(shard(1, 2, 4), 0, 4).write(tmp_path / "m-00002-of-00002.gguf")
    model = build_model_map(read_gguf(path))
    assert [part.file_index for part in model.groups[0].parts] == [1, 1, 1]
    assert model.dense[0].file_index == 0
    _covers_every_byte_once(model)


HOSTILE: dict[str, tuple[GgufBuilder, str]] = {
    "no architecture": (GgufBuilder().tensor("t", (8,)), "general.architecture is missing"),
    "architecture type": (GgufBuilder().key("general.architecture", U32, 7), "architecture is 7, not a"),
    "unknown architecture": (language_model("llama9"), "general.architecture 'llama9' is unknown to this"),
    "projector": (language_model("clip"), "is 'clip': a vision or audio projector, not a model; give the"),
    "adapter": (language_model().key("general.type", STRING, "adapter"), "is 'adapter': an adapter (LoRA)"),
    "no tensors": (language_model(), "tensor count is 0"),
    "no layers": (language_model(n_layer=0).tensor("t", (8,)), "block_count is 0, but should be 1 to"),
    "513 layers": (language_model(n_layer=513).tensor("t", (8,)), "is 513, but should be 1 to 512"),
    "width": (language_model(embedding_length=0).tensor("t", (8,)), "embedding_length is 0"),
    "context": (language_model(context_length=0).tensor("t", (8,)), "context_length is 0"),
    "prediction layers": (language_model(nextn_predict_layers=3).tensor("t", (8,)), "predict_layers is 3"),
    "1025 experts": (_moe(1025, 2).tensor("t", (8,)), "expert_count is 1025, but should be 0 to 1024"),
    "uses too many": (_moe(4, 5).tensor("t", (8,)), "expert_used_count is 5 of 4 experts"),
    "uses none": (_moe(4, 0).tensor("t", (8,)), "expert_used_count is 0 of 4 experts"),
    "uses undeclared": (_moe(0, 2).tensor("t", (8,)), "expert_used_count is 2 of 0 experts"),
    "experts undeclared": (add_experts(language_model(), 0, 4), "expert_count is 0, but layer 0 has expert"),
    "wrong count": (add_experts(_moe(), 0, 8), "'blk.0.ffn_gate_exps.weight' has the shape (64, 32, 8), but"),
    "two dimensions": (
        _moe().tensor("blk.0.ffn_up_exps.weight", (64, 4)).tensor("blk.0.ffn_down_exps.weight", (64, 4)),
        "has the shape (64, 4)",
    ),
    "four dimensions": (
        _moe().tensor("blk.0.ffn_up_exps.weight", (8, 8, 4, 2)).tensor("blk.0.ffn_down_exps.weight", (8,)),
        "has the shape (8, 8, 4, 2)",
    ),
    "empty slices": (
        _moe().tensor("blk.0.ffn_up_exps.weight", (64, 0, 4)).tensor("blk.0.ffn_down_exps.weight", (8,)),
        "does not hold 4 equal slices",
    ),
    "part of a set": (add_experts(_moe(), 0, 4, ("ffn_gate_exps", "ffn_up_exps")), "are not a whole set"),
    "fused and apart": (
        add_experts(_moe(), 0, 4, ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")),
        "not a whole set",
    ),
    "layer that uses none": (
        add_experts(
            language_model(expert_count=4).array("qwen3moe.expert_used_count", U32, [0, 2]), 0, 4, UP_DOWN
        ),
        "expert_used_count is 0 for layer 0, but should be 1 to 4",
    ),
    "length of a list": (
        language_model(expert_count=4).array("qwen3moe.expert_used_count", U32, [2]).tensor("t", (8,)),
        "expert_used_count is (2,), but should be one whole number or 2, not 1",
    ),
    "shared by none": (
        add_experts(
            language_model("grovemoe", 1, expert_count=4, expert_used_count=2, experts_per_group=0),
            0, 4, ("ffn_up_chexps", "ffn_down_chexps"),
        ),
        "experts_per_group is 0, but should be 1 to 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_contradictions(tmp_path: Path, name: str) -> None:
    made, expected = HOSTILE[name]
    assert expected in _message(tmp_path, made)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    made = GgufBuilder().key("general.architecture", STRING, "llama").tensor("t", (8,))
    assert "llama.block_count is missing" in _message(tmp_path, made)


def test_metadata_by_layer(tmp_path: Path) -> None:
    made = language_model(n_layer=3, attention__head_count=8).tensor("t", (8,))
    made.array("qwen3moe.attention.head_count_kv", U32, [4, 0, 2]).key(
        "qwen3moe.rope.freq_base", FLOAT32, 1e6
    )
    model = _map(tmp_path, made)
    assert model.get_ints("attention.head_count") == (8, 8, 8)
    assert model.get_ints("attention.head_count_kv") == (4, 0, 2)
    assert model.get_ints("attention.key_length", 64) == (64, 64, 64)
    assert model.get_int("attention.sliding_window", 0) == 0
    assert model.get_float("rope.freq_base") == 1e6
    with pytest.raises(
        ModelError, match=r"qwen3moe\.attention\.head_count_kv is \(4, 0, 2\), but should be one"
    ):
        model.get_int("attention.head_count_kv")
    with pytest.raises(ModelError, match=r"qwen3moe\.ssm\.state_size is missing"):
        model.get_int("ssm.state_size")


def test_no_architecture_name_outside_the_recipes() -> None:
    assert set(RECIPES) <= ENGINE_ARCHS
    assert all(set(layout) <= set(family.roles.values()) for family in FAMILIES for layout in family.layouts)
    package = Path(guanaco.__file__).parent
    for module in ("gguf", "model"):
        for source in (package / module).glob("*.py"):
            if source.name != "recipes.py":
                words = set(source.read_text().replace('"', " ").replace("'", " ").split())
                assert not words & (ENGINE_ARCHS - {"t5", "llama", "plm", "bert"}), source
