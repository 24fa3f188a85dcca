"""``guanaco`` with test faults allowed: ``python -m tests.support.testing_cli serve MODEL ...``.

The library honours the fault controls only under a plan that says it is a test's; no flag writes such one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from guanaco.cli.main import main
from guanaco.engine import native
from guanaco.engine.native import StatsFile

TESTING_COMMAND = (sys.executable, "-m", "tests.support.testing_cli")
_plan_text = native.plan_text


def _testing_plan_text(*words: Any, **more: Any) -> str:
    return _plan_text(*words, **{**more, "testing": True})


def stats_of(worker_pid: int) -> StatsFile:
    """The counters and controls of a running worker."""
    words = Path(f"/proc/{worker_pid}/environ").read_bytes().decode().split("\0")
    environment = dict(word.split("=", 1) for word in words if "=" in word)
    return StatsFile.attach(Path(environment[native.PLAN_VARIABLE]).parent / "stats")


if __name__ == "__main__":
    native.plan_text = _testing_plan_text
    sys.exit(main())
