"""What must hold of every plan, whatever the model, the machine and the settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from guanaco.config import LoadConfig
from guanaco.errors import BudgetError
from guanaco.model.map import ModelMap
from guanaco.planner.placement import minimum_budget, plan
from guanaco.planner.plan import Plan
from guanaco.units import GIB, KIB, MIB
from tests.support.plan_models import MACHINE, MODEL_PATH, moe_model

_SLICE = st.integers(1, 1200 * KIB)
_LAYER_KIND = st.tuples(_SLICE, _SLICE, _SLICE) | st.tuples(_SLICE, _SLICE)


@st.composite
def models(draw: st.DrawFn, fewest_layers: int = 1) -> ModelMap:
    kinds = draw(st.lists(_LAYER_KIND, min_size=1, max_size=3))
    layers = draw(st.lists(st.sampled_from(kinds), min_size=fewest_layers, max_size=12))
    n_expert = draw(st.sampled_from([2, 8, 32, 60, 128]))
    return moe_model(
        layers,
        n_expert=n_expert,
        top_k=draw(st.integers(1, min(8, n_expert))),
        dense_bytes=draw(st.integers(1, 2 * GIB)),
        table_bytes=draw(st.sampled_from([0, 0, 6 * GIB])),
        mtp_slices=draw(st.sampled_from([(), (4096, 4096)])) if layers else (),
        attention__head_count_kv=draw(st.sampled_from([1, 8, 32])),
        attention__sliding_window=draw(st.sampled_from([0, 128])),
        attention__sliding_window_pattern=2,
    )


@st.composite
def configs(draw: st.DrawFn) -> LoadConfig:
    return LoadConfig(
        model=MODEL_PATH,
        load_mode=draw(st.sampled_from(["auto", "streaming"])),
        n_ctx=draw(st.sampled_from([None, None, 0, 512, 20000])),
        n_ubatch=draw(st.sampled_from([1, 48, 512, 512, 2048])),
        grow_ubatch=draw(st.booleans()),
        n_parallel=draw(st.integers(1, 4)),
        cache_ram_bytes=draw(st.sampled_from([None, None, 0, 64 * MIB])),
        ctx_checkpoints=draw(st.sampled_from([None, None, 0, 5])),
        embeddings=draw(st.sampled_from([False, False, False, True])),
    )


def _try(model: ModelMap, config: LoadConfig, budget_bytes: int) -> Plan | None:
    try:
        return plan(model, MACHINE, replace(config, memory_bytes=budget_bytes))
    except BudgetError:
        return None


def _resident_experts(model: ModelMap, made: Plan) -> tuple[int, ...]:
    """Experts in RAM of each class; a resident plan holds them all."""
    keys = list(dict.fromkeys(group.slice_key for group in model.groups if not group.is_mtp))
    if made.mode == "streaming":
        return tuple(item.slots for item in made.classes)
    groups = [group for group in model.groups if not group.is_mtp]
    return tuple(sum(g.n_expert for g in groups if g.slice_key == key) for key in keys)


@settings(max_examples=60, deadline=None)
@given(models(), configs(), st.integers(1, 6000))
def test_a_plan_never_exceeds_its_budget(model: ModelMap, config: LoadConfig, budget_mib: int) -> None:
    made = _try(model, config, budget_mib * MIB)
    assume(made is not None)
    assert made is not None
    assert made.parts.total_bytes <= made.budget_bytes == budget_mib * MIB
    assert all(value >= 0 for value in vars(made.parts).values())
    assert made.cache_ram_bytes <= made.parts.prompt_cache_bytes


@settings(max_examples=60, deadline=None)
@given(models(), configs(), st.integers(50, 6000), st.integers(1, 2000))
def test_more_memory_is_never_less_of_anything(
    model: ModelMap, config: LoadConfig, budget_mib: int, more_mib: int
) -> None:
    less = _try(model, config, budget_mib * MIB)
    assume(less is not None)
    more = _try(model, config, (budget_mib + more_mib) * MIB)
    assert less is not None
    assert more is not None, "a larger budget was refused"
    # A batch that has grown may give way to a longer context.
    assert more.n_ubatch >= min(less.n_ubatch, _asked_batch(model, config))
    fewer, now = _resident_experts(model, less), _resident_experts(model, more)
    assert all(map(int.__le__, fewer, now))
    assert (less.mode, more.mode) != ("resident", "streaming")
    if less.mode == more.mode:
        assert more.n_ctx >= less.n_ctx


@settings(max_examples=30, deadline=None)
@given(models(fewest_layers=0), configs())
def test_the_smallest_budget_works_and_less_does_not(model: ModelMap, config: LoadConfig) -> None:
    needed_bytes = minimum_budget(model, MACHINE, config)
    made = _try(model, config, needed_bytes)
    assert made is not None
    assert made.parts.total_bytes <= needed_bytes
    with pytest.raises(BudgetError) as error:
        plan(model, MACHINE, replace(config, memory_bytes=needed_bytes - MIB))
    assert error.value.details["needed_bytes"] == needed_bytes


@settings(max_examples=40, deadline=None)
@given(models(), configs(), st.integers(100, 6000))
def test_classes_hold_the_same_share_or_one_layers_need(
    model: ModelMap, config: LoadConfig, budget_mib: int
) -> None:
    made = _try(model, replace(config, load_mode="streaming"), budget_mib * MIB)
    assume(made is not None)
    assert made is not None
    shares = []
    for index, item in enumerate(made.classes):
        groups = [g for g, at in zip(model.groups, made.group_class, strict=True) if at == index]
        groups = [group for group in groups if not group.is_mtp]
        total = sum(group.n_expert for group in groups)
        one_token = max(min(group.n_expert, group.top_k) for group in groups)
        needed = max(min(group.n_expert, made.n_ubatch * group.top_k) for group in groups)
        if config.io != "pagecache":
            needed = min(needed, max(one_token, 16))  # in waves
        assert needed <= item.slots <= total
        if item.slots > needed:
            shares.append((item.slots / total, (item.slots + 1) / total))
    if made.n_ubatch >= _asked_batch(model, config) and shares:
        assert max(low for low, _ in shares) <= min(high for _, high in shares)


@settings(max_examples=40, deadline=None)
@given(models(), configs(), st.integers(1, 128))
def test_a_number_of_experts_per_layer_is_exact(model: ModelMap, config: LoadConfig, count: int) -> None:
    # Embeddings need a batch of two or more at once, which refuses the smallest numbers (tested by hand).
    config = replace(config, embeddings=False)
    asked = max(count, model.groups[0].top_k)
    made = _try(model, replace(config, max_experts=asked), 64 * GIB)
    assert made is not None
    groups = [group for group in model.groups if not group.is_mtp]
    assert made.slots == sum(min(asked, group.n_expert) for group in groups)


@settings(max_examples=40, deadline=None)
@given(models(), configs(), st.integers(100, 6000))
def test_every_slot_has_room_for_its_parts(model: ModelMap, config: LoadConfig, budget_mib: int) -> None:
    made = _try(model, replace(config, load_mode="streaming"), budget_mib * MIB)
    assume(made is not None)
    assert made is not None
    for item in made.classes:
        ends = (*item.part_offsets[1:], item.stride_bytes)
        for offset, nbytes, end in zip(item.part_offsets, item.slice_bytes, ends, strict=True):
            assert offset % 4096 == end % 4096 == 0
            assert offset + -(-nbytes // 4096) * 4096 + 4096 <= end


def _asked_batch(model: ModelMap, config: LoadConfig) -> int:
    smallest_ctx = config.n_ctx or config.n_parallel * (4096 if config.n_ctx is None else model.n_ctx_train)
    return min(config.n_ubatch, config.n_batch, smallest_ctx)
