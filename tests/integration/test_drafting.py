"""Drafts: the same text as the whole model drafting in the same way, and rest when they do not pay.

Drafting always on both sides, so that batches are the same: what is tried is streaming. A model as its own
draft is right all the time; one of other weights hardly ever.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guanaco.cli.demo import demo_model
from guanaco.cli.loading import prepare
from guanaco.config import LoadConfig
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.engine.native import DraftCounts, NativeStats
from guanaco.errors import BudgetError, EngineError, UsageError
from guanaco.gguf.reader import read_gguf
from guanaco.planner import slots
from guanaco.units import GIB, MIB
from tests.support.tiny_models import build, spec_named

MTP_ARCHS = ("qwen35moe", "glm4moe")
N_PROMPTS, N_TOKENS = 4, 48


@contextmanager
def loaded(path: Path, **settings: Any) -> Iterator[Engine]:
    extra = {"testing": True} if settings.pop("testing", False) else {}
    config = LoadConfig(
        path, **{"memory_bytes": 2 * GIB, "n_ctx": 512, "n_threads": 2, "cache_ram_bytes": 0, **settings}
    )
    loadable = prepare(config)
    # Repacked weights round differently.
    plan = replace(loadable.plan, no_extra_bufts=True)
    with Engine(EngineSpec(loadable.model, config, plan, warmup=False, native_extra=extra)) as engine:
        engine.start()
        engine.wait_ready()
        yield engine


def answers(engine: Engine, n_vocab: int, n_tokens: int = N_TOKENS) -> list[list[int]]:
    rng = random.Random(3)
    found = []
    for _ in range(N_PROMPTS):
        prompt = [rng.randrange(3, n_vocab) for _ in range(rng.randint(5, 60))]
        body = {
            "prompt": prompt, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True,
            "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        found.append(engine.client().call("/completion", body)["tokens"])
    assert all(len(tokens) == n_tokens for tokens in found)
    return found


def counted(engine: Engine) -> tuple[NativeStats, DraftCounts]:
    stats, drafting = engine.stats(), engine.drafting()
    assert stats is not None
    assert drafting is not None
    return stats, drafting


def same_text_streamed(path: Path, n_vocab: int, max_experts: int, **settings: Any) -> DraftCounts:
    drafts = {"draft_always": True, **settings}
    with loaded(path, load_mode="mmap", **drafts) as engine:
        expected = answers(engine, n_vocab)
        resident = engine.drafting()
        assert engine.stats() is None, "nothing is streamed"
    with loaded(path, load_mode="streaming", max_experts=max_experts, **drafts) as engine:
        assert answers(engine, n_vocab) == expected
        stats, streamed = counted(engine)
    assert replace(streamed, accesses=0, hits=0) == resident, "drafts were the same"
    assert stats.unmanaged == 0
    assert stats.misses > 0
    assert streamed.rests == 0
    assert streamed.steps > 0
    return streamed


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"])
def test_drafts_from_earlier_text(kind: str) -> None:
    """Of a story that is told twice."""
    body = {"n_predict": 60, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    found = []
    for settings in ({"load_mode": "mmap"}, {"load_mode": "streaming", "max_experts": 12}):
        with loaded(demo_model(), **settings, spec_types=(kind,), draft_always=True) as engine:
            client = engine.client()
            begin = client.tokenize("Once upon a time there was a small dog who")
            story = client.call("/completion", {**body, "prompt": begin})["tokens"]
            again = client.call("/completion", {**body, "prompt": [*begin, *story, *begin]})
            drafting = engine.drafting()
        assert drafting is not None
        assert drafting.accepted >= again["timings"]["draft_n_accepted"] > 20
        found.append((again["tokens"], replace(drafting, accesses=0, hits=0)))
    assert found[0] == found[1]


@pytest.mark.parametrize("arch", MTP_ARCHS)
def test_drafts_by_the_models_own_layers(tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Usual models have more experts in a layer than a wave has room for; these have 16.
    monkeypatch.setattr(slots, "_WAVE_SLOTS", 5)
    path = build(spec_named(arch), tmp_path)
    counts = same_text_streamed(path, 380, 5, spec_types=("draft-mtp",))
    with loaded(path, load_mode="streaming", max_experts=5, spec_types=("draft-mtp",)) as engine:
        plan, model = engine.spec.plan, engine.spec.model_map
        answers(engine, 380)
        stats, _ = counted(engine)
        mtp = [index for index, group in enumerate(model.groups) if group.is_mtp]
        own = {plan.group_class[index] for index in mtp}
        others = set(plan.group_class) - own
        assert own, "the layers that draft have experts"
        assert not own & {plan.group_class[i] for i, group in enumerate(model.groups) if not group.is_mtp}
        assert -1 not in own | others
        assert stats.groups_bound >= stats.groups_expected
    assert counts.steps > 0


def test_drafts_by_a_model(tmp_path: Path) -> None:
    """A model as its own draft is right all the time, and its experts are nobody's slots."""
    path = build(spec_named("qwen3moe"), tmp_path)
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(path.read_bytes())
    counts = same_text_streamed(path, 380, 4, draft_model=draft)
    assert counts.accepted > counts.steps


