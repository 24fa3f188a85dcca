"""What drafts is planned for: slots of their own for layers that draft, a draft model, tables of n-grams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guanaco.config import LoadConfig
from guanaco.engine.dryrun import added
from guanaco.engine.native import plan_text
from guanaco.errors import UsageError
from guanaco.hardware.facts import Hardware
from guanaco.planner.contexts import report_request
from guanaco.planner.load import resident_dense_bytes
from guanaco.planner.overheads import draft_token_bytes, drafter_bytes
from guanaco.planner.placement import plan
from guanaco.planner.report import ContextBytes
from guanaco.planner.slots import expert_classes, group_classes
from guanaco.units import GIB, KIB, MIB
from tests.support.plan_models import MODEL_PATH, moe_model

MACHINE = Hardware(64 * GIB, 60 * GIB, None, None, n_physical_cores=4, n_logical_cores=8)
SLICES = (256 * KIB, 256 * KIB, 256 * KIB)


def config(**more: Any) -> LoadConfig:
    return LoadConfig(MODEL_PATH, **{"memory_bytes": GIB, "load_mode": "streaming", "n_ctx": 4096, **more})


def test_layers_that_draft_have_slots_of_their_own() -> None:
    model = moe_model(layers=[SLICES, SLICES], mtp_slices=SLICES, n_expert=64)
    assert len(expert_classes(model)) == 1
    assert group_classes(model) == (0, 0, 0), "nothing runs them"
    assert len(expert_classes(model, has_mtp=True)) == 2
    assert group_classes(model, has_mtp=True) == (0, 0, 1)
    made = plan(model, MACHINE, config(spec_types=("draft-mtp",)))
    assert [item.slots > 0 for item in made.classes] == [True, True]
    plain = plan(model, MACHINE, config())
    assert made.classes[0].slots <= plain.classes[0].slots, "it is paid for inside the budget"


def test_their_dense_weights_are_held_only_for_drafts() -> None:
    model = moe_model(layers=[SLICES], mtp_slices=SLICES, n_expert=64)
    end = model.files[0].size_bytes
    dense = replace(model.dense[0], tensor_name="blk.1.nextn", is_mtp=True, offset=end, nbytes=8 * MIB)
    model = replace(model, dense=(*model.dense, dense))
    assert resident_dense_bytes(model, has_mtp=True) >= resident_dense_bytes(model) + 8 * MIB
    made = plan(model, MACHINE, config(spec_types=("draft-mtp",)))
    line = f"dense {dense.file_index} {dense.offset} {dense.nbytes}"
    assert line not in plan_text(model, made, "auto", Path("stats"))
    assert line in plan_text(model, made, "auto", Path("stats"), has_mtp=True)


def test_a_model_without_such_layers_cannot_draft_by_them() -> None:
    model = moe_model(layers=[SLICES])
    with pytest.raises(UsageError, match="--spec-type draft-mtp: model has no layers that predict"):
        plan(model, MACHINE, config(spec_types=("draft-mtp",)))


@pytest.mark.parametrize("load_mode", ["streaming", "mmap"])
def test_a_draft_model_is_in_the_plan_whole(load_mode: str) -> None:
    model = moe_model(layers=[SLICES, SLICES])
    draft = moe_model(layers=[], dense_bytes=100 * MIB)
    settings = config(load_mode=load_mode, draft_model=Path("draft.gguf"), memory_bytes=4 * GIB)
    made = plan(model, MACHINE, settings, None, draft)
    assert made.parts.draft_bytes >= 100 * MIB
    plain = plan(model, MACHINE, config(load_mode=load_mode, memory_bytes=4 * GIB))
    assert plain.parts.draft_bytes == 0
    assert made.parts.total_bytes <= 4 * GIB


def test_tables_of_ngrams_are_counted() -> None:
    simple, mapped, modulo = (
        config(spec_types=(name,)) for name in ("ngram-simple", "ngram-map-k", "ngram-mod")
    )
    model = moe_model(layers=[SLICES])
    assert drafter_bytes(simple, model, None) == 0
    assert drafter_bytes(mapped, model, None) >= MIB
    assert drafter_bytes(replace(mapped, n_parallel=4), model, None) >= 4 * MIB
    assert drafter_bytes(modulo, model, None) >= 16 * MIB
    assert drafter_bytes(config(spec_types=("draft-mtp",)), model, None) == 3 * 4 * 512 * 2048
    assert draft_token_bytes(config()) == 0
    assert draft_token_bytes(simple) == 4
    assert draft_token_bytes(mapped) > 4
    assert plan(model, MACHINE, mapped).parts.draft_bytes >= MIB + 4096 * draft_token_bytes(mapped)


@pytest.mark.parametrize(
    ("settings", "sources", "n_draft", "decode_tokens"),
    [
        ({}, (), 0, 1),
        ({"spec_types": ("none",)}, (), 0, 1),
        ({"draft_model": Path("d")}, ("draft-simple",), 3, 4),
        ({"spec_types": ("ngram-mod",), "n_parallel": 2}, ("ngram-mod",), 8, 18),
        ({"spec_types": ("ngram-mod", "draft-mtp"), "n_draft_max": 5}, ("ngram-mod", "draft-mtp"), 5, 6),
    ],
)
def test_what_drafts(
    settings: dict[str, Any], sources: tuple[str, ...], n_draft: int, decode_tokens: int
) -> None:
    made = config(**settings)
    assert made.draft_sources == sources
    assert made.n_draft == n_draft
    assert made.decode_tokens == decode_tokens
    model = moe_model(layers=[SLICES])
    text = plan_text(
        model, plan(model, MACHINE, config()), "auto", Path("stats"), decode_tokens=decode_tokens
    )
    assert f"batch_tokens {max(16, decode_tokens)}" in text.splitlines()


def test_the_engine_is_asked_about_the_drafter_too() -> None:
    model = moe_model(layers=[SLICES], mtp_slices=SLICES)
    request = report_request(model, MACHINE, config(spec_types=("draft-mtp",)))
    assert (request.has_mtp, request.n_draft, request.draft_model) == (True, 3, None)
    with_model = report_request(model, MACHINE, config(draft_model=Path("d")), model)
    assert with_model.draft_model == str(MODEL_PATH)
    assert len(with_model.draft_identity) == 3
    changed = replace(model, gguf=replace(model.gguf, files=(replace(model.files[0], mtime_ns=99),)))
    assert report_request(model, MACHINE, config(draft_model=Path("d")), changed) != with_model


def test_two_contexts_take_both() -> None:
    one, other = ContextBytes(512, 64, 1, 2, 3, 4, 5), ContextBytes(512, 64, 10, 20, 30, 40, 50)
    assert added(one, other) == ContextBytes(512, 64, 11, 22, 33, 44, 55)
