"""Which model is loaded, unloaded and asked when: events in, effects out, no clock, no input or output.

Owns every instance's state and the order of requests. Used by one owner loop. What it holds to:

- A model is loaded once, however many ask; requests for a loaded model never wait behind a load.
- A busy model is never unloaded, nor one whose load was for a request that has not ended yet.
- Models make room only when that is enough; nothing is unloaded in vain.
- Who asked first is served first. When an older request has waited ``patience_s`` for the memory of a busy
  model, newer requests of that model wait until the older one has had its turn: nobody starves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from guanaco.node.eviction import Candidate, Fits, cheapest_set
from guanaco.node.instance import Instance, State

_UNAVAILABLE, _INSUFFICIENT = 503, 507


@dataclass(frozen=True)
class Limits:
    most_waiting: int = 64  # requests of all models together
    patience_s: float = 10.0  # before a busy model takes no new requests for an older one's sake
    idle_unload_s: float | None = None  # None: never only for being idle
    retry_after_s: int = 5


class Scheduler:
    """``fits(model, others)``: whether a model can be loaded beside the others, as they are."""

    def __init__(self, instances: Sequence[Instance], fits: Fits, limits: Limits | None = None) -> None:
        self._instances = {instance.model: instance for instance in instances}
        self._fits = fits
        self._limits = limits or Limits()
        self._model_of: dict[str, str] = {}  # of requests that wait or run
        self._asked_s: dict[int, float] = {}  # when a place was taken, while it is
        self._next_place = 0
        self._now_s = 0.0
        self._effects: list[Effect] = []

    @property
    def instances(self) -> Mapping[str, Instance]:
        return self._instances

    @property
    def n_waiting(self) -> int:
        return sum(len(instance.waiting) for instance in self._instances.values())

    def handle(self, event: Event) -> list[Effect]:
        """What to do now. Raises KeyError for a model or a request that was never named."""
        self._now_s = max(self._now_s, event.at_s)
        self._note(event)
        self._advance()
        effects, self._effects = self._effects, []
        return effects

    # --- events

    def _note(self, event: Event) -> None:
        match event:
            case Asked():
                self._asked(event)
            case Left():
                self._left(event)
            case Finished():
                self._finished(event)
            case Loaded():
                self._loaded(event)
            case LoadFailed():
                self._load_failed(event)
            case Ended():
                self._ended(event)
            case LoadAsked():
                self._load_asked(event)
            case UnloadAsked():
                self._unload_asked(event)
            case Ticked():
                self._ticked(event)

    def _asked(self, event: Asked) -> None:
        instance = self._instances[event.model]
        self._model_of[event.request] = event.model
        instance.waiting[event.request] = self._take_place()
        if self.n_waiting > self._limits.most_waiting and not self._is_open(instance, self._drained()):
            self._refuse(instance, event.request, _UNAVAILABLE, "too many requests wait already")

    def _left(self, event: Left) -> None:
        model = self._model_of.get(event.request)
        if model is None:
            return  # it had just ended
        instance = self._instances[model]
        if event.request in instance.waiting:
            self._forget(instance, event.request)
            instance.settle(event.at_s)
        else:
            self._effects.append(Cancel(event.request, model))

    def _finished(self, event: Finished) -> None:
        model = self._model_of.pop(event.request, None)
        if model is None:
            return  # its worker had died before
        instance = self._instances[model]
        instance.running.discard(event.request)
        instance.is_fresh = False
        instance.settle(event.at_s)

    def _loaded(self, event: Loaded) -> None:
        instance = self._instances[event.model]
        instance.to(State.READY)
        instance.failure = None
        self._unwant(instance)
        instance.is_fresh = bool(instance.waiting)
        instance.idle_since_s = event.at_s

    def _load_failed(self, event: LoadFailed) -> None:
        instance = self._instances[event.model]
        instance.to(State.ABSENT)
        instance.failure = event.reason
        instance.is_leaving = instance.is_fresh = False
        self._unwant(instance)
        for request in list(instance.waiting):
            self._refuse(instance, request, _UNAVAILABLE, event.reason, may_retry=False)

    def _ended(self, event: Ended) -> None:
        instance = self._instances[event.model]
        instance.to(State.ABSENT)
        for request in instance.running:  # their streams broke with the worker
            self._model_of.pop(request, None)
        instance.running.clear()
        instance.is_leaving = instance.is_fresh = False

    def _load_asked(self, event: LoadAsked) -> None:
        instance = self._instances[event.model]
        instance.is_leaving = False
        if instance.wanted is None and instance.state in (State.ABSENT, State.UNLOADING):
            instance.wanted = self._take_place()

    def _unload_asked(self, event: UnloadAsked) -> None:
        instance = self._instances[event.model]
        self._unwant(instance)
        instance.is_leaving = instance.holds_memory

    def _ticked(self, event: Ticked) -> None:
        after_s = self._limits.idle_unload_s
        for instance in self._instances.values():
            if (
                after_s is not None
                and instance.is_idle
                and not instance.waiting
                and not instance.is_pinned
                and event.at_s - instance.idle_since_s >= after_s
            ):
                self._unload(instance)

    # --- decisions

    def _advance(self) -> None:
        """Whatever can be done now, oldest wish first."""
        for instance in self._instances.values():
            if instance.is_leaving and instance.is_idle:
                self._unload(instance)
        # Before anybody gets a turn: a model that became idle for an older wish is not taken again.
        self._make_room()
        drained = self._drained()
        for instance in self._instances.values():
            if self._is_open(instance, drained):
                for request in list(instance.waiting):
                    self._forward(instance, request)

    def _make_room(self) -> None:
        """Loads what fits; for what does not, unloads idle models where that is enough.

        ``future`` is what will be held when all older wishes are met: a younger one must not be in its way.
        """
        future = self._holders() - self._unloading()
        for instance in self._absent_wanted():
            model = instance.model
            if self._fits(model, future):
                if self._fits(model, self._holders()):
                    instance.to(State.LOADING)
                    self._effects.append(Load(model))
                future |= {model}  # now, or as soon as their memory is back
                continue
            victims = self._victims(model, future, is_idle_only=True)
            for name in sorted(victims or ()):
                self._unload(self._instances[name])
            if victims is None:
                victims = self._victims(model, future, is_idle_only=False)
            if victims is not None:
                future = (future - victims) | {model}
            elif all(self._instances[name].holds_memory for name in future):
                self._refuse_all(instance)

    def _victims(self, model: str, held: frozenset[str], *, is_idle_only: bool) -> frozenset[str] | None:
        """The cheapest of the models in ``held`` to unload; None when that is not enough."""
        candidates = [
            Candidate(other.model, other.reload_bytes, other.idle_since_s)
            for other in self._instances.values()
            if other.model in held
            and other.holds_memory
            and not other.is_pinned
            and (other.is_idle or not is_idle_only)
        ]
        return cheapest_set(model, held, candidates, self._fits)

    def _drained(self) -> frozenset[str]:
        """Busy models that take no new request, because an older wish has waited long for their memory."""
        drained: frozenset[str] = frozenset()
        for instance in self._absent_wanted():
            place = instance.first_place
            if place is None or self._now_s - self._asked_s[place] < self._limits.patience_s:
                continue
            held = self._holders() - self._unloading()
            if not self._fits(instance.model, held):
                drained |= self._victims(instance.model, held, is_idle_only=False) or frozenset()
        return drained

    def _is_open(self, instance: Instance, drained: frozenset[str]) -> bool:
        """Whether its requests go to its worker. One that was just loaded has its first ones in any case."""
        if instance.state is not State.READY:
            return False
        is_first_turn = instance.is_fresh and not instance.running
        return is_first_turn or not (instance.is_leaving or instance.model in drained)

    def _absent_wanted(self) -> list[Instance]:
        """Models to load, the oldest wish first."""
        wanted = [
            (place, instance)
            for instance in self._instances.values()
            if instance.state is State.ABSENT and (place := instance.first_place) is not None
        ]
        return [instance for _, instance in sorted(wanted, key=lambda pair: pair[0])]

    def _holders(self) -> frozenset[str]:
        return frozenset(name for name, instance in self._instances.items() if instance.holds_memory)

    def _unloading(self) -> frozenset[str]:
        return frozenset(
            name for name, instance in self._instances.items() if instance.state is State.UNLOADING
        )

    # --- steps

    def _take_place(self) -> int:
        place, self._next_place = self._next_place, self._next_place + 1
        self._asked_s[place] = self._now_s
        return place

    def _forget(self, instance: Instance, request: str) -> None:
        del self._asked_s[instance.waiting.pop(request)]
        self._model_of.pop(request, None)

    def _unwant(self, instance: Instance) -> None:
        if instance.wanted is not None:
            del self._asked_s[instance.wanted]
            instance.wanted = None

    def _forward(self, instance: Instance, request: str) -> None:
        del self._asked_s[instance.waiting.pop(request)]
        instance.running.add(request)
        self._effects.append(Forward(request, instance.model))

    def _unload(self, instance: Instance) -> None:
        instance.to(State.UNLOADING)
        instance.is_leaving = False
        self._effects.append(Unload(instance.model))

    def _refuse(
        self, instance: Instance, request: str, status: int, reason: str, *, may_retry: bool = True
    ) -> None:
        self._forget(instance, request)
        self._effects.append(
            Refuse(request, status, reason, self._limits.retry_after_s if may_retry else None)
        )

    def _refuse_all(self, instance: Instance) -> None:
        """It does not fit even alone."""
        reason = "it does not fit, whatever else is unloaded"
        pinned = [other.model for other in self._instances.values() if other.is_pinned and other.holds_memory]
        if pinned:
            reason = f"it does not fit beside {', '.join(sorted(pinned))}, which is pinned"
        instance.failure = reason
        self._unwant(instance)
        for request in list(instance.waiting):
            self._refuse(instance, request, _INSUFFICIENT, f"{instance.model}: {reason}", may_retry=False)
