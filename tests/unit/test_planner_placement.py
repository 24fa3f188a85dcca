"""The plan of every kind of load: resident, streamed, dense, mapped and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from guanaco.config import LoadConfig
from guanaco.errors import BudgetError, UsageError
from guanaco.model.map import ModelMap
from guanaco.planner.budget import default_budget, refuse_hopeless_context
from guanaco.planner.contexts import LARGEST_DEFAULT_CTX, context_ladder, report_request, ubatch_ladder
from guanaco.planner.load import resident_dense_bytes
from guanaco.planner.memory import context_bytes
from guanaco.planner.placement import minimum_budget, plan
from guanaco.planner.plan import Plan
from guanaco.planner.render import plan_json
from guanaco.planner.report import ContextBytes, EngineReport
from guanaco.units import GIB, KIB, MIB
from tests.support.plan_models import MACHINE, MODEL_PATH, moe_model

_SLICES = (300 * KIB, 300 * KIB, 300 * KIB)


def _config(budget_bytes: int | None, **settings: Any) -> LoadConfig:
    return LoadConfig(model=MODEL_PATH, memory_bytes=budget_bytes, **settings)


def _plan(model: ModelMap, budget_bytes: int | None, **settings: Any) -> Plan:
    return plan(model, MACHINE, _config(budget_bytes, **settings))


def _big_model(**changes: Any) -> ModelMap:
    return moe_model([_SLICES] * 24, n_expert=64, top_k=4, **changes)


def test_a_model_that_fits_stays_whole_with_the_engines_faster_copies() -> None:
    model = _big_model()
    made = _plan(model, 8 * GIB)
    assert (made.mode, made.placement, made.no_extra_bufts) == ("resident", "cpu", False)
    assert made.parts.expert_bytes == model.expert_bytes
    assert made.parts.repack_bytes > model.expert_bytes
    assert made.slots == 0
    assert made.drive_bytes == 0
    assert made.limited_by is None
    assert made.n_ctx == model.n_ctx_train


def test_without_room_for_copies_it_stays_whole_without_them() -> None:
    model = _big_model()
    made = _plan(model, 2 * GIB + 512 * MIB)
    assert (made.mode, made.no_extra_bufts) == ("resident", True)
    assert made.parts.repack_bytes == 0


def test_a_model_that_does_not_fit_is_streamed() -> None:
    model = _big_model()
    made = _plan(model, 1 * GIB)
    assert (made.mode, made.placement, made.no_extra_bufts) == ("streaming", "stream", True)
    assert made.parts.total_bytes <= 1 * GIB
    assert 4 * 24 < made.slots < 64 * 24
    assert made.group_class == (0,) * 24
    assert made.drive_bytes == model.expert_bytes - made.slots * 3 * 300 * KIB
    assert made.n_ubatch == 512
    assert "do not fit the budget of 1.00 GiB" in made.reason


def test_slots_hold_each_part_at_a_page_with_room_for_its_head() -> None:
    slices = (4096, 5000, 12288)
    (made,) = _plan(moe_model([slices] * 4), 1 * GIB, load_mode="streaming").classes
    assert made.slice_bytes == slices
    assert made.roles == ("gate", "up", "down")
    assert made.part_offsets == (0, 8192, 8192 + 12288)
    assert made.stride_bytes == 8192 + 12288 + 16384


def test_slices_of_whole_pages_need_no_staging_and_others_do() -> None:
    aligned = _plan(moe_model([(8192,) * 3]), 1 * GIB, load_mode="streaming")
    assert aligned.parts.staging_bytes == 0
    unaligned = _plan(moe_model([(8200,) * 3]), 1 * GIB, load_mode="streaming")
    assert unaligned.parts.staging_bytes == 32 * (12288 + 4096)


def test_size_classes_hold_the_same_share_of_their_experts() -> None:
    model = moe_model([_SLICES] * 16 + [(600 * KIB,) * 3] * 8, n_expert=64, top_k=4)
    made = _plan(model, 1 * GIB)
    first, second = (item.slots / total for item, total in zip(made.classes, (16 * 64, 8 * 64), strict=True))
    assert first == pytest.approx(second, abs=1 / 512)
    assert made.group_class == (0,) * 16 + (1,) * 8


def test_arena_is_whole_huge_pages_for_every_class() -> None:
    model = moe_model([_SLICES] * 4 + [(4096,) * 3] * 4, n_expert=8)
    made = _plan(model, 1 * GIB, load_mode="streaming")
    pages = sum(-(-item.slots * item.stride_bytes // (2 * MIB)) for item in made.classes)
    assert made.parts.arena_bytes == pages * 2 * MIB


def test_prediction_layers_get_no_slots_of_their_own() -> None:
    model = _big_model(mtp_slices=(4096, 4096, 4096))
    made = _plan(model, 1 * GIB)
    assert made.group_class == (0,) * 24 + (-1,)
    assert len(made.classes) == 1
    same_sizes = _plan(_big_model(mtp_slices=_SLICES), 4 * GIB, max_experts=64)
    assert same_sizes.group_class == (0,) * 25
    assert same_sizes.slots == 64 * 24


def test_dense_models_stay_resident_or_are_refused_with_the_number_that_works() -> None:
    model = moe_model([], dense_bytes=1 * GIB)
    made = _plan(model, 4 * GIB)
    assert (made.mode, made.parts.expert_bytes, made.no_extra_bufts) == ("dense", 0, False)
    with pytest.raises(BudgetError) as error:
        _plan(model, 512 * MIB)
    needed_bytes = error.value.details["needed_bytes"]
    assert error.value.details["budget_bytes"] == 512 * MIB
    assert f"--memory {needed_bytes // MIB}MiB" in error.value.message
    assert _plan(model, needed_bytes).mode == "dense"
    with pytest.raises(BudgetError):
        _plan(model, needed_bytes - MIB)


def test_a_dense_model_has_nothing_to_stream() -> None:
    made = _plan(moe_model([], dense_bytes=64 * MIB), 4 * GIB, load_mode="streaming")
    assert made.mode == "dense"
    assert "no experts to stream" in made.warnings[0]


def test_streaming_on_request_and_mmap_on_request() -> None:
    model = _big_model()
    streamed = _plan(model, 8 * GIB, load_mode="streaming")
    assert streamed.mode == "streaming"
    assert streamed.slots == 64 * 24
    assert "room for all of its experts, and each is read when it is first used" in streamed.reason
    assert streamed.drive_bytes == 0
    mapped = _plan(model, 512 * MIB, load_mode="mmap")
    assert (mapped.mode, mapped.no_extra_bufts) == ("resident", True)
    assert mapped.parts.total_bytes > 512 * MIB
    assert "does not hold the budget" in mapped.warnings[0]
    assert _plan(model, 8 * GIB, load_mode="mmap").warnings == ()
    idle = _plan(model, 8 * GIB, load_mode="mmap", io="threads", pilot="off").warnings
    assert idle == (
        "--io threads, --pilot off: without effect, because no experts are streamed by this plan",
    )


def test_a_number_of_experts_per_layer_is_taken_exactly() -> None:
    made = _plan(_big_model(), 8 * GIB, max_experts=6)
    assert made.mode == "streaming"
    assert made.slots == 6 * 24
    with pytest.raises(BudgetError) as error:
        _plan(_big_model(), 500 * MIB, max_experts=60)
    again = _plan(_big_model(), error.value.details["needed_bytes"], max_experts=60)
    assert again.slots == 60 * 24


def test_too_few_experts_per_layer_are_refused_with_the_number_that_works() -> None:
    model = moe_model([_SLICES], n_expert=16, top_k=4)
    with pytest.raises(UsageError, match="at least 4"):
        _plan(model, 1 * GIB, max_experts=3)
    assert _plan(model, 1 * GIB, max_experts=4).slots == 4


def test_a_batch_whose_experts_do_not_fit_runs_in_waves_and_said_so() -> None:
    model = moe_model([_SLICES] * 2, n_expert=64, top_k=4)
    made = _plan(model, 2 * GIB, max_experts=16)  # 32 slots
    assert made.n_ubatch == 512
    assert "may need all 64 experts of a layer at once" in made.warnings[0]
    assert not any("at once" in text for text in _plan(model, 2 * GIB, max_experts=32).warnings)


def test_a_batch_nobody_chose_grows_where_it_costs_little() -> None:
    model = moe_model([(3 * MIB, 3 * MIB, 3 * MIB)] * 24, n_expert=64, top_k=4)
    settings = {"load_mode": "streaming", "n_ctx": 4096}
    for budget_bytes, n_ubatch in ((GIB, 512), (2 * GIB, 1024), (8 * GIB, 2048)):
        usual = _plan(model, budget_bytes, **settings)
        grown = _plan(model, budget_bytes, **settings, grow_ubatch=True)
        assert (usual.n_ubatch, grown.n_ubatch) == (512, n_ubatch)
        # A thirty-second of the budget is set aside for it; what is not needed is the prompt cache's.
        lost_bytes = usual.parts.arena_bytes - grown.parts.arena_bytes
        assert 0 < lost_bytes <= budget_bytes // 32 + 12 * MIB
        assert grown.cache_ram_bytes > usual.cache_ram_bytes
        assert grown.parts.total_bytes <= grown.budget_bytes
    assert usual.slots < 24 * 64
    for kept in ({"n_parallel": 2}, {"n_batch": 512}, {"n_ctx": 512}):
        assert _plan(model, 8 * GIB, **{**settings, **kept}, grow_ubatch=True).n_ubatch <= 512


def test_a_batch_grows_when_all_experts_have_slots() -> None:
    made = _plan(_big_model(), 3 * GIB, load_mode="streaming", grow_ubatch=True)
    assert made.slots == 24 * 64
    assert (made.n_ubatch, made.n_ctx) == (2048, 32768)
    assert made.parts.total_bytes <= made.budget_bytes


def test_windows_grow_with_the_batch() -> None:
    """They are a part of the caches, and hold a batch beside the window."""
    model = _big_model(arch="gpt-oss", attention__sliding_window=1024)
    made = _plan(model, 3 * GIB, load_mode="streaming", grow_ubatch=True)
    assert made.n_ubatch == 2048
    assert made.parts.kv_bytes >= context_bytes(model, _config(None), made.n_ctx, 2048).kv_bytes
    assert made.parts.total_bytes <= made.budget_bytes


def test_setting_memory_aside_for_a_batch_refuses_no_budget() -> None:
    model = _big_model()
    usual, grows = (_config(None, load_mode="streaming", grow_ubatch=grow) for grow in (False, True))
    assert minimum_budget(model, MACHINE, usual) == minimum_budget(model, MACHINE, grows)


def test_in_the_page_cache_nothing_can_pass_through_so_the_batch_is_made_smaller() -> None:
    model = moe_model([_SLICES] * 2, n_expert=64, top_k=4)
    made = _plan(model, 2 * GIB, max_experts=16, io="pagecache")  # 8 tokens x 4 experts
    assert made.n_ubatch == 8
    assert "8 tokens at a time instead of 512" in made.warnings[0]


def test_waves_take_16_slots_or_one_tokens_experts() -> None:
    few = moe_model([_SLICES] * 8, n_expert=64, top_k=4)
    assert _plan(few, 2 * GIB, max_experts=4).n_ubatch == 512
    many = moe_model([_SLICES], n_expert=64, top_k=24)
    assert _plan(many, 2 * GIB, max_experts=24).n_ubatch == 512
    short = moe_model([_SLICES], n_expert=64, top_k=4)
    assert _plan(short, 2 * GIB, max_experts=12).n_ubatch == 2  # 12 slots hold three tokens' experts


def test_below_a_token_cycle_it_warns() -> None:
    made = _plan(_big_model(), 2 * GIB, max_experts=3)
    assert "there is room for 72 experts, but one token uses 96" in made.warnings[-1]
    assert not any("one token uses" in text for text in _plan(_big_model(), 2 * GIB, max_experts=4).warnings)


def test_a_refusal_names_a_budget_that_works_and_the_one_below_does_not() -> None:
    model = _big_model(dense_bytes=200 * MIB)
    needed_bytes = minimum_budget(model, MACHINE, _config(None))
    assert needed_bytes % MIB == 0
    made = _plan(model, needed_bytes)
    assert made.parts.total_bytes <= needed_bytes
    assert made.slots >= 4
    with pytest.raises(BudgetError) as error:
        _plan(model, needed_bytes - MIB)
    assert error.value.details["needed_bytes"] == needed_bytes
    assert error.value.exit_code != 0


def test_the_context_comes_from_the_model_and_is_cut_by_memory() -> None:
    model = _big_model()
    cut = _plan(model, 1 * GIB)
    assert cut.n_ctx < model.n_ctx_train
    assert cut.limited_by == "memory"
    assert cut.parts.kv_bytes <= 1 * GIB // 4
    asked = _plan(model, 1 * GIB, n_ctx=2048)
    assert (asked.n_ctx, asked.limited_by) == (2048, None)
    assert _plan(model, 4 * GIB, n_ctx=0).n_ctx == model.n_ctx_train


def test_prompt_cache_and_checkpoints_stay_inside_the_budget() -> None:
    hybrid = _big_model(
        arch="qwen35moe",
        full_attention_interval=4,
        ssm__conv_kernel=4,
        ssm__inner_size=1024,
        ssm__state_size=64,
        ssm__group_count=8,
    )
    made = _plan(hybrid, 1 * GIB)
    assert 0 < made.ctx_checkpoints <= 32
    assert made.parts.prompt_cache_bytes >= made.cache_ram_bytes
    assert made.parts.total_bytes <= 1 * GIB
    roomy = _plan(hybrid, 32 * GIB)
    assert roomy.ctx_checkpoints == 32
    assert roomy.cache_ram_bytes == 8192 * MIB
    asked = _plan(hybrid, 2 * GIB, cache_ram_bytes=100 * MIB, ctx_checkpoints=3)
    assert (asked.cache_ram_bytes, asked.ctx_checkpoints) == (100 * MIB, 3)
    assert asked.parts.prompt_cache_bytes > 100 * MIB
    assert _plan(_big_model(), 1 * GIB).ctx_checkpoints == 0  # nothing that could not be rolled back


def test_embeddings_have_no_caches_and_batches_of_one_piece() -> None:
    made = _plan(_big_model(), 1 * GIB, embeddings=True)
    assert (made.cache_ram_bytes, made.ctx_checkpoints) == (0, 0)
    assert made.n_batch == made.n_ubatch


def test_tables_read_by_rows_get_an_allowance_only() -> None:
    model = _big_model(table_bytes=8 * GIB)
    assert resident_dense_bytes(model) == resident_dense_bytes(_big_model())
    made = _plan(model, 2 * GIB)
    assert made.parts.dense_bytes == resident_dense_bytes(model) + 2 * GIB // 16


def test_default_budget_leaves_a_reserve() -> None:
    assert default_budget(replace(MACHINE, ram_available_bytes=10 * GIB)) == 8 * GIB
    assert default_budget(replace(MACHINE, ram_available_bytes=100 * GIB)) == 88 * GIB
    limited = replace(MACHINE, cgroup_limit_bytes=8 * GIB, cgroup_used_bytes=100 * MIB)
    assert default_budget(limited) == 6 * GIB
    assert default_budget(replace(limited, cgroup_used_bytes=3 * GIB)) == 5 * GIB
    assert default_budget(replace(MACHINE, ram_available_bytes=2 * GIB)) == 1 * GIB
    with pytest.raises(UsageError, match="--memory"):
        default_budget(replace(MACHINE, ram_available_bytes=None))


def test_the_default_budget_is_named_in_a_refusal_and_an_excess_is_warned_about() -> None:
    model = moe_model([], dense_bytes=8 * GIB)
    small = replace(MACHINE, ram_available_bytes=4 * GIB)
    with pytest.raises(BudgetError, match="which is what this machine leaves free"):
        plan(model, small, _config(None))
    made = plan(model, small, _config(32 * GIB))
    assert "more than the 4.00 GiB this machine has available" in made.warnings[0]


def test_a_budget_that_the_machine_cannot_hold_is_refused() -> None:
    model = _big_model()
    in_cgroup = replace(MACHINE, cgroup_limit_bytes=2 * GIB, cgroup_used_bytes=0)
    with pytest.raises(BudgetError) as error:
        plan(model, in_cgroup, _config(8 * GIB))
    assert error.value.message == (
        "a budget of 8.00 GiB cannot be had here: it is more than the memory cgroup's limit of 2.00 GiB; "
        "use --memory 2048MiB or less, or raise that limit"
    )
    assert error.value.details["limit_bytes"] == 2 * GIB
    assert error.value.details["budget_bytes"] == 8 * GIB
    assert plan(model, in_cgroup, _config(2 * GIB)).warnings == ()
    # The kernel rounds a limit down to whole pages: the budget it was made for is still held.
    odd = replace(in_cgroup, cgroup_limit_bytes=2 * GIB - 4096)
    assert plan(model, odd, _config(2 * GIB - 1)).budget_bytes == 2 * GIB - 1
    with pytest.raises(BudgetError):
        plan(model, odd, _config(2 * GIB))
    with pytest.raises(BudgetError, match=r"RAM of 64\.00 GiB; use --memory 65536MiB or less$"):
        plan(model, MACHINE, _config(65 * GIB))
    wide = replace(MACHINE, cgroup_limit_bytes=128 * GIB)
    with pytest.raises(BudgetError, match=r"this machine's RAM of 64\.00 GiB"):
        plan(model, wide, _config(65 * GIB))
    with pytest.raises(BudgetError, match=r"limit of 2\.00 GiB"):
        plan(model, in_cgroup, _config(8 * GIB, load_mode="mmap"))
    unknown = replace(MACHINE, ram_total_bytes=None, ram_available_bytes=None)
    assert plan(model, unknown, _config(800 * GIB)).mode == "resident"


@pytest.mark.parametrize("budget_bytes", [100 * MIB, None, 8 * GIB])
def test_a_refusal_never_names_a_budget_that_the_cgroup_cannot_hold(budget_bytes: int | None) -> None:
    model = _big_model(dense_bytes=2 * GIB)
    small = replace(MACHINE, cgroup_limit_bytes=1 * GIB)
    needed_mib = minimum_budget(model, MACHINE, _config(None)) // MIB
    with pytest.raises(BudgetError) as error:
        plan(model, small, _config(budget_bytes))
    message = error.value.message
    assert "the memory cgroup's limit of 1.00 GiB" in message
    assert f" at least {needed_mib} MiB; raise that limit to {needed_mib} MiB, or use a shorter" in message
    assert "--memory" not in message
    assert error.value.details["needed_bytes"] == needed_mib * MIB
    raised = replace(small, cgroup_limit_bytes=needed_mib * MIB)
    assert plan(model, raised, _config(needed_mib * MIB)).mode == "streaming"
    with pytest.raises(BudgetError, match=f"use --memory {needed_mib}MiB, a shorter"):
        plan(model, raised, _config(100 * MIB))
    poor = replace(MACHINE, ram_total_bytes=1 * GIB, ram_available_bytes=1 * GIB)
    with pytest.raises(BudgetError, match=r"RAM of 1\.00 GiB.*; use a machine with more RAM, or use"):
        plan(model, poor, _config(budget_bytes))


def test_a_context_beyond_the_training_is_cut_as_the_engine_cuts_it() -> None:
    model = _big_model()
    made = _plan(model, 8 * GIB, n_ctx=100_000, n_parallel=2)
    assert made.n_ctx == 2 * model.n_ctx_train
    assert made.details["n_ctx_slot"] == model.n_ctx_train
    assert made.parts.kv_bytes == _plan(model, 8 * GIB, n_ctx=0, n_parallel=2).parts.kv_bytes
    assert "trained for 32768, and the engine gives no request more; 65536 are planned" in made.warnings[0]
    assert _plan(model, 8 * GIB, n_ctx=2 * model.n_ctx_train, n_parallel=2).warnings == ()
    # As the engine rounds: the whole to 256 cells, a third of that, and that to 256 cells again.
    assert _plan(model, 8 * GIB, n_ctx=800, n_parallel=3).details["n_ctx_slot"] == 512


def test_the_engines_report_is_used_where_it_answers() -> None:
    model, config = _big_model(), _config(1 * GIB, n_ctx=4096)
    request = report_request(model, MACHINE, config)
    assert request.contexts[0] == (4096, 512)
    assert (4096, 1) in request.contexts
    rows = tuple(ContextBytes(c, u, 7 * MIB, 0, 0, 5 * MIB, MIB) for c, u in request.contexts)
    reported = plan(model, MACHINE, config, EngineReport("v", rows, ("q4_0",)))
    assert reported.parts.kv_bytes == 7 * MIB
    assert reported.details["sizes_from"] == "engine"
    assert plan(model, MACHINE, config).details["sizes_from"] == "formula"


def test_ladders() -> None:
    model = _big_model()
    assert context_ladder(model, _config(None)) == (4096, 6144, 8192, 12288, 16384, 24576, 32768)
    assert context_ladder(replace(model, n_ctx_train=1000), _config(None)) == (1000,)
    assert context_ladder(model, _config(None, n_parallel=2))[0] == 8192
    # Nobody asked for the two thousand million tokens that a header claims.
    claimed = replace(model, n_ctx_train=2_000_000_000)
    assert context_ladder(claimed, _config(None))[-1] == LARGEST_DEFAULT_CTX
    assert context_ladder(claimed, _config(None, n_ctx=3_000_000)) == (3_000_000,)
    assert ubatch_ladder(model, _config(None, n_ubatch=100)) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert ubatch_ladder(model, _config(None, n_ctx=64))[-1] == 64


def test_plan_json_has_the_stable_names() -> None:
    made = plan_json(_plan(_big_model(), 1 * GIB))
    stable = {"placement", "vram_bytes", "host_bytes", "drive_bytes", "context_length", "slots", "limited_by"}
    assert stable | {"parts", "reason"} <= set(made)
    assert made["host_bytes"] == sum(made["parts"].values())
    assert made["vram_bytes"] == 0


def test_a_hopeless_context_is_refused_before_the_engine_is_asked() -> None:
    model = replace(_big_model(), n_ctx_train=2_000_000_000)
    with pytest.raises(
        BudgetError, match=r"a context of 2000000000 tokens takes about .* shorter one \(-c\)"
    ):
        refuse_hopeless_context(model, MACHINE, _config(1 * GIB, n_ctx=2_000_000_000))
    with pytest.raises(BudgetError, match="a context of 2000000000 tokens"):
        refuse_hopeless_context(model, MACHINE, _config(1 * GIB, n_ctx=0))
    for settings in ({"n_ctx": None}, {"n_ctx": 8192}):
        refuse_hopeless_context(model, MACHINE, _config(1 * GIB, **settings))
    # A small budget is refused by the plan, which knows the number that works.
    refuse_hopeless_context(model, MACHINE, _config(1, n_ctx=512))
    # What is more than the model can use is cut to that, and judged then.
    refuse_hopeless_context(_big_model(), MACHINE, _config(1 * GIB, n_ctx=2_000_000_000))


def test_embeddings_are_never_computed_in_batches_that_the_engine_cannot_hold() -> None:
    for n_parallel in (1, 3, 4):
        config = _config(None, embeddings=True, n_parallel=n_parallel, n_ctx=2)
        assert ubatch_ladder(_big_model(), config)[0] >= max(2, n_parallel)
    with pytest.raises(UsageError, match="ask for at least 16"):
        _plan(moe_model([_SLICES], n_expert=64, top_k=4), GIB, embeddings=True, n_parallel=4, max_experts=4)


def test_memory_is_planned_for_the_most_threads_that_ever_run() -> None:
    model = _big_model()
    few, many = (_plan(model, 2 * GIB, n_ctx=4096, n_threads=4, n_threads_batch=n) for n in (None, 64))
    assert (few.n_threads, many.n_threads) == (4, 4)
    assert many.parts.engine_bytes - few.parts.engine_bytes >= 60 * 256 * KIB
    request = report_request(model, MACHINE, _config(2 * GIB, n_threads=4, n_threads_batch=64))
    assert request.n_threads == 64
