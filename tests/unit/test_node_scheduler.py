"""The scheduler in the situations that users of such servers reported, and at its bounds."""

from __future__ import annotations

import pytest

from guanaco.node.events import (
    Asked,
    Cancel,
    Effect,
    Ended,
    Finished,
    Forward,
    Left,
    Load,
    LoadAsked,
    Loaded,
    LoadFailed,
    Refuse,
    Ticked,
    Unload,
    UnloadAsked,
)
from guanaco.node.instance import Instance, State
from guanaco.node.scheduler import Limits, Scheduler

_SIZES = {"chat": 8, "other": 7, "embedder": 1, "large": 11}
_ROOM = 10


def _node(limits: Limits | None = None, pinned: tuple[str, ...] = ()) -> Scheduler:
    def fits(model: str, others: frozenset[str]) -> bool:
        return _SIZES[model] + sum(_SIZES[other] for other in others) <= _ROOM

    instances = [Instance(name, size, is_pinned=name in pinned) for name, size in _SIZES.items()]
    return Scheduler(instances, fits, limits)


def _loaded(*models: str, limits: Limits | None = None, pinned: tuple[str, ...] = ()) -> Scheduler:
    node = _node(limits, pinned)
    for model in models:
        assert node.handle(LoadAsked(model, 0)) == [Load(model)]
        assert node.handle(Loaded(model, 0)) == []
    return node


def test_a_request_loads_its_model_and_then_runs() -> None:
    node = _node()
    assert node.handle(Asked("r", "chat", 0)) == [Load("chat")]
    assert node.handle(Loaded("chat", 5)) == [Forward("r", "chat")]
    assert node.handle(Asked("again", "chat", 6)) == [Forward("again", "chat")]
    assert node.handle(Finished("r", 7)) == []


def test_a_model_is_loaded_once_however_many_ask() -> None:
    node = _node()
    assert node.handle(Asked("1", "chat", 0)) == [Load("chat")]
    assert node.handle(Asked("2", "chat", 0)) == []
    assert node.handle(LoadAsked("chat", 0)) == []
    assert node.handle(Loaded("chat", 1)) == [Forward("1", "chat"), Forward("2", "chat")]


def test_two_models_asked_at_once_both_have_their_turn() -> None:
    node = _node()
    assert node.handle(Asked("1", "chat", 0)) == [Load("chat")]
    assert node.handle(Asked("2", "other", 0)) == []
    assert node.handle(Loaded("chat", 1)) == [Forward("1", "chat")], "not evicted before its own request"
    assert node.handle(Finished("1", 2)) == [Unload("chat")]
    assert node.handle(Ended("chat", 3)) == [Load("other")], "when the memory is really back"
    assert node.handle(Loaded("other", 4)) == [Forward("2", "other")]


def test_a_short_request_for_a_loaded_model_does_not_wait_behind_a_load() -> None:
    node = _loaded("embedder")
    assert node.handle(Asked("slow", "chat", 0)) == [Load("chat")]
    assert node.handle(Asked("short", "embedder", 0)) == [Forward("short", "embedder")]


def test_a_busy_model_is_never_unloaded_and_nobody_starves_for_it() -> None:
    node = _loaded("chat", limits=Limits(patience_s=10))
    node.handle(Asked("1", "chat", 0))
    assert node.handle(Asked("2", "other", 1)) == []
    assert node.handle(Asked("3", "chat", 5)) == [Forward("3", "chat")], "the older one has not waited long"
    assert node.handle(Asked("4", "chat", 12)) == [], "now it has"
    assert node.handle(Finished("1", 13)) == []
    assert node.handle(Finished("3", 14)) == [Unload("chat")]
    assert node.handle(Ended("chat", 15)) == [Load("other")]
    assert node.handle(Loaded("other", 16)) == [Forward("2", "other")]
    assert node.handle(Finished("2", 17)) == [Unload("other")], "for the one that waits since 12"
    assert node.handle(Ended("other", 18)) == [Load("chat")]
    assert node.handle(Loaded("chat", 19)) == [Forward("4", "chat")]


