"""The built library and ``engine/native.py`` agree: ABI, the layout of the counters, the text of a plan.

Builds nothing: ``GUANACO_LIBRARY`` names the library during development, else the installed one is used.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from guanaco.config import LoadConfig
from guanaco.engine import native
from guanaco.errors import EngineError
from guanaco.model.map import ModelMap
from guanaco.planner.placement import plan as make_plan
from guanaco.planner.plan import Plan
from tests.unit.test_settings import MACHINE


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    opened = ctypes.CDLL(str(native.library_path()))
    opened.guanaco_stats_bytes.restype = ctypes.c_ulong
    opened.guanaco_check_plan.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong]
    return opened


@pytest.fixture(scope="module")
def model() -> ModelMap:
    return read_model(demo_model())


@pytest.fixture(scope="module")
def plan(model: ModelMap) -> Plan:
    return make_plan(model, MACHINE, LoadConfig(demo_model(), load_mode="streaming", max_experts=8))


def check(library: ctypes.CDLL, path: Path) -> str | None:
    """None when the library accepts the plan, else its reason."""
    reason = ctypes.create_string_buffer(400)
    good = library.guanaco_check_plan(str(path).encode(), reason, len(reason))
    assert good == (not reason.value)
    return None if good else reason.value.decode()


def test_abi_and_size(library: ctypes.CDLL) -> None:
    assert library.guanaco_abi_version() == native.ABI_VERSION
    assert library.guanaco_stats_bytes() == native.STATS_BYTES
    assert native.has_uring() == bool(library.guanaco_has_uring())


def test_controls_begin_behind_the_text() -> None:
    # native/tests/test_stats.cc has the same numbers.
    assert native._CONTROLS_OFFSET == 49 * 8 + 1024
    assert native.STATS_BYTES == native._CONTROLS_OFFSET + 20 * 8


@pytest.mark.parametrize("io", ["auto", "uring", "threads", "pagecache"])
def test_a_plan_is_accepted(
    library: ctypes.CDLL, model: ModelMap, plan: Plan, tmp_path: Path, io: str
) -> None:
    path = tmp_path / "plan"
    text = native.plan_text(
        model,
        plan,
        io,
        tmp_path / "stats",
        engine="engine 1 (b2)",
        replay_path=tmp_path / "trace",
        testing=True,
    )
    path.write_text(text)
    assert check(library, path) is None
    assert text.count("\ngroup ") == len(model.groups) > 0
    assert text.count("\nclass ") == len(plan.classes) > 0


def test_a_plan_that_only_replays_is_accepted(
    library: ctypes.CDLL, model: ModelMap, plan: Plan, tmp_path: Path
) -> None:
    path = tmp_path / "plan"
    path.write_text(native.plan_text(model, plan, "auto", tmp_path / "stats", manage=False))
    assert check(library, path) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("guanaco-plan 1", "guanaco-plan 2", "not a plan of version 1"),
        ("policy lru", "policy fifo", "policy 'fifo' is not known"),
        ("io auto", "io tape", "line 2: cannot read 'io tape'"),
        ("\nfile ", "\nfile 1 2 3 4 /x\nfile ", "lies outside its file"),
        ("\nclass ", "\nclass 0 4096 1 0\nclass ", "no slots"),
    ],
)
def test_a_broken_plan_is_refused_with_a_reason(
    library: ctypes.CDLL, model: ModelMap, plan: Plan, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    text = native.plan_text(model, plan, "auto", tmp_path / "stats")
    assert old in text
    path = tmp_path / "plan"
    path.write_text(text.replace(old, new, 1))
    found = check(library, path)
    assert found is not None
    assert reason in found


def test_a_missing_plan_is_named(library: ctypes.CDLL, tmp_path: Path) -> None:
    assert check(library, tmp_path / "none") == f"cannot open the plan {tmp_path / 'none'}"


def test_counters_are_where_the_parent_reads_them(model: ModelMap, plan: Plan, tmp_path: Path) -> None:
    stats = native.StatsFile(tmp_path / "stats")
    assert stats.read() is None
    path = tmp_path / "plan"
    missing = tmp_path / "no-trace"
    path.write_text(native.plan_text(model, plan, "auto", stats.path, replay_path=missing))
    environment = {
        **os.environ,
        "LD_PRELOAD": str(native.library_path()),
        **native.plan_environment(path),
    }
    subprocess.run([sys.executable, "-c", ""], env=environment, check=True, capture_output=True)
    seen = stats.read()
    assert seen is not None
    assert seen.state == "failed"
    assert seen.last_error == f"{missing} is not a replay file"
    assert seen.dense_bytes_total == sum(d.nbytes for d in model.dense if not (d.is_lazy_table or d.is_mtp))
    assert seen.io_mode is None
    assert (seen.accesses, seen.graphs, seen.tokens, seen.replay_exhausted) == (0, 0, 0, False)


def test_a_library_of_another_abi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ABI_VERSION", native.ABI_VERSION + 1)
    with pytest.raises(EngineError, match=f"ABI {native.ABI_VERSION - 1} and this guanaco needs"):
        native.library_path()


def test_counters_are_read_on_when_their_name_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "stats"
    stats = native.StatsFile(path)
    other = native.StatsFile.attach(path)
    path.unlink()
    other.control("replay_position", 7)
    offset = native._CONTROLS_OFFSET + 8 * native._CONTROLS.index("replay_position")
    assert os.pread(stats._descriptor, 8, offset) == struct.pack("=Q", 7)
    assert stats.read() is None, "the library has not started"
