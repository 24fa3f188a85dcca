"""The imatrix beside a model and earlier use: what is read before the first request, and the switch."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from guanaco.bench.drive import drop_file_cache
from guanaco.bench.one import read_bytes
from guanaco.cache.prior import expected_use
from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from guanaco.config import LoadConfig
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.engine.native import NativeStats
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.placement import plan
from guanaco.units import GIB, MIB
from tests.integration.test_counters import PROBE_TOKENS, START_ALLOWANCE_BYTES, token_bytes
from tests.support.cli import run_guanaco, wait_until
from tests.support.imatrices import write_imatrix

STREAMED = ("--load-mode", "streaming", "--guanaco-max-experts", "9", "--memory", "256MiB", "--temp", "0")
QUESTION = "What is the capital of Peru?"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The demo model in a folder of its own."""
    return Path(shutil.copy(demo_model(), tmp_path / "demo.gguf"))


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "GUANACO_IMATRIX": "1"}


def run(model: Path, *words: str, **environment: str) -> tuple[dict[str, Any], str]:
    result = run_guanaco("run", str(model), QUESTION, *STREAMED, *words, "--json", **environment)
    assert result.returncode == 0, result.stderr
    shape = json.loads(result.stdout)
    assert shape["text"] == "The capital of Peru is Lima."
    return shape["streaming"], result.stderr


def beside(model: Path) -> Path:
    return model.with_name("demo.imatrix.gguf")


def skewed(model: ModelMap) -> list[list[float]]:
    """A quarter of the experts is used nine times as often as the others."""
    return [[900.0 if e % 4 == 0 else 100.0 for e in range(g.n_expert)] for g in model.groups]


def test_an_imatrix_is_used_and_said(model: Path, cache: dict[str, str]) -> None:
    write_imatrix(read_model(model), beside(model), skewed(read_model(model)))
    streaming, log = run(model, **cache)
    assert streaming["prior"] == ["imatrix"]
    assert "imatrix prior used" in log


def test_it_can_be_switched_off(model: Path, cache: dict[str, str]) -> None:
    write_imatrix(read_model(model), beside(model), skewed(read_model(model)))
    streaming, log = run(model, **{**cache, "GUANACO_IMATRIX": "0"})
    assert streaming["prior"] == []
    assert streaming["preloaded"] == 0
    assert "prior used" not in log
    assert not (Path(cache["XDG_CACHE_HOME"]) / "guanaco" / "use").exists()


def test_a_broken_imatrix_is_a_warning(model: Path, cache: dict[str, str]) -> None:
    beside(model).write_bytes(b"GGUF but not for long")
    streaming, log = run(model, **cache)
    assert streaming["prior"] == []
    (warning,) = [line for line in log.splitlines() if "the imatrix is not used" in line]
    assert str(beside(model)) in warning


def test_earlier_use_is_remembered(model: Path, cache: dict[str, str]) -> None:
    streaming, _ = run(model, **cache)
    assert streaming["prior"] == []
    (kept,) = (Path(cache["XDG_CACHE_HOME"]) / "guanaco" / "use").iterdir()
    uses = json.loads(kept.read_text())["uses"]
    assert [len(layer) for layer in uses] == [32] * 4
    top_k = read_model(model).groups[0].top_k
    assert all(sum(layer) >= 8 * top_k for layer in uses)
    again, log = run(model, **cache)
    assert again["prior"] == ["profile"]
    assert "profile prior used" in log
    more = json.loads(kept.read_text())["uses"]
    assert sum(map(sum, more)) == 2 * sum(map(sum, uses))
    # Another file of the same model, wherever it lies.
    moved = model.rename(model.with_name("moved.gguf"))
    assert run(moved, **cache)[0]["prior"] == ["profile"]


def test_no_home_no_memory(model: Path) -> None:
    result = run_guanaco(
        "run", str(model), QUESTION, *STREAMED, "--json", XDG_CACHE_HOME="", HOME="", GUANACO_IMATRIX="1"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["streaming"]["prior"] == []


def load(model: ModelMap, prior: tuple[tuple[float, ...], ...]) -> Engine:
    config = LoadConfig(
        model.files[0].path,
        load_mode="streaming",
        max_experts=model.n_expert // 4,
        memory_bytes=2 * GIB,
        n_ctx=512,
        cache_ram_bytes=0,
        ctx_checkpoints=0,
        pilot="off",
    )
    return Engine(EngineSpec(model, config, plan(model, detect(), config), prior=prior))


def test_likely_experts_are_there_before_the_first_request(small_model: ModelMap) -> None:
    """On a model whose bytes show up in the kernel's counters, without breaking what a start may read."""
    path = small_model.files[0].path
    drop_file_cache([path])
    before = read_bytes(os.getpid())
    model = build_model_map(read_gguf(path))
    prior = tuple(
        expected_use(g.n_expert, g.top_k, c) for g, c in zip(model.groups, skewed(model), strict=True)
    )
    with load(model, prior) as engine:
        engine.start()
        engine.wait_ready()

        def stats() -> NativeStats:
            found = engine.stats()
            assert found is not None
            return found

        wait_until(lambda: stats().preload_ended, 20, "reading the likely experts")
        assert engine.pid is not None
        start_bytes = read_bytes(engine.pid) + read_bytes(os.getpid()) - before
        limit = model.dense_bytes + START_ALLOWANCE_BYTES + PROBE_TOKENS * token_bytes(model)
        assert start_bytes <= limit
        n_wanted = 2 * sum(group.top_k for group in model.groups)
        assert stats().preloaded > n_wanted * 0.9  # but for those that the probe brought in
        assert stats().evictions == 0
        heat = engine.heat()
        assert heat is not None
        resident = [(g, e) for g, layer in enumerate(heat) for e, there in enumerate(layer.resident) if there]
        assert len(resident) <= n_wanted
        engine.client().call("/completion", {"prompt": [4000], "n_predict": 2, "temperature": 0})
        heat = engine.heat()
        assert heat is not None
        likely = [there for layer in heat for e, there in enumerate(layer.resident) if e % 4 == 0]
        assert sum(likely) > 0.7 * n_wanted
        assert stats().unmanaged == 0
    assert engine.heat() == heat
    assert stats().preloaded * min(g.expert_bytes for g in model.groups) > MIB


def test_heat_says_what_was_used(small_model: ModelMap) -> None:
    with load(small_model, ()) as engine:
        engine.start()
        engine.wait_ready()
        stats = engine.stats()
        assert stats is not None
        assert stats.preload_ended == stats.preloaded == 0
        body = {"prompt": [4000, 5000], "n_predict": 20, "temperature": 0, "ignore_eos": True}
        engine.client().call("/completion", body)
        heat = engine.heat()
        assert heat is not None
        assert [layer.layer for layer in heat] == [group.layer for group in small_model.groups]
        stats = engine.stats()
        assert stats is not None
        n_tokens = stats.tokens
        assert n_tokens >= 1 + 2 + 19  # the probe, the prompt, and all but the last that was made up
        for group, layer in zip(small_model.groups, heat, strict=True):
            assert (n_tokens - 2) * group.top_k <= sum(layer.uses) <= n_tokens * group.top_k
            assert sum(layer.resident) > 0
            hottest = max(range(group.n_expert), key=lambda e: layer.heat[e])
            assert layer.uses[hottest] > 0
            assert sum(layer.heat) == pytest.approx(group.top_k * (1 - 0.97**n_tokens), rel=0.15)
