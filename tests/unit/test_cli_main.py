"""How the command ends: exit codes, one line, and JSON where it was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guanaco import __version__
from guanaco.cli import main as entry
from guanaco.cli.demo import demo_model

DEMO = str(demo_model())


def guanaco(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "guanaco.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_as_a_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "guanaco", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout == f"guanaco, version {__version__}\n"


@pytest.mark.parametrize("command", ["plan", "inspect", "run"])
def test_a_pipe_is_no_model(command: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    shown = guanaco(command, str(pipe), *(["hello"] if command == "run" else []))
    assert shown.returncode == 3
    assert "is not a regular file" in shown.stderr


def test_help_and_version() -> None:
    shown = guanaco()
    assert shown.returncode == 0
    for name in ("run", "serve", "plan", "inspect", "demo"):
        assert f"\n  {name} " in shown.stdout
    assert guanaco("--version").stdout == f"guanaco, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("fly",), 2, "No such command 'fly'."),
        (("run", "--fly"), 2, "No such option '--fly'."),
        (("run",), 2, "no model is named"),
        (("pull", "x"), 2, "the command 'pull' is not in this version"),
        (("run", "/nowhere/x.gguf", "hello"), 3, "/nowhere/x.gguf"),
        (("run", "x.gguf", "tell", "me"), 2, "unexpected word 'me'; put a prompt of several words in quotes"),
        (("plan", "x.gguf", "--memory", "12parrots"), 2, "'12parrots' is not a size"),
        (
            ("plan", "x.gguf", "--memory", "8"),
            2,
            "'8' is 8 bytes, too few for any model; write a unit, as in 8GiB",
        ),
        (("plan", "x.gguf", "-mg", "0"), 2, "no such option: -mg; guanaco plan --help lists them"),
        (("plan", "x.gguf", "-ot=exps=CPU"), 2, "no such option: -ot"),
        (("run", "x.gguf", "--slot-save-path", "no-such-folder"), 2, "'no-such-folder' is no folder"),
        (("run", "x.gguf", "hello", "--embeddings"), 2, "use it with guanaco serve"),
        (("plan", "x.gguf", "--card", "much"), 2, "--card: 'much' is not a size"),
        (("plan", "x.gguf", "--n-cpu-moe", "3"), 2, "describe one with --card 8GiB"),
        (("serve", "/"), 2, "/ is a folder"),
        (("bench", DEMO, "--csv", "/nowhere/a.csv"), 2, "/nowhere/a.csv cannot be written: No such file"),
        (("bench", DEMO, "--csv", "/dev/null/a.csv"), 2, "/a.csv cannot be written: Not a directory"),
        (("bench", DEMO, "--drive-limit", "8"), 2, "--drive-limit: 8 is less than 1 MiB a second"),
        (("bench", DEMO, "--drive-limit", "fast"), 2, "--drive-limit: 'fast' is not a size"),
        (("bench", DEMO, "--csv", "/"), 2, "--csv: / is a folder; name a file in a folder that exists"),
        (("plan", DEMO, "--ram", "1GiB", "--memory", "2GiB"), 4, "a budget of 2.00 GiB cannot be had here"),
        (("plan", DEMO, "--ram", "64MiB"), 4, "and so is this machine's RAM of 64.0 MiB: streaming"),
    ],
)
def test_errors_are_one_line_with_a_code(words: tuple[str, ...], code: int, message: str) -> None:
    result = guanaco(*words)
    assert result.returncode == code
    assert message in result.stderr
    assert result.stderr.startswith("guanaco: error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_with_json_the_error_is_json_too() -> None:
    result = guanaco("run", "/nowhere/x.gguf", "hello", "--json")
    assert result.returncode == 3
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "invalid_model"
    assert "/nowhere/x.gguf" in error["message"]


def test_the_unexpected_is_one_line_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("over\nthere")

    monkeypatch.setattr(entry.cli, "invoke", explode)
    assert entry.main(["demo"]) == 1
    error = capsys.readouterr().err
    assert error == "guanaco: error: unexpected ZeroDivisionError: over there; please report it\n"


def test_run_does_not_pay_for_the_server() -> None:
    code = (
        "import sys; from guanaco.cli.run import run_command; "
        "heavy = 'fastapi uvicorn httpx rich pydantic xllamacpp'.split(); "
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_closed_streams_do_no_harm(tmp_path: Path) -> None:
    script = f'"{sys.executable}" -m guanaco.cli.main plan /nowhere <&- >&- 2>&-; echo $? > "{tmp_path}/code"'
    subprocess.run(["/bin/sh", "-c", script], check=True)
    assert (tmp_path / "code").read_text() == "3\n"


def test_a_full_disk_is_an_error_not_a_traceback() -> None:
    script = f'"{sys.executable}" -m guanaco.cli.main --help > /dev/full'
    result = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "guanaco: error: the answer cannot be written: No space left on device\n"
