"""``make bench`` runs what the documentation publishes, with commands that exist."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from benchmarks.run_all import commands, main

from guanaco.bench.ways import find_ways
from guanaco.cli.main import cli


def flags_of(name: str) -> set[str]:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}


def test_every_command_can_be_run() -> None:
    known = flags_of("bench")
    for command in commands(Path("m.gguf"), Path("results"), "2026-01-01", 7):
        assert command[0] == sys.executable and command[1] == "-m"
        assert importlib.util.find_spec(command[2]) is not None
        if command[2] == "guanaco.cli.main":
            assert {word for word in command if word.startswith("--")} <= known
        if "--ways" in command:
            find_ways(command[command.index("--ways") + 1])


def test_the_makefile_names_it() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.run_all", "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ).stdout
    assert printed.count("\n") == len(commands(Path("m"), Path("r"), "d", 1))
    assert "benchmarks.run_all" in (Path(__file__).parents[2] / "Makefile").read_text()


def test_too_small_a_disk_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.run_all.MODEL_BYTES", 1 << 60)
    assert main(["--folder", str(tmp_path)]) == 2
    assert "--folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
