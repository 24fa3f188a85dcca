"""The state of one model of a node: absent, loading, ready or unloading, who uses it and who waits for it.

Owns the transitions and refuses those that cannot be. Leaves deciding to ``scheduler``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    ABSENT = "absent"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"


@dataclass
class Instance:
    """One model. ``waiting`` and ``running`` are requests, the former in the order they came."""

    model: str
    reload_bytes: int  # what loading it again reads
    is_pinned: bool = False  # never unloaded for others, nor for being idle
    state: State = State.ABSENT
    waiting: dict[str, int] = field(default_factory=dict)  # request -> its place among all that ever came
    running: set[str] = field(default_factory=set)
    wanted: int | None = None  # its place, when somebody wants it loaded without a request
    is_leaving: bool = False  # somebody wants it gone
    is_fresh: bool = False  # loaded for a request that has not ended yet
    idle_since_s: float = 0.0
    failure: str | None = None  # why the last load did not work

    @property
    def holds_memory(self) -> bool:
        return self.state is not State.ABSENT

    @property
    def is_idle(self) -> bool:
        """Loaded, and nothing of it is in use or about to be."""
        return self.state is State.READY and not self.running and not self.is_fresh

    @property
    def first_place(self) -> int | None:
        """Of the oldest wish for it that is not met; None: there is none."""
        places = [*self.waiting.values(), *([] if self.wanted is None else [self.wanted])]
        return min(places, default=None)

    def to(self, state: State) -> None:
        """Raises RuntimeError for a step that no worker can take."""
        if (self.state, state) not in _STEPS:
            raise RuntimeError(f"{self.model} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def settle(self, at_s: float) -> None:
        """After a request has gone, one way or the other."""
        if not self.running and not self.waiting:
            self.is_fresh = False
        if not self.running:
            self.idle_since_s = at_s


_STEPS = {
    (State.ABSENT, State.LOADING),
    (State.LOADING, State.READY),
    (State.LOADING, State.ABSENT),  # failed
    (State.READY, State.UNLOADING),
    (State.READY, State.ABSENT),  # died
    (State.UNLOADING, State.ABSENT),
}