def test_drafts_that_are_never_right_rest(tmp_path: Path) -> None:
    path = build(spec_named("qwen3moe"), tmp_path)
    draft = build(spec_named("qwen3moe"), tmp_path, seed=9)
    with loaded(path, load_mode="streaming", max_experts=4, draft_model=draft) as engine:
        answers(engine, 380, 150)
        _, drafting = counted(engine)
    assert drafting.steps > 300
    assert drafting.rests > drafting.steps // 2


def test_a_slot_begins_anew_after_drafts_rested_in_it(tmp_path: Path) -> None:
    """Two clients draft and rest; one ends early, and the next in its slot gets what it gets alone."""
    path = build(spec_named("qwen3moe"), tmp_path)
    draft = build(spec_named("qwen3moe"), tmp_path, seed=9)
    settings = {"load_mode": "streaming", "max_experts": 8, "n_parallel": 2, "n_ctx": 2048}
    body = {"temperature": 0, "ignore_eos": True, "return_tokens": True, "cache_prompt": False}
    with loaded(path, **settings, draft_model=draft) as engine:
        client = engine.client()
        alone = client.call("/completion", {**body, "prompt": [9, 8, 7], "n_predict": 24, "id_slot": 1})
        long = {**body, "prompt": [5, 6, 7, 8], "n_predict": 700, "id_slot": 0}
        other = threading.Thread(target=lambda: engine.client().call("/completion", long), daemon=True)
        other.start()
        for n_tokens in range(40, 70, 3):
            # It leaves in the middle of its answer.
            left = {**body, "prompt": [4, 5], "n_predict": 400, "id_slot": 1}
            with closing(iter(client.stream("/completion", left))) as stream:  # type: ignore[type-var]
                for _ in range(n_tokens):
                    next(stream)
            again = client.call("/completion", {**body, "prompt": [9, 8, 7], "n_predict": 24, "id_slot": 1})
            assert again["tokens"] == alone["tokens"]
        other.join(60)
        _, drafting = counted(engine)
    assert drafting.rests > 0


def wrong_draft(folder: Path) -> Path:
    """The demo model with other texts' words in place of its own: never right, and as slow."""
    source = demo_model()
    tensor = next(item for item in read_gguf(source).tensors if item.name == "token_embd.weight")
    data = bytearray(source.read_bytes())
    words = data[tensor.offset : tensor.offset + tensor.nbytes]
    at = 97 * tensor.nbytes // tensor.dims[-1]
    data[tensor.offset : tensor.offset + tensor.nbytes] = words[at:] + words[:at]
    path = folder / "wrong.gguf"
    path.write_bytes(data)
    return path


@contextmanager
def telling_stories(**drafts: Any) -> Iterator[tuple[NativeStats, NativeStats, DraftCounts | None]]:
    """Counters before and after four stories of the demo model, with slots for 10 of 32 experts a layer."""
    settings = {"load_mode": "streaming", "max_experts": 10, "pilot": "off", **drafts}
    with loaded(demo_model(), memory_bytes=1 * GIB, **settings) as engine:
        before = engine.stats()
        for text in ("Once upon a time", "The dog ran", "One day a girl", "There was a cat"):
            body = {"prompt": text, "n_predict": 400, "temperature": 0, "ignore_eos": True}
            engine.client().call("/completion", body)
        after, drafting = engine.stats(), engine.drafting()
        assert before is not None
        assert after is not None
        yield before, after, drafting


def hit_rate(**drafts: Any) -> float:
    with telling_stories(**drafts) as (before, after, _):
        return (after.hits - before.hits) / (after.accesses - before.accesses)


def test_hits_fall_by_three_points_at_most(tmp_path: Path) -> None:
    """With drafts that are right: of what a whole batch selects more is there than of what one token does.

    And with drafts that are not, which rest.
    """
    without = hit_rate()
    assert hit_rate(draft_model=demo_model(), draft_always=True) >= without - 0.03
    assert hit_rate(draft_model=wrong_draft(tmp_path)) >= without - 0.03


