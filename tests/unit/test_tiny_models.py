"""Every tiny architecture loads, says something, and depends on each of its experts.

Without this the exactness gates would prove nothing: on a model whose experts do not matter they always
pass.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.support import capi
from tests.support.tiny_models import ARCHS, TinySpec, build, exchange_experts, spec_named

PROMPTS = ("Hello there", "What is the capital of Greece?", "The quick brown fox jumps.", "1 2 3 4")
LONG_PROMPT = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen jugs."
each_arch = pytest.mark.parametrize("spec", ARCHS, ids=lambda spec: spec.name)


def load(path: Path) -> capi.Model:
    return capi.Model(path, n_ctx=256, n_batch=64, n_ubatch=64)


def rows_of(path: Path) -> capi.Logits:
    with load(path) as model:
        return model.decode(model.tokenize(LONG_PROMPT), all_rows=True)


def change(a: capi.Logits, b: capi.Logits) -> float:
    """The largest difference, in standard deviations of the logits."""
    return float(np.abs(a - b).max() / a.std())


def test_the_table_covers_every_layout() -> None:
    assert len({spec.arch for spec in ARCHS}) >= 14
    covered = frozenset().union(*(spec.covers for spec in ARCHS))
    layouts = {"split", "fused", "ungated", "biases", "scales", "sparse", "mtp", "second_family"}
    routers = {"groups", "selection_bias", "leading_dense", "shared", "recurrent", "latent", "early_router"}
    assert layouts | routers <= covered
    assert {"MXFP4", "Q8_0", "Q4_0", "Q4_K", "F16"} <= {spec.quant for spec in ARCHS}


@each_arch
def test_what_a_spec_claims_is_in_its_file(spec: TinySpec, tmp_path: Path) -> None:
    path = build(spec, tmp_path)
    assert path.stat().st_size < 4_000_000
    reader = gguf.GGUFReader(path)
    tensors = {item.name: item for item in reader.tensors}
    downs = [i for i in range(64) if f"blk.{i}.ffn_down_exps.weight" in tensors]
    assert [i for i in downs if i in spec.moe_layers] == list(spec.moe_layers)
    assert (len(downs) > len(spec.moe_layers)) == ("mtp" in spec.covers)
    first = f"blk.{spec.moe_layers[0]}.ffn_"
    assert (f"{first}gate_up_exps.weight" in tensors) == ("fused" in spec.covers)
    assert (f"{first}gate_exps.weight" in tensors) == ("split" in spec.covers)
    assert (f"{first}down_exps.bias" in tensors) == ("biases" in spec.covers)
    assert (f"{first}down_exps.scale" in tensors) == ("scales" in spec.covers)
    assert (f"{first}down_chexps.weight" in tensors) == ("second_family" in spec.covers)
    gaps = np.diff(spec.moe_layers)
    assert bool((gaps > 1).any()) == ("sparse" in spec.covers)
    up = next(name for name in (f"{first}up_exps.weight", f"{first}gate_up_exps.weight") if name in tensors)
    assert tensors[up].tensor_type.name == spec.quant


@each_arch
def test_greedy_text_is_finite_and_varied(spec: TinySpec, tmp_path: Path) -> None:
    with load(build(spec, tmp_path)) as model:
        for prompt in PROMPTS:
            text = model.greedy(model.tokenize(prompt), 128)
            assert np.isfinite(text.logits).all()
            assert len(set(text.tokens)) > 8
            assert b"".join(model.piece(token) for token in text.tokens).isascii()


@each_arch
def test_mutation_control(spec: TinySpec, tmp_path: Path) -> None:
    path, mutant = build(spec, tmp_path), tmp_path / "mutant.gguf"
    reference = rows_of(path)
    assert change(reference, rows_of(path)) == 0
    shifted = [(e + 1) % spec.n_expert for e in range(spec.n_expert)]
    for layer in spec.moe_layers:
        assert change(reference, rows_of(exchange_experts(path, layer, shifted, mutant))) > 0.5
    layer = spec.moe_layers[-1]
    for e in range(0, spec.n_expert, 2):
        order = list(range(spec.n_expert))
        order[e], order[e + 1] = e + 1, e
        assert change(reference, rows_of(exchange_experts(path, layer, order, mutant))) > 0.05, (layer, e)


def test_mutation_control_of_a_second_family(tmp_path: Path) -> None:
    spec = spec_named("grovemoe")
    path = build(spec, tmp_path)
    mutant = exchange_experts(path, 1, [1, 2, 3, 4, 5, 6, 7, 0], tmp_path / "mutant.gguf", family="chexps")
    assert change(rows_of(path), rows_of(mutant)) > 0.5


def test_experts_beyond_the_last_decoded_layer_do_not_matter(tmp_path: Path) -> None:
    """The control of the control: a multi-token-prediction layer is in the file and takes no part."""
    spec = spec_named("glm4moe")
    path = build(spec, tmp_path)
    shifted = [(e + 1) % spec.n_expert for e in range(spec.n_expert)]
    mutant = exchange_experts(path, spec.moe_layers[-1] + 1, shifted, tmp_path / "mutant.gguf")
    assert change(rows_of(path), rows_of(mutant)) == 0


def test_two_shards_say_what_one_file_says(tmp_path: Path) -> None:
    spec = spec_named("qwen3moe")
    one, two = build(spec, tmp_path), build(spec, tmp_path, shards=2)
    assert two.name.endswith("-00001-of-00002.gguf")
    shards = sorted(tmp_path.glob("*-of-00002.gguf"))
    assert len(shards) == 2
    for shard in shards:
        assert any("_exps" in item.name for item in gguf.GGUFReader(shard).tensors)
    np.testing.assert_array_equal(rows_of(one), rows_of(two))


@pytest.mark.parametrize("quant", ["MXFP4", "Q8_0", "F16", "Q4_0"])
def test_two_quantisations_in_one_file(quant: str, tmp_path: Path) -> None:
    path = build(spec_named("qwen2moe"), tmp_path, quant=quant, mixed_quants=True)
    downs = [item for item in gguf.GGUFReader(path).tensors if item.name.endswith("ffn_down_exps.weight")]
    kinds = [item.tensor_type.name for item in downs]
    assert kinds[0] == kinds[2] == quant
    assert kinds[1] == kinds[3] != quant
    assert np.isfinite(rows_of(path)).all()


def test_k_quants_of_whole_slices(tmp_path: Path) -> None:
    for quant in ("Q4_K", "Q6_K"):
        path = build(spec_named("olmoe"), tmp_path, quant=quant)
        assert np.isfinite(rows_of(path)).all()


def test_slices_both_on_and_off_the_page_grid(tmp_path: Path) -> None:
    remainders = set()
    for name in ("qwen3moe", "llama"):
        spec = spec_named(name)
        item = next(
            item
            for item in gguf.GGUFReader(build(spec, tmp_path)).tensors
            if "_down_exps.weight" in item.name
        )
        remainders.add(int(item.n_bytes) // spec.n_expert % 4096 == 0)
    assert remainders == {True, False}


def test_bytes_depend_on_the_seed_only(tmp_path: Path) -> None:
    spec = spec_named("gemma4")
    for name in "ab":
        (tmp_path / name).mkdir()
    first = build(spec, tmp_path / "a").read_bytes()
    assert build(spec, tmp_path / "b").read_bytes() == first
    assert build(spec, tmp_path, seed=1).read_bytes() != first
