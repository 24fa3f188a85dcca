"""``guanaco bench --together``: both ways loaded at once, and what it is not for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from guanaco.cli.demo import demo_model


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "guanaco.cli.main", "bench", str(demo_model()), "--together", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_both_ways_take_turns(tmp_path: Path) -> None:
    table = tmp_path / "turns.csv"
    sizes = ("--runs", "3", "--prompt", "8", "--decode", "8", "--csv", str(table))
    done = bench("--resident", *sizes, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [(row["run"], row["way"]) for row in shown["rows"]] == [
        (0, "auto"), (0, "plain"), (1, "plain"), (1, "auto"), (2, "auto"), (2, "plain"),
    ]  # fmt: skip
    assert all(row["prompt_n"] == 8 and row["decode_n"] == 8 for row in shown["rows"])
    assert {line["figure"]: line["pairs"] for line in shown["ratios"]} == {"decode_tps": 3, "prompt_tps": 3}
    assert len(table.read_text().splitlines()) == 7


@pytest.mark.parametrize("words", [(), ("--resident", "--busy", "1"), ("--resident", "--bound")])
def test_what_cannot_take_turns_is_refused(words: tuple[str, ...]) -> None:
    done = bench(*words)
    assert done.returncode == 2
    assert "--together compares whole models" in done.stderr
