"""What goes to cards: published loads as golden plans, and the rule's corners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from guanaco.config import LoadConfig
from guanaco.errors import BudgetError, UsageError
from guanaco.model.map import ModelMap
from guanaco.planner.card import CardPlan, needed_bytes, place
from guanaco.planner.card_sizes import card_weights
from guanaco.planner.conversations import Conversations, layer_bytes
from guanaco.planner.plan import Plan
from guanaco.planner.render import plan_json
from guanaco.planner.reserve import is_chat_model, place_beside, reserve_bytes
from guanaco.planner.split import plan_with_cards
from guanaco.units import GIB, MIB
from tests.support.card_models import gpt_oss_20b, llama_8b, machine_with, router_1b, with_weights
from tests.support.plan_models import MODEL_PATH, shape


def _config(**settings: Any) -> LoadConfig:
    return LoadConfig(model=MODEL_PATH, **settings)


def _place(model: ModelMap, *free_bytes: int, **settings: Any) -> CardPlan | None:
    return place(model, machine_with(*free_bytes).cards, _config(**settings))


def _plan(model: ModelMap, *free_bytes: int, ram_bytes: int | None = None, **settings: Any) -> Plan:
    return plan_with_cards(model, machine_with(*free_bytes, ram_bytes=ram_bytes), _config(**settings))


@pytest.mark.parametrize("free_mib", [7700, 7800, 7900])
def test_gpt_oss_on_8_gb_leaves_the_experts_of_12_layers(free_mib: int) -> None:
    """The published rule moved 13, because it counted a table that stays on the host anyway."""
    made = _plan(gpt_oss_20b(), free_mib * MIB)
    assert made.placement == "moe_experts_cpu:12"
    assert made.vram_bytes < free_mib * MIB * 9 // 10


@pytest.mark.parametrize("free_mib", [11800, 11950, 12100])
def test_gpt_oss_on_12_gb_leaves_3_layers_at_most(free_mib: int) -> None:
    """The published rule moved 4."""
    placed = _place(gpt_oss_20b(), free_mib * MIB)
    assert placed is not None
    assert placed.n_cpu_moe <= 3


def test_gpt_oss_on_16_gb_stays_whole() -> None:
    made = _plan(gpt_oss_20b(), 15500 * MIB)
    assert made.placement == "gpu"
    assert made.reason.startswith("the whole model on the card")
    assert any("does not load onto them yet" in text for text in made.warnings)
    assert made.card is not None
    assert made.card.n_cpu_moe == 0
    assert made.parts.expert_bytes == 0


def test_some_layers_alone_are_refused() -> None:
    with pytest.raises(UsageError, match="-ngl 20: all layers go to a card or none"):
        _plan(gpt_oss_20b(), 16 * GIB, n_gpu_layers=20)
    assert _plan(gpt_oss_20b(), 16 * GIB, n_gpu_layers=99).placement == "gpu"


def test_a_number_of_layers_is_taken_as_it_is() -> None:
    model = gpt_oss_20b()
    for n_layers in (13, 20, 24):
        made = _plan(model, 7800 * MIB, cpu_moe_layers=n_layers)
        assert made.placement == f"moe_experts_cpu:{n_layers}"
    assert _plan(model, 16 * GIB, cpu_moe_layers=0).placement == "gpu"


def test_none_is_refused_where_it_does_not_fit_with_what_it_takes() -> None:
    model = gpt_oss_20b()
    with pytest.raises(BudgetError, match="all experts on the card") as error:
        _plan(model, 7800 * MIB, cpu_moe_layers=0)
    details = error.value.details
    assert details["free_bytes"] == 7800 * MIB
    assert details["needed_bytes"] == needed_bytes(model, _config(cpu_moe_layers=0), 0)
    assert _plan(model, details["needed_bytes"], cpu_moe_layers=0).placement == "gpu"
    with pytest.raises(BudgetError):
        _plan(model, details["needed_bytes"] - MIB, cpu_moe_layers=0)
    with pytest.raises(BudgetError, match="experts of 2 layers on the host"):
        _plan(model, 7800 * MIB, cpu_moe_layers=2)


def test_a_conversation_shrinks_for_the_smallest_other_model() -> None:
    """As published: 8,960 tokens with 1.52 GB kept, 19,200 without; three more of 8,192 in both."""
    model, other = llama_8b(), router_1b()
    config = _config(n_parallel=4)
    kept_bytes = reserve_bytes([other], config)
    assert kept_bytes == pytest.approx(1_520_000_000, rel=0.001)
    # Free memory that gives the published length without the reserve.
    weights = card_weights(model)
    on_card = weights.output_bytes + sum(layer.dense_bytes for layer in weights.layers)
    room = on_card + (19_200 + 216 + 3 * 8192) * 128 * 1024 + 4 * 256 * MIB
    cards = machine_with(room * 10 // 9 + MIB).cards
    alone = place_beside(model, cards, config, 0)
    beside = place_beside(model, cards, config, kept_bytes)
    assert alone is not None
    assert beside is not None
    assert alone.talk == Conversations(19_200, 4, 8192)
    assert alone.limited_by == "memory"
    assert beside.talk == Conversations(8960, 4, 8192)
    assert (beside.limited_by, beside.reserved_bytes) == ("multi_model_reserve", kept_bytes)
    made = plan_with_cards(model, replace(machine_with(), cards=cards), config, [other])
    assert "limited by multi_model_reserve" in made.reason
    assert plan_json(made)["context_length"] == 8960
    assert plan_json(made)["limited_by"] == "multi_model_reserve"


def test_when_nothing_is_kept_for_others() -> None:
    model, other = llama_8b(), router_1b()
    cards = machine_with(12 * GIB).cards
    kept_bytes = reserve_bytes([other], _config())
    chosen = place_beside(model, cards, _config(n_ctx=20_000), kept_bytes)
    assert chosen is not None
    assert (chosen.talk.first_tokens, chosen.reserved_bytes) == (20_000, 0), "somebody chose the context"
    # What would leave less than 8,192 tokens is not kept.
    free_bytes = next(
        size * MIB
        for size in range(5000, 9000, 20)
        if (placed := _place(model, size * MIB)) and placed.talk.first_tokens >= 9000
    )
    little = place_beside(model, machine_with(free_bytes).cards, _config(), kept_bytes)
    assert little is not None
    assert little.reserved_bytes == 0
    assert little.limited_by == "memory"


def test_models_that_do_not_talk_keep_nothing_for_them() -> None:
    embedder = replace(router_1b(), arch="bert")
    assert not is_chat_model(embedder)
    pools = with_weights(
        shape("qwen3", 4, pooling_type=3), token_embd_bytes=1, output_bytes=1, dense_layer_bytes=1
    )
    assert not is_chat_model(pools)
    assert reserve_bytes([embedder, pools], _config()) == 0
    assert reserve_bytes([embedder, llama_8b(), router_1b()], _config()) == reserve_bytes(
        [router_1b()], _config()
    )
    assert reserve_bytes([], _config()) == 0


def test_leading_dense_layers_are_no_steps() -> None:
    """Their numbers free nothing, so they are not tried."""
    model = with_weights(
        shape("deepseek2", 6, attention__head_count=8, attention__key_length=64, attention__value_length=64),
        token_embd_bytes=MIB,
        output_bytes=MIB,
        dense_layer_bytes=10 * MIB,
        expert_layer_bytes=600 * MIB,
        first_moe_layer=3,
    )
    assert card_weights(model).counts == (0, 4, 5, 6)
    whole = _place(model, 4 * GIB)
    assert whole is not None
    assert whole.n_cpu_moe == 0
    fewer = _place(model, 2 * GIB)
    assert fewer is not None
    assert fewer.n_cpu_moe == 4


def test_tied_embeddings_are_on_both_sides() -> None:
    model = with_weights(
        shape("llama", 2), token_embd_bytes=100 * MIB, output_bytes=0, dense_layer_bytes=MIB, is_tied=True
    )
    weights = card_weights(model)
    assert (weights.host_bytes, weights.output_bytes) == (100 * MIB, 100 * MIB)


def test_biases_of_experts_go_with_them() -> None:
    model = gpt_oss_20b()
    names = {item.tensor_name: item for item in model.dense}
    bias = replace(names["blk.3.attn_q.weight"], tensor_name="blk.3.ffn_down_exps.bias", nbytes=7)
    before, after = card_weights(model), card_weights(replace(model, dense=(*model.dense, bias)))
    assert after.layers[3].expert_bytes == before.layers[3].expert_bytes + 7
    assert after.layers[3].dense_bytes == before.layers[3].dense_bytes
    with_bias = replace(model, dense=(*model.dense, replace(bias, nbytes=MIB)))
    for n_layers, grows_bytes in ((3, 0), (4, MIB)):
        plans = [_plan(each, 16 * GIB, cpu_moe_layers=n_layers) for each in (model, with_bias)]
        assert plans[1].parts.dense_bytes - plans[0].parts.dense_bytes == grows_bytes


def test_experts_off_the_card_stream_when_memory_is_short() -> None:
    model = gpt_oss_20b()
    made = _plan(model, 7800 * MIB, ram_bytes=16 * GIB, memory_bytes=3 * GIB)
    assert made.placement == "moe_experts_stream:12"
    assert made.mode == "streaming"
    assert made.parts.total_bytes <= 3 * GIB
    assert 0 < made.drive_bytes < 12 * 404.5 * MIB
    assert made.parts.kv_bytes == 0, "conversations are on the card"
    assert [index for index in made.group_class if index >= 0] == [0] * 12
    assert made.group_class[12:] == (-1,) * 12
    with pytest.raises(BudgetError) as error:
        _plan(model, 7800 * MIB, memory_bytes=200 * MIB)
    again = _plan(model, 7800 * MIB, memory_bytes=error.value.details["needed_bytes"])
    assert again.placement == "moe_experts_stream:12"
    with pytest.raises(BudgetError):
        _plan(model, 7800 * MIB, memory_bytes=error.value.details["needed_bytes"] - MIB)


def test_a_card_too_small_leaves_all_to_the_processor() -> None:
    made = _plan(gpt_oss_20b(), 1200 * MIB)
    assert made.placement == "cpu"
    assert made.card is None
    assert "free on the card" in made.reason
    assert "hold too little of it" in made.reason
    assert _plan(gpt_oss_20b(), 16 * GIB, n_gpu_layers=0).placement == "cpu"


def test_the_hosts_budget_is_one_the_machine_has() -> None:
    with pytest.raises(BudgetError, match="more than this machine's RAM"):
        _plan(gpt_oss_20b(), 16 * GIB, ram_bytes=8 * GIB, memory_bytes=9 * GIB)
    with pytest.raises(BudgetError, match=r"use --memory \d+MiB"):
        _plan(gpt_oss_20b(), 16 * GIB, memory_bytes=100 * MIB)


def test_what_a_plan_for_cards_does_not_know_is_refused_or_said() -> None:
    for settings in ({"spec_types": ("ngram-mod",)}, {"load_mode": "mmap"}, {"max_experts": 1}):
        with pytest.raises(UsageError, match=r"leave|use"):
            _plan(gpt_oss_20b(), 16 * GIB, **settings)
    assert _plan(gpt_oss_20b(), 6 * GIB, memory_bytes=8 * GIB, grow_ubatch=True).n_ubatch == 512
    made = _plan(gpt_oss_20b(), 16 * GIB, n_ctx=1 << 20)
    assert any("more than model can use" in text for text in made.warnings)


def test_short_cards_shorten_the_conversation_last() -> None:
    """All experts leave before a conversation is shorter than the usual one."""
    model = gpt_oss_20b()
    tight = next(
        placed for size in range(1500, 4000, 10) if (placed := _place(model, size * MIB)) is not None
    )
    assert tight.n_cpu_moe == 24
    assert 4096 <= tight.talk.first_tokens < 16384
    assert tight.limited_by == "memory"


def test_layers_are_spread_over_cards_in_order() -> None:
    model = gpt_oss_20b()
    placed = _place(model, 8 * GIB, 8 * GIB)
    assert placed is not None
    assert placed.n_cpu_moe == 0, "two cards hold what one does not"
    first, second = placed.devices
    assert first.n_layers + second.n_layers == 24
    assert first.n_layers > 0 < second.n_layers
    for part in placed.devices:
        assert part.weights_bytes + part.kv_bytes + part.margin_bytes <= part.free_bytes
    total = sum(part.weights_bytes for part in placed.devices)
    assert total == pytest.approx(11536 * MIB - 586.8 * MIB, abs=MIB)


def test_windows_grow_with_conversations_and_batch() -> None:
    """gpt-oss: 12 layers of 2 KiB a token, 12 of min(pool, 128 x 4 + 512) cells: about 24 MiB in the log."""
    model = gpt_oss_20b()
    kept = layer_bytes(model, _config(), Conversations(16384, 4, 8192))
    cells = 16384 + 3 * 8192
    assert sum(kept) == 12 * cells * 2048 + 12 * 1024 * 2048
    assert 24 * MIB == 12 * 1024 * 2048
