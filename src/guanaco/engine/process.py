"""A worker process and the three pipes to it: settings in, events and log out.

Owns starting, watching and ending it. An end that nobody asked for becomes a ``WorkerDiedError`` with its
reason. Knows nothing of models. Create it in the main thread: the kernel ends a worker together with the
thread that made it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from guanaco.engine.exits import describe_exit, errors_of
from guanaco.errors import EngineError, WorkerDiedError
from guanaco.hardware.cgroup import own_cgroup

logger = logging.getLogger("guanaco.engine")
_TAIL_LINES = 40
_LOG_PATIENCE_S = 1.0
_LAST_WORDS_S = 1.0  # what it complained about longer before a signal ended it was about something else
_OWN_WARNING = "[Guanaco Storage] warning: "  # of the native library: for the user, not only with -v


class WorkerProcess:
    """Started by its constructor. Its threads only read; ``stop`` may be called from any thread and twice."""

    def __init__(
        self,
        command: Sequence[str],
        settings: str,
        environment: Mapping[str, str],
        on_death: Callable[[WorkerDiedError], None] | None = None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start workers from the main thread: they end with the thread that made them")
        self.died: WorkerDiedError | None = None
        self._on_death = on_death
        self._is_stopping = False
        self._ended = threading.Event()
        self._tail: deque[tuple[float, str]] = deque(maxlen=_TAIL_LINES)
        self._oom_kills_before = _oom_kills()

        settings_read, settings_write = os.pipe()
        self._events, events_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(settings_read), str(events_write), str(os.getpid())],
                pass_fds=(settings_read, events_write),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as problem:
            os.close(settings_write)
            os.close(self._events)
            raise EngineError(f"the worker {command[0]} cannot be started: {problem.strerror}") from None
        finally:
            os.close(settings_read)
            os.close(events_write)
        self._log_reader = threading.Thread(target=self._read_log, name="worker-log", daemon=True)
        self._log_reader.start()
        threading.Thread(target=self._watch, name="worker-watch", daemon=True).start()
        with contextlib.suppress(BrokenPipeError), os.fdopen(settings_write, "w") as pipe:
            pipe.write(settings)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def events(self, tick_s: float) -> Iterator[dict[str, Any] | None]:
        """Events as they come, None at every tick without one; ends with the worker."""
        pending = b""
        with os.fdopen(self._events, "rb", buffering=0) as pipe:
            self._events = -1
            while True:
                readable, _, _ = select.select([pipe], [], [], tick_s)
                if not readable:
                    yield None
                    continue
                chunk = pipe.read(1 << 16)
                if not chunk:
                    return
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    def explain_loss(self, patience_s: float) -> WorkerDiedError | None:
        """Why a connection broke, when it is the worker's end. Blocks up to ``patience_s``."""
        self._ended.wait(patience_s)
        return self.died

    def last_errors(self) -> list[str]:
        """What it complained about, as far as it has been read. Blocks a moment if it is just ending."""
        self._log_reader.join(_LOG_PATIENCE_S)
        return errors_of([line for _, line in list(self._tail)])

    def _last_words(self, return_code: int, ended_s: float) -> list[str]:
        if return_code >= 0:
            return self.last_errors()
        self._log_reader.join(_LOG_PATIENCE_S)
        return errors_of([line for said_s, line in list(self._tail) if said_s > ended_s - _LAST_WORDS_S])

    def stop(self, timeout_s: float) -> None:
        """End it: ask, wait ``timeout_s``, kill. Leaves nothing running."""
        self._is_stopping = True
        if not self._ended.is_set():
            self._process.terminate()
            if not self._ended.wait(timeout_s):
                self._process.kill()
                self._ended.wait()
        self._log_reader.join(_LOG_PATIENCE_S)
        if self._events >= 0:  # nobody read it
            os.close(self._events)
            self._events = -1

    def _read_log(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        with self._process.stdout as lines:
            for raw in lines:
                line = raw.decode(errors="replace").rstrip()
                if line:
                    self._tail.append((time.monotonic(), line))
                    logger.log(logging.WARNING if line.startswith(_OWN_WARNING) else logging.INFO, "%s", line)

    def _watch(self) -> None:
        return_code = self._process.wait()
        if not self._is_stopping:
            before, now = self._oom_kills_before, _oom_kills()
            new_kills = None if before is None or now is None else now - before
            reason = describe_exit(return_code, new_kills, self._last_words(return_code, time.monotonic()))
            self.died = WorkerDiedError(reason, return_code=return_code)
        self._ended.set()
        if self.died is not None and self._on_death is not None:
            self._on_death(self.died)


def _oom_kills() -> int | None:
    cgroup = own_cgroup()
    return None if cgroup is None else cgroup.oom_kills