def test_who_waits_no_longer_holds_nobody_up() -> None:
    node = _loaded("chat", limits=Limits(patience_s=10))
    node.handle(Asked("1", "chat", 0))
    node.handle(Asked("2", "other", 0))
    assert node.handle(Asked("3", "chat", 20)) == []
    assert node.handle(Left("2", 21)) == [Forward("3", "chat")]


def test_an_embedder_does_not_push_out_a_chat_model() -> None:
    """There is room for both; and of two that could go, the cheaper one goes."""
    node = _loaded("chat")
    assert node.handle(Asked("e", "embedder", 0)) == [Load("embedder")]
    node.handle(Loaded("embedder", 1))
    node.handle(Finished("e", 2))
    sizes = {"a": 2, "b": 6, "c": 3}

    def fits(model: str, others: frozenset[str]) -> bool:
        return sizes[model] + sum(sizes[other] for other in others) <= _ROOM

    node = Scheduler([Instance(name, size) for name, size in sizes.items()], fits)
    for model in ("a", "b"):
        node.handle(LoadAsked(model, 0))
        node.handle(Loaded(model, 0))
    assert node.handle(Asked("1", "c", 1)) == [Unload("a")]


def test_nothing_is_unloaded_in_vain() -> None:
    node = _loaded("chat", "embedder", limits=Limits(patience_s=1000))
    node.handle(Asked("1", "chat", 0))
    assert node.handle(Asked("2", "other", 1)) == [], "the embedder's memory alone would not do"
    assert node.handle(Finished("1", 2)) == [Unload("chat")]


def test_a_model_that_would_fit_once_another_is_gone_is_not_refused() -> None:
    node = _loaded("chat")
    assert node.handle(Asked("1", "other", 0)) == [Unload("chat")]


def test_what_does_not_fit_alone_is_refused_at_once() -> None:
    (refused,) = _loaded("chat").handle(Asked("1", "large", 0))
    assert isinstance(refused, Refuse)
    assert (refused.status, refused.retry_after_s) == (507, None)
    (refused,) = _loaded("chat", pinned=("chat",)).handle(Asked("1", "other", 0))
    assert isinstance(refused, Refuse)
    assert "beside chat, which is pinned" in refused.reason


def test_a_client_that_goes_away_is_cancelled_wherever_it_is() -> None:
    node = _node()
    node.handle(Asked("waits", "chat", 0))
    assert node.handle(Left("waits", 1)) == []
    assert node.handle(Loaded("chat", 2)) == [], "nobody is sent"
    node.handle(Asked("runs", "chat", 3))
    assert node.handle(Left("runs", 4)) == [Cancel("runs", "chat")]
    assert node.handle(Finished("runs", 5)) == []
    assert node.handle(Left("runs", 6)) == [], "it had ended"
    assert node.instances["chat"].is_idle


def test_idle_time_counts_from_the_end_of_the_last_request() -> None:
    node = _loaded("chat", limits=Limits(idle_unload_s=60))
    node.handle(Asked("1", "chat", 10))
    assert node.handle(Ticked(200)) == [], "it answers"
    node.handle(Finished("1", 200))
    assert node.handle(Ticked(259)) == []
    assert node.handle(Ticked(260)) == [Unload("chat")]
    assert node.handle(Asked("2", "chat", 261)) == [], "it is being unloaded: not twice at once"
    assert node.handle(Ended("chat", 262)) == [Load("chat")]


def test_a_pinned_model_stays() -> None:
    node = _loaded("embedder", limits=Limits(idle_unload_s=60), pinned=("embedder",))
    assert node.handle(Ticked(1000)) == []
    assert node.handle(UnloadAsked("embedder", 1001)) == [Unload("embedder")], "but for who says so"


def test_a_failed_load_tells_everybody_why_and_may_be_tried_again() -> None:
    node = _node()
    node.handle(Asked("1", "chat", 0))
    node.handle(Asked("2", "chat", 0))
    refused = node.handle(LoadFailed("chat", "the file is damaged", 1))
    assert [(item.request, item.reason) for item in refused if isinstance(item, Refuse)] == [
        ("1", "the file is damaged"),
        ("2", "the file is damaged"),
    ]
    assert node.instances["chat"].failure == "the file is damaged"
    assert node.handle(Asked("3", "chat", 2)) == [Load("chat")]
    node.handle(Loaded("chat", 3))
    assert node.instances["chat"].failure is None


