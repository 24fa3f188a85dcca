"""The cache line every 30 seconds of activity. Owns one thread that only reads counters."""

from __future__ import annotations

import threading
from collections.abc import Callable

from guanaco.engine.native import NativeStats

TICK_S = 1.0
PERIOD_S = 30.0


class Activity:
    """Counts the seconds in which experts were used; ``step`` is True when a line is due. No clock inside."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._active_s = 0.0
        self._accesses = 0

    def step(self, accesses: int, elapsed_s: float) -> bool:
        if accesses != self._accesses:
            self._active_s += elapsed_s
        self._accesses = accesses
        if self._active_s < self._period_s:
            return False
        self._active_s = 0.0
        return True


class ActivityReporter:
    """Emits while the context is open."""

    def __init__(self, read: Callable[[], NativeStats | None], emit: Callable[[NativeStats], None]) -> None:
        self._read = read
        self._emit = emit
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="activity", daemon=True)

    def __enter__(self) -> ActivityReporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(TICK_S)

    def _run(self) -> None:
        activity = Activity(PERIOD_S)
        while not self._done.wait(TICK_S):
            stats = self._read()
            if stats is not None and activity.step(stats.accesses, TICK_S):
                self._emit(stats)
