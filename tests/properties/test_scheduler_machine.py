"""The scheduler against a world that answers late and in any order.

The world has memory of its own and refuses to be misused: a second worker of a model, a worker stopped
while it answers, more memory than there is. In the end everything that can be answered has been.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from guanaco.node.events import (
    Asked,
    Cancel,
    Effect,
    Ended,
    Event,
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

_ROOM = 10
_MODELS = ("a", "b", "c", "d", "huge")
_LIMITS = Limits(most_waiting=6, patience_s=5.0, idle_unload_s=60.0)


class Node(RuleBasedStateMachine):
    @initialize(
        sizes=st.lists(st.integers(1, 8), min_size=4, max_size=4), pinned=st.sampled_from([None, "a"])
    )
    def start(self, sizes: list[int], pinned: str | None) -> None:
        self.sizes = dict(zip(_MODELS, [*sizes, _ROOM + 1], strict=True))
        instances = [Instance(name, self.sizes[name], is_pinned=name == pinned) for name in _MODELS]
        self.scheduler = Scheduler(instances, self.fits, _LIMITS)
        self.now_s = 0.0
        self.next_request = 0
        self.waiting: dict[str, tuple[str, float]] = {}  # of the world's own making: model, when it was asked
        self.running: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.loading: list[str] = []
        self.loaded: list[str] = []
        self.unloading: list[str] = []
        self.served_since_load: dict[str, bool] = {}
        self.loaded_for: dict[str, bool] = {}

    def fits(self, model: str, others: frozenset[str]) -> bool:
        return self.sizes[model] + sum(self.sizes[other] for other in others) <= _ROOM

    def tell(self, event: Event) -> None:
        for effect in self.scheduler.handle(event):
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Load(model):
                assert model not in [*self.loading, *self.loaded, *self.unloading], "loaded twice"
                self.loading.append(model)
            case Unload(model):
                assert model in self.loaded
                assert model not in self.running.values(), "stopped while it answers"
                assert self.served_since_load[model] or not self.loaded_for[model], "before its own request"
                self.loaded.remove(model)
                self.unloading.append(model)
            case Forward(request, model):
                assert model in self.loaded, "sent to a worker that is not there"
                assert self.waiting.pop(request)[0] == model
                self.running[request] = model
            case Cancel(request, model):
                assert self.running[request] == model
                self.cancelled.add(request)
            case Refuse(request, status, reason, retry_after_s):
                del self.waiting[request]
                assert reason
                assert status in (503, 507)
                assert status == 503 or retry_after_s is None

    @rule(model=st.sampled_from(_MODELS))
    def ask(self, model: str) -> None:
        request = f"r{self.next_request}"
        self.next_request += 1
        self.waiting[request] = (model, self.now_s)
        instances = self.scheduler.instances
        was_open = model in self.loaded and not instances[model].is_leaving
        is_wanted = any(instance.wanted is not None for instance in instances.values())
        older = [name for name, (other, _) in self.waiting.items() if other != model]
        self.tell(Asked(request, model, self.now_s))
        if was_open and not older and not is_wanted:
            assert request in self.running, "a request for a loaded model waited for nobody"

    @rule(choice=st.randoms(use_true_random=False))
    def leave(self, choice: object) -> None:
        requests = sorted([*self.waiting, *(name for name in self.running if name not in self.cancelled)])
        if not requests:
            return
        request = choice.choice(requests)  # type: ignore[attr-defined]
        self.waiting.pop(request, None)
        self.tell(Left(request, self.now_s))
        assert request in self.cancelled or request not in self.running, "it goes on for nobody"

    @precondition(lambda self: self.running)
    @rule(choice=st.randoms(use_true_random=False))
    def finish(self, choice: object) -> None:
        request = choice.choice(sorted(self.running))  # type: ignore[attr-defined]
        self.end(request)

    def end(self, request: str) -> None:
        self.served_since_load[self.running.pop(request)] = True
        self.tell(Finished(request, self.now_s))

    @precondition(lambda self: self.loading)
    @rule(choice=st.randoms(use_true_random=False), works=st.sampled_from([True, True, True, False]))
    def load_ends(self, choice: object, works: bool) -> None:
        model = choice.choice(self.loading)  # type: ignore[attr-defined]
        self.loading.remove(model)
        if not works:
            self.tell(LoadFailed(model, "it was damaged", self.now_s))
            assert model not in [name for name, _ in self.waiting.values()], "it waits for what cannot come"
            return
        self.loaded.append(model)
        self.served_since_load[model] = False
        self.loaded_for[model] = model in [name for name, _ in self.waiting.values()]
        self.tell(Loaded(model, self.now_s))

    @precondition(lambda self: self.unloading)
    @rule(choice=st.randoms(use_true_random=False))
    def unload_ends(self, choice: object) -> None:
        model = choice.choice(self.unloading)  # type: ignore[attr-defined]
        self.unloading.remove(model)
        self.tell(Ended(model, self.now_s))

    @precondition(lambda self: self.loaded)
    @rule(choice=st.randoms(use_true_random=False))
    def worker_dies(self, choice: object) -> None:
        model = choice.choice(self.loaded)  # type: ignore[attr-defined]
        self.loaded.remove(model)
        self.running = {request: name for request, name in self.running.items() if name != model}
        self.tell(Ended(model, self.now_s))

    @rule(model=st.sampled_from(_MODELS), wants=st.booleans())
    def administer(self, model: str, wants: bool) -> None:
        if wants:
            self.tell(LoadAsked(model, self.now_s))
            return
        # Who says so may unload what was loaded for somebody who has not had an answer yet, and gone.
        self.tell(UnloadAsked(model, self.now_s))

    @rule(step_s=st.sampled_from([0.5, 6.0, 100.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s
        self.tell(Ticked(self.now_s))

    @invariant()
    def memory_is_enough(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        held = [*self.loading, *self.loaded, *self.unloading]
        assert sum(self.sizes[model] for model in held) <= _ROOM
        for name, instance in self.scheduler.instances.items():
            places = {
                State.LOADING: self.loading,
                State.READY: self.loaded,
                State.UNLOADING: self.unloading,
            }
            assert [state for state, models in places.items() if name in models] == (
                [instance.state] if instance.holds_memory else []
            )
            assert set(instance.waiting) == {r for r, (model, _) in self.waiting.items() if model == name}
        assert self.scheduler.n_waiting <= _LIMITS.most_waiting

    def teardown(self) -> None:
        """Everything that goes on ends in the end; then nobody waits any more."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200):
            if not (self.waiting or self.running or self.loading or self.unloading):
                break
            self.now_s += 6.0
            self.tell(Ticked(self.now_s))
            for model in list(self.loading):
                self.loading.remove(model)
                self.loaded.append(model)
                self.served_since_load[model] = False
                self.loaded_for[model] = model in [name for name, _ in self.waiting.values()]
                self.tell(Loaded(model, self.now_s))
            for model in list(self.unloading):
                self.unloading.remove(model)
                self.tell(Ended(model, self.now_s))
            for request in list(self.running):
                self.end(request)
        assert not self.waiting, "somebody waits for ever"


Node.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestNode = Node.TestCase