def test_a_worker_that_dies_is_started_again_for_who_waits() -> None:
    node = _loaded("chat", limits=Limits(patience_s=0))
    node.handle(Asked("1", "chat", 0))
    node.handle(Asked("2", "other", 0))
    node.handle(Asked("3", "chat", 1))
    assert node.handle(Ended("chat", 2)) == [Load("other")], "who waited first"
    assert node.handle(Finished("1", 2)) == [], "its stream broke with the worker"


def test_the_queue_has_an_end() -> None:
    node = _node(Limits(most_waiting=2, retry_after_s=7))
    node.handle(Asked("1", "chat", 0))
    node.handle(Asked("2", "chat", 0))
    effects: list[Effect] = node.handle(Asked("3", "other", 0))
    assert effects == [Refuse("3", 503, "too many requests wait already", 7)]
    node.handle(Loaded("chat", 1))
    assert node.handle(Asked("4", "chat", 2)) == [Forward("4", "chat")]


def test_unloading_by_hand_waits_for_what_runs() -> None:
    node = _node()
    node.handle(Asked("1", "chat", 0))
    assert node.handle(UnloadAsked("chat", 0)) == []
    assert node.handle(Loaded("chat", 1)) == [Forward("1", "chat")], "whose load it was"
    assert node.handle(Asked("2", "chat", 2)) == []
    assert node.handle(Finished("1", 3)) == [Unload("chat")]
    assert node.handle(Ended("chat", 4)) == [Load("chat")]
    assert node.handle(Loaded("chat", 5)) == [Forward("2", "chat")]


def test_impossible_steps_are_errors() -> None:
    node = _node()
    with pytest.raises(RuntimeError, match="cannot go from absent to ready"):
        node.handle(Loaded("chat", 0))
    with pytest.raises(KeyError):
        node.handle(Asked("1", "unknown", 0))
    assert node.instances["chat"].state is State.ABSENT


def test_a_younger_wish_does_not_take_the_room_an_older_one_is_promised() -> None:
    """other (7) waits for chat's (8) memory: one of 4 may not come before it, one of 1 may."""
    sizes = {"chat": 8, "other": 7, "four": 4, "one": 1}

    def fits(model: str, others: frozenset[str]) -> bool:
        return sizes[model] + sum(sizes[name] for name in others) <= _ROOM

    node = Scheduler([Instance(name, size) for name, size in sizes.items()], fits)
    node.handle(LoadAsked("chat", 0))
    node.handle(Loaded("chat", 0))
    assert node.handle(Asked("1", "other", 1)) == [Unload("chat")]
    assert node.handle(Asked("2", "four", 2)) == []
    assert node.handle(Ended("chat", 3)) == [Load("other")]
    node.handle(Loaded("other", 4))
    assert node.handle(Asked("3", "one", 5)) == [Load("one")], "there is room now, and beside four too"


def test_of_two_busy_models_one_becomes_idle_and_goes() -> None:
    """Equal in cost: which is cheaper changes with who was idle last, and neither may be taken again."""
    sizes = {"a": 5, "b": 5, "c": 5}

    def fits(model: str, others: frozenset[str]) -> bool:
        return sizes[model] + sum(sizes[name] for name in others) <= _ROOM

    node = Scheduler([Instance(name, size) for name, size in sizes.items()], fits, Limits(patience_s=0))
    for name in ("a", "b"):
        node.handle(LoadAsked(name, 0))
        node.handle(Loaded(name, 0))
        node.handle(Asked(f"{name}1", name, 1))
    node.handle(Asked("c1", "c", 2))
    node.handle(Asked("a2", "a", 3))
    node.handle(Asked("b2", "b", 3))
    assert Unload("a") in node.handle(Finished("a1", 4))


def test_a_failed_load_forgets_that_it_was_to_go() -> None:
    node = _node()
    node.handle(LoadAsked("chat", 0))
    node.handle(UnloadAsked("chat", 0))
    node.handle(LoadFailed("chat", "no", 1))
    node.handle(Asked("1", "chat", 2))
    node.handle(Loaded("chat", 3))
    assert node.handle(Asked("2", "chat", 4)) == [Forward("2", "chat")]
