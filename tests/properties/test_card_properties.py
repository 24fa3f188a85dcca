"""What must hold of every plan for cards, whatever the model and the cards."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from guanaco.config import LoadConfig
from guanaco.model.map import ModelMap
from guanaco.planner.card import CardPlan, needed_bytes, place
from guanaco.planner.card_sizes import card_weights
from guanaco.planner.conversations import conversations
from guanaco.planner.reserve import place_beside
from guanaco.units import MIB
from tests.support.card_models import machine_with, with_weights
from tests.support.plan_models import MODEL_PATH, shape


@st.composite
def models(draw: st.DrawFn) -> ModelMap:
    n_layer = draw(st.integers(1, 12))
    model = shape(
        draw(st.sampled_from(["qwen3moe", "gpt-oss", "qwen35moe"])),
        n_layer,
        512,
        attention__head_count=8,
        attention__head_count_kv=draw(st.sampled_from([1, 8])),
        attention__key_length=64,
        attention__value_length=64,
        attention__sliding_window=128,
        ssm__inner_size=1024,
        ssm__state_size=64,
    )
    model = with_weights(
        model,
        token_embd_bytes=draw(st.integers(1, 400 * MIB)),
        output_bytes=draw(st.integers(1, 400 * MIB)),
        dense_layer_bytes=draw(st.integers(1, 200 * MIB)),
        expert_layer_bytes=draw(st.sampled_from([0, 96 * MIB, 999 * MIB])),
        first_moe_layer=draw(st.integers(0, 3)),
        is_tied=draw(st.booleans()),
    )
    return replace(model, n_ctx_train=draw(st.sampled_from([300, 2048, 16384, 40960, 131072])))


@st.composite
def configs(draw: st.DrawFn) -> LoadConfig:
    return LoadConfig(
        model=MODEL_PATH,
        n_ctx=draw(st.sampled_from([None, None, 0, 4096, 20000])),
        n_parallel=draw(st.integers(1, 5)),
        cpu_moe_layers=draw(st.sampled_from([-1, -1, -1, 0, 2, 40])),
        cache_type_k=draw(st.sampled_from(["f16", "q8_0"])),
    )


_CARDS = st.lists(st.integers(0, 20_000), min_size=1, max_size=3)


def _place(model: ModelMap, config: LoadConfig, free_mib: list[int]) -> CardPlan | None:
    return place(model, machine_with(*(size * MIB for size in free_mib)).cards, config)


def _rank(placed: CardPlan) -> tuple[int, int]:
    return -placed.n_cpu_moe, placed.talk.first_tokens


@settings(max_examples=80, deadline=None)
@given(models(), configs(), _CARDS)
def test_no_card_holds_more_than_its_room(model: ModelMap, config: LoadConfig, free_mib: list[int]) -> None:
    placed = _place(model, config, free_mib)
    assume(placed is not None)
    assert placed is not None
    weights = card_weights(model)
    for part in placed.devices:
        assert part.weights_bytes + part.kv_bytes == 0 or (
            part.weights_bytes + part.kv_bytes + part.margin_bytes <= part.free_bytes
        )
    on_cards = weights.output_bytes + sum(layer.dense_bytes for layer in weights.layers)
    on_cards += sum(layer.expert_bytes for layer in weights.layers[placed.n_cpu_moe :])
    assert sum(part.weights_bytes for part in placed.devices) == on_cards
    assert sum(part.n_layers for part in placed.devices) == len(weights.layers)
    assert placed.talk.first_tokens <= model.n_ctx_train
    if config.n_ctx:
        assert placed.talk.first_tokens == min(config.n_ctx, model.n_ctx_train)
    if config.cpu_moe_layers >= 0:
        assert placed.n_cpu_moe == min(config.cpu_moe_layers, len(weights.layers))


@settings(max_examples=80, deadline=None)
@given(models(), configs(), _CARDS, st.integers(0, 8000), st.integers(0, 2))
def test_more_memory_is_never_less(
    model: ModelMap, config: LoadConfig, free_mib: list[int], more_mib: int, which: int
) -> None:
    less = _place(model, config, free_mib)
    assume(less is not None)
    assert less is not None
    larger = list(free_mib)
    larger[which % len(larger)] += more_mib
    more = _place(model, config, larger)
    assert more is not None
    assert _rank(more) >= _rank(less)


@settings(max_examples=80, deadline=None)
@given(models(), configs(), _CARDS)
def test_no_smaller_number_of_layers_makes_the_usual_room(
    model: ModelMap, config: LoadConfig, free_mib: list[int]
) -> None:
    config = replace(config, cpu_moe_layers=-1)
    placed = _place(model, config, free_mib)
    usual = conversations(model, config).first_tokens
    for fewer in card_weights(model).counts:
        if placed is not None and fewer >= placed.n_cpu_moe:
            break
        assert _place(model, replace(config, cpu_moe_layers=fewer, n_ctx=usual), free_mib) is None


@settings(max_examples=60, deadline=None)
@given(models(), configs())
def test_what_a_refusal_says_is_needed_is_enough_and_no_more(model: ModelMap, config: LoadConfig) -> None:
    n_cpu_moe = max(0, config.cpu_moe_layers)
    config = replace(config, cpu_moe_layers=n_cpu_moe)
    needed = needed_bytes(model, config, n_cpu_moe)
    assert place(model, machine_with(needed + 10).cards, config) is not None
    assert place(model, machine_with(needed - MIB).cards, config) is None


@settings(max_examples=60, deadline=None)
@given(models(), configs(), _CARDS, st.integers(1, 4000))
def test_room_for_others_never_leaves_none(
    model: ModelMap, config: LoadConfig, free_mib: list[int], kept_mib: int
) -> None:
    cards = machine_with(*(size * MIB for size in free_mib)).cards
    alone, beside = place(model, cards, config), place_beside(model, cards, config, kept_mib * MIB)
    assert (alone is None) == (beside is None)
    assume(alone is not None and beside is not None)
    assert alone is not None
    assert beside is not None
    assert _rank(beside) <= _rank(alone)
    if beside.limited_by == "multi_model_reserve":
        assert beside.talk.first_tokens >= min(8192, alone.talk.first_tokens)
        assert _rank(beside) < _rank(alone)
