"""The worker process: ``python -m guanaco.engine.worker SETTINGS_FD EVENTS_FD PARENT_PID``.

Owns: one loaded model and llama.cpp's own server on a loopback port. Settings arrive as JSON on one
inherited descriptor, events leave as JSON lines on the other. Never outlives its parent, however that ends.
SIGTERM keeps its default action, because the engine holds the interpreter lock while it loads and nothing
needs saving: it ends the process at once, in mid-generation too. Ctrl-C is the parent's to handle.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from guanaco.engine import llama
from guanaco.engine.tether import die_with_parent
from guanaco.errors import EngineError, GuanacoError


def check_preloaded(library: str, maps: str) -> None:
    """Raises EngineError unless ``library`` is mapped: the dynamic loader only warns when it cannot be."""
    if str(Path(library).resolve()) not in maps:
        raise EngineError(
            f"{library} could not be preloaded into the worker, so experts cannot be streamed; "
            "install Guanaco again with: pip install --force-reinstall guanaco-llm"
        )


class Events:
    """JSON lines to the parent."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, event: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"event": event, **fields}).encode() + b"\n")


def run(settings: llama.WorkerSettings, events: Events) -> Any:
    """Load, report ``ready``; the returned server must be kept alive."""
    if settings.preload is not None:
        check_preloaded(settings.preload, Path("/proc/self/maps").read_text())
    events.send("loading", pid=os.getpid(), engine=llama.ENGINE_LABEL)
    server, address = llama.start_server(settings)
    events.send("ready", address=address)
    return server


def main(arguments: list[str]) -> int:
    settings_fd, events_fd, parent_pid = (int(word) for word in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the engine itself may start (a debugger on an abort) is not ours to hook.
    os.environ.pop("LD_PRELOAD", None)
    events = Events(events_fd)
    try:
        die_with_parent(parent_pid)
        with os.fdopen(settings_fd, encoding="utf-8") as pipe:
            settings = llama.WorkerSettings.from_json(pipe.read())
        server = run(settings, events)
    except GuanacoError as problem:
        events.send("error", message=problem.message, details=problem.details)
        return problem.exit_code
    while server is not None:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
