"""KV, state and work buffer formulas against sizes published for real models and counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.config import LoadConfig
from guanaco.model.map import ModelMap
from guanaco.planner.layers import layer_states
from guanaco.planner.memory import (
    OVERLAP_ROWS,
    compute_bytes,
    context_bytes,
    kv_cache_bytes,
    output_bytes,
    repack_bytes,
    rows_bytes,
    state_bytes,
    work_bytes,
)
from guanaco.units import GIB, KIB, MIB
from tests.support.plan_models import MODEL_PATH, moe_model, shape

_CONFIG = LoadConfig(model=MODEL_PATH)


def _kv(model: ModelMap, n_ctx: int, config: LoadConfig = _CONFIG, n_ubatch: int = 512) -> int:
    return kv_cache_bytes(model, config, n_ctx, n_ubatch)[0]


def _qwen3_30b() -> ModelMap:
    return shape(
        "qwen3moe",
        48,
        2048,
        attention__head_count=32,
        attention__head_count_kv=4,
        attention__key_length=128,
        attention__value_length=128,
    )


def test_grouped_query_attention_of_qwen3_30b_takes_96_kib_a_token() -> None:
    assert _kv(_qwen3_30b(), 4096) == 4096 * 96 * KIB


def test_the_context_is_padded_to_256_cells_and_split_between_sequences() -> None:
    model = _qwen3_30b()
    assert _kv(model, 1000) == 1024 * 96 * KIB
    three = LoadConfig(model=MODEL_PATH, n_parallel=3)
    assert _kv(model, 3 * 1000, three) == 3 * 1024 * 96 * KIB
    assert _kv(model, 769, three) == 3 * 512 * 96 * KIB  # 1024 in all, a third of it rounded up


def test_quantised_caches_are_counted_by_block() -> None:
    config = LoadConfig(model=MODEL_PATH, cache_type_k="q8_0", cache_type_v="q4_0")
    row_numbers = 4 * 128
    assert _kv(_qwen3_30b(), 256, config) == 256 * 48 * (row_numbers // 32) * (34 + 18)


def test_windows_of_gpt_oss_20b_take_24_kib_a_token_beside_the_window() -> None:
    model = shape(
        "gpt-oss",
        24,
        2880,
        attention__head_count=64,
        attention__head_count_kv=8,
        attention__key_length=64,
        attention__value_length=64,
        attention__sliding_window=128,
    )
    total, windows = kv_cache_bytes(model, _CONFIG, 16384, 512)
    assert total - windows == 384 * MIB
    assert windows == 12 * 768 * 2 * KIB  # 128 + 512 cells, padded


def test_compressed_cache_of_deepseek_v31() -> None:
    model = shape(
        "deepseek2",
        61,
        7168,
        attention__head_count=128,
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
    )
    assert _kv(model, 163840) / GIB == pytest.approx(10.72, abs=0.01)
    assert _kv(model, 256) / 256 / KIB == pytest.approx(68.6, abs=0.1)


def test_hybrid_qwen35_122b_keeps_state_beside_a_quarter_of_the_caches() -> None:
    model = shape(
        "qwen35moe",
        48,
        3072,
        attention__head_count=32,
        attention__head_count_kv=2,
        attention__key_length=256,
        attention__value_length=256,
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__inner_size=8192,
        ssm__state_size=128,
        ssm__group_count=16,
    )
    assert _kv(model, 256) == 256 * 24 * KIB
    assert state_bytes(model, 1) / MIB == pytest.approx(149.06, abs=0.01)
    assert state_bytes(model, 4) == 4 * state_bytes(model, 1)


def test_layers_without_kv_heads_are_recurrent_or_only_feed_forward() -> None:
    model = shape(
        "nemotron_h_moe",
        4,
        attention__head_count=8,
        attention__head_count_kv=(0, 2, 0, 0),
        attention__key_length=64,
        attention__value_length=64,
        feed_forward_length=(0, 0, 512, 0),
        ssm__conv_kernel=4,
        ssm__inner_size=1024,
        ssm__state_size=16,
        ssm__group_count=2,
    )
    layers = layer_states(model)
    assert [bool(layer.state_width) for layer in layers] == [True, False, False, True]
    assert [layer.k_width for layer in layers] == [0, 128, 0, 0]
    assert layers[0].state_width == 3 * (1024 + 2 * 2 * 16) + 16 * 1024


def test_delta_attention_and_short_convolutions_keep_their_own_states() -> None:
    kda = shape(
        "kimi-linear",
        2,
        attention__head_count=32,
        attention__head_count_kv=(0, 1),
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
        ssm__conv_kernel=4,
        kda__head_dim=128,
    )
    recurrent, attention = layer_states(kda)
    assert recurrent.state_width == 3 * 3 * 32 * 128 + 128 * 128 * 32
    assert (attention.k_width, attention.v_width, attention.state_width) == (576, 0, 0)
    lfm = shape("lfm2moe", 2, 2048, attention__head_count=32, attention__head_count_kv=(0, 8),
                shortconv__l_cache=3)  # fmt: skip
    assert [layer.state_width for layer in layer_states(lfm)] == [2 * 2048, 0]


def test_a_pattern_in_the_file_beats_the_table_and_shared_layers_keep_nothing() -> None:
    model = shape(
        "gemma4",
        4,
        attention__head_count=8,
        attention__head_count_kv=2,
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__sliding_window=1024,
        attention__sliding_window_pattern=(True, False, True, False),
        attention__shared_kv_layers=2,
    )
    widths = [(layer.k_width, layer.window_tokens) for layer in layer_states(model)]
    assert widths == [(512, 1024), (1024, 0), (0, 1024), (0, 0)]


def test_prediction_layers_keep_nothing() -> None:
    model = shape("glm4moe", 3, attention__head_count=8, attention__head_count_kv=2, nextn_predict_layers=1)
    assert len(layer_states(model)) == 2


def test_an_unknown_window_rule_is_counted_as_full_attention() -> None:
    model = shape("llama", 2, attention__head_count=8, attention__head_count_kv=8,
                  attention__sliding_window=512)  # fmt: skip
    assert kv_cache_bytes(model, _CONFIG, 8192, 512)[1] == 0


def test_work_buffer_is_the_engines_formula_or_more() -> None:
    model = moe_model([(65536,) * 3], n_expert=64, top_k=4)
    n_ubatch, n_threads, slots, n_used = 512, 4, 300, 4
    input_rows = n_ubatch * n_used * 512 * 34 // 32 + 8
    tables = (slots * 8 + 8) + (slots * n_used * n_ubatch * 8 + 8) + (64 * slots + 64)
    engine = input_rows + tables + n_threads * ((512 << 10) + 64) + 64 + 64 * n_threads
    estimate = work_bytes(model, n_ubatch, n_threads, ((slots, n_used),))
    assert engine <= estimate <= 1.5 * engine


def test_outputs_are_one_row_a_sequence_or_one_a_token_for_embeddings() -> None:
    model = moe_model([(65536,) * 3])
    assert output_bytes(model, LoadConfig(model=MODEL_PATH, n_parallel=2), 512) == 2 * 4 * 32000
    embeddings = LoadConfig(model=MODEL_PATH, embeddings=True)
    assert output_bytes(model, embeddings, 512) == 512 * 4 * (32000 + 512)


def test_compute_grows_with_batch_context_and_without_flash_attention() -> None:
    model = _qwen3_30b()
    small = compute_bytes(model, _CONFIG, 4096, 64)
    assert small < compute_bytes(model, _CONFIG, 4096, 512) < compute_bytes(model, _CONFIG, 65536, 512)
    no_flash = LoadConfig(model=MODEL_PATH, flash_attn="off")
    assert compute_bytes(model, no_flash, 4096, 64) > 4096 * 64 * 4 * 32


def test_only_types_that_the_engine_repacks_are_counted() -> None:
    model = moe_model([(65536,) * 3], n_expert=8, dense_bytes=MIB, type_name="q4_0")
    assert repack_bytes(model) == MIB + 8 * 3 * 65536
    assert repack_bytes(model, frozenset({"q8_0"})) == 0


def test_context_bytes_add_up() -> None:
    row = context_bytes(_qwen3_30b(), _CONFIG, 4096, 256)
    assert row.total_bytes == row.kv_bytes + row.state_bytes + row.compute_bytes + row.output_bytes


def test_rows_computed_beside_the_engine_are_those_the_library_takes() -> None:
    header = (Path(__file__).parents[2] / "native/src/overlap.h").read_text()
    assert f"kMostRows = {OVERLAP_ROWS};" in header


def test_rows_of_a_fused_product_are_twice_as_wide() -> None:
    narrow = shape("qwen3moe", 2, 64, expert_feed_forward_length=16)
    wide = shape("qwen3moe", 2, 64, expert_feed_forward_length=160)
    assert rows_bytes(narrow, 10) == 4 * 10 * (64 + 64)
    assert rows_bytes(wide, 10) == 4 * 10 * (64 + 320)
