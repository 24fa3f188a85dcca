"""Turns of ways that are loaded at once, with engines that only take notes."""

from __future__ import annotations

from typing import Any

import pytest

from guanaco.bench import together
from guanaco.bench.ways import find_ways
from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from tests.unit.test_bench_compare import BASE

WAYS = find_ways("auto,plain")


def test_every_turn_belongs_to_one_load() -> None:
    assert [list(turns) for turns in together.loads(45)] == [
        list(range(20)),
        list(range(20, 40)),
        list(range(40, 45)),
    ]


def test_ways_alternate_and_warm_up_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    class Noted:
        def __init__(self, spec: Any) -> None:
            self.name = "auto" if spec.bind_threads else "plain"

        def __enter__(self) -> Noted:
            return self

        def __exit__(self, *_: object) -> None:
            notes.append(f"end {self.name}")

        def start(self) -> None:
            notes.append(f"start {self.name}")

        def wait_ready(self) -> None:
            pass

        def client(self) -> Noted:
            return self

        def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            notes.append(self.name)
            assert path == "/completion"
            assert len(body["prompt"]) == BASE.n_prompt
            timings = {"prompt_per_second": 2.0, "prompt_n": 100, "predicted_n": 32}
            return {"timings": {**timings, "predicted_per_second": 3.0 if self.name == "auto" else 4.0}}

    monkeypatch.setattr(together, "Engine", Noted)
    monkeypatch.setattr(together, "REST_S", 0)
    rows: list[dict[str, Any]] = []
    together.take_turns(BASE, WAYS, read_model(demo_model()), runs=2, on_row=rows.append)
    loaded = ["start auto", "start plain", "auto", "plain"]
    assert notes == [*loaded, "auto", "plain", "plain", "auto", "end plain", "end auto"]
    assert [(row["run"], row["way"], row["decode_tps"]) for row in rows] == [
        (0, "auto", 3.0),
        (0, "plain", 4.0),
        (1, "plain", 4.0),
        (1, "auto", 3.0),
    ]
