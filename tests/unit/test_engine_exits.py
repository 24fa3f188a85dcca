"""What is said about a worker that ended by itself."""

from __future__ import annotations

import signal

import pytest

from guanaco.engine.exits import describe_exit, errors_of


def test_a_kill_names_the_usual_sender() -> None:
    text = describe_exit(-signal.SIGKILL, 0, ["0.1 E x: last"])
    assert "killed by SIGKILL" in text
    assert "out-of-memory killer is a possible cause" in text
    assert "last" not in text, "a killed process had no time for last words"


def test_a_counted_kill_is_no_guess() -> None:
    assert "has struck in this memory cgroup" in describe_exit(-signal.SIGKILL, 2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-signal.SIGTERM, "killed by SIGTERM"),
        (0, "exited by itself with code 0"),
        (7, "exited by itself with code 7"),
        (-99, "killed by signal 99"),
    ],
)
def test_every_other_end_is_named(code: int, words: str) -> None:
    assert words in describe_exit(code, None, ["bye"])
    assert describe_exit(code, None, ["bye"]).endswith("its last words: bye")
    assert "out-of-memory" not in describe_exit(code, None)


def test_another_program_is_called_by_its_name() -> None:
    assert describe_exit(-signal.SIGABRT, None, who="llama-server") == "llama-server was killed by SIGABRT"
    assert describe_exit(3, None, who="llama-server").startswith("llama-server exited by itself")


def test_errors_are_found_among_engine_log_lines() -> None:
    lines = [
        "0.00.001.000 I load: fine",
        "0.00.002.000 E load: error loading: bad magic",
        "0.00.003.000 W x: y",
    ]
    assert errors_of(lines) == ["error loading: bad magic"]


def test_without_errors_the_last_line_counts() -> None:
    assert errors_of(["Traceback", "ImportError: no module"]) == ["ImportError: no module"]
    assert errors_of(["1.2.3 Estimate is no error"]) == ["1.2.3 Estimate is no error"]
    assert errors_of([]) == []