def test_wrong_drafts_pass_through_a_few_slots(tmp_path: Path) -> None:
    """They never rest here: what only they ask for is not kept, and nothing is learned from it.

    The seven experts of a layer that are there for them at a time are of 40; of a usual model's they are few.
    """
    without = hit_rate()
    with telling_stories(draft_model=wrong_draft(tmp_path), draft_always=True) as (before, after, drafting):
        assert drafting is not None
        accesses = after.accesses - before.accesses - drafting.accesses
        assert drafting.accesses > accesses
        own = (after.hits - before.hits - drafting.hits) / accesses
    assert drafting.rests == 0
    assert own >= without - 0.08
    assert drafting.hits / drafting.accesses < own, "of experts in use there are more"


def test_a_draft_model_is_part_of_the_budget(tmp_path: Path) -> None:
    path = build(spec_named("qwen3moe"), tmp_path)
    small = prepare(LoadConfig(path, memory_bytes=GIB, load_mode="streaming")).plan
    with_draft = prepare(
        LoadConfig(path, memory_bytes=GIB, load_mode="streaming", draft_model=demo_model())
    ).plan
    assert with_draft.parts.draft_bytes >= demo_model().stat().st_size
    assert with_draft.parts.kv_bytes > small.parts.kv_bytes, "with a context of its own"
    assert with_draft.parts.total_bytes <= GIB
    with pytest.raises(BudgetError) as caught:
        prepare(LoadConfig(path, memory_bytes=170 * MIB, load_mode="streaming", draft_model=demo_model()))
    assert int(caught.value.details["needed_bytes"]) > 170 * MIB


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = build(spec_named("qwen3moe"), tmp_path)
    with (
        pytest.raises(EngineError, match="cannot draft with the draft model"),
        loaded(path, load_mode="streaming", draft_model=demo_model()),
    ):
        pass


def test_a_model_without_such_layers_cannot_draft_by_them(tmp_path: Path) -> None:
    path = build(spec_named("qwen3moe"), tmp_path)
    with pytest.raises(UsageError, match="has no layers that predict further tokens"):
        prepare(LoadConfig(path, spec_types=("draft-mtp",)))


@pytest.mark.parametrize("arch", MTP_ARCHS)
def test_several_requests_draft_at_once(tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by the model's own layers; afterwards one alone gets what the resident engine gives it."""
    monkeypatch.setattr(slots, "_WAVE_SLOTS", 5)
    path = build(spec_named(arch), tmp_path)
    drafts = {"spec_types": ("draft-mtp",), "draft_always": True, "n_parallel": 3, "n_ctx": 1536}
    with loaded(path, load_mode="mmap", **drafts) as engine:
        expected = answers(engine, 380)
    with loaded(path, load_mode="streaming", max_experts=5, **drafts) as engine:
        rng = random.Random(5)
        prompts = [[rng.randrange(3, 380) for _ in range(rng.randint(4, 90))] for _ in range(9)]
        found: list[int] = []

        def ask(prompt: list[int]) -> None:
            body = {"prompt": prompt, "n_predict": 40, "temperature": 0, "ignore_eos": True}
            found.append(engine.client().call("/completion", body)["tokens_predicted"])

        threads = [threading.Thread(target=ask, args=(prompt,), daemon=True) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert found == [40] * 9
        assert answers(engine, 380) == expected
        stats, drafting = counted(engine)
    assert stats.unmanaged == 0
    assert drafting.steps > 0


@pytest.mark.parametrize("arch", MTP_ARCHS)
def test_a_read_that_fails_under_drafts_fails_its_request_alone(
    tmp_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_WAVE_SLOTS", 5)
    path = build(spec_named(arch), tmp_path)
    drafts = {"spec_types": ("draft-mtp",), "draft_always": True}
    with loaded(path, load_mode="mmap", **drafts) as engine:
        expected = answers(engine, 380)
    with loaded(path, testing=True, load_mode="streaming", max_experts=5, **drafts) as engine:
        body = {"prompt": [5, 6, 7], "n_predict": 60, "temperature": 0, "ignore_eos": True}
        for n_slices in (1, 2, 5):
            engine.control("fail_slices", n_slices)
            with pytest.raises(EngineError, match="reading expert"):
                engine.client().call("/completion", body)
            engine.control("fail_slices", 0)
            assert answers(engine, 380) == expected
        assert engine.is_running
