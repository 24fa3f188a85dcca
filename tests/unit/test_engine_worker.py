"""The worker's own first steps, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from guanaco.engine import llama
from guanaco.errors import EngineError
from tests.support.specs import demo_spec

# Runs the real entry with a model that is not there, then looks at what a grandchild would inherit.
CODE = """
import os, subprocess, sys
from guanaco.engine import worker
os.environ["LD_PRELOAD"] = ""
code = worker.main([sys.argv[1], sys.argv[2], str(os.getppid())])
print(code, subprocess.run(["env"], capture_output=True, text=True).stdout.count("LD_PRELOAD"))
"""


def run_worker(settings: str, code: str = CODE) -> tuple[str, list[dict[str, object]]]:
    read_settings, write_settings = os.pipe()
    read_events, write_events = os.pipe()
    os.write(write_settings, settings.encode())
    os.close(write_settings)
    done = subprocess.run(
        [sys.executable, "-c", code, str(read_settings), str(write_events)],
        pass_fds=(read_settings, write_events),
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(read_settings)
    os.close(write_events)
    with os.fdopen(read_events) as pipe:
        return done.stdout, [json.loads(line) for line in pipe]


def settings(**changes: object) -> str:
    spec = demo_spec()
    base = llama.worker_settings(
        spec.config,
        spec.plan,
        spec.sampling,
        first_file=spec.config.model.with_name("none.gguf"),
        alias="x",
        api_key="k",
        preload=None,
        verbose=False,
    )
    return json.dumps({**json.loads(base.to_json()), **changes})


def test_a_model_that_does_not_load_is_an_event_and_a_code() -> None:
    output, events = run_worker(settings())
    assert output == f"{EngineError.exit_code} 0\n", "the exit code, and no preload for a grandchild"
    assert [event["event"] for event in events] == ["loading", "error"]
    assert events[0]["engine"] == llama.ENGINE_LABEL
    assert events[1]["message"] == "llama.cpp could not load none.gguf"


def test_a_library_that_is_not_there_ends_the_load() -> None:
    _, events = run_worker(settings(preload="/opt/nowhere/libguanaco.so"))
    (event,) = events
    assert event["event"] == "error"
    assert "could not be preloaded" in str(event["message"])


def test_a_worker_whose_parent_has_gone_does_not_start() -> None:
    code = "import sys; from guanaco.engine import worker; print(worker.main([*sys.argv[1:], '1']))"
    output, events = run_worker(settings(), code)
    assert output == ""
    assert events == []
