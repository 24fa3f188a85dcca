"""The order of a load, with a fake worker: ready, refused, dead, and what the environment holds."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from guanaco.config import LoadConfig
from guanaco.engine import native
from guanaco.engine.engine import Engine, EngineSpec, LoadProgress
from guanaco.engine.launch import RunFiles, worker_environment
from guanaco.errors import EngineError, UsageError, WorkerDiedError
from tests.support import fake_worker
from tests.support.specs import demo_spec

COMMAND = (sys.executable, fake_worker.__file__)


@pytest.fixture
def spec() -> EngineSpec:
    return demo_spec()


def behave(monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    monkeypatch.setenv("FAKE_WORKER", behaviour)


def test_a_load_ends_with_a_client(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "ready")
    seen: list[LoadProgress] = []
    with Engine(spec, command=COMMAND) as engine:
        engine.start()
        engine.wait_ready(seen.append)
        client = engine.client()
        assert client.call("/health") == {"path": "/health", "key": f"Bearer {engine.api_key}"}
        assert client.call("/completion", {"prompt": "a"})["asked"] == {"prompt": "a"}
        assert list(client.stream("/completion", {})) == [{"number": 0}, {"number": 1}, {"number": 2}]
        peak_bytes = engine.peak_bytes()
        assert peak_bytes is not None
        assert peak_bytes > 1 << 20
        assert engine.load_s is not None
        assert engine.stats() is None
        pid = engine.pid
    assert seen
    assert all(progress.fraction is not None and 0 <= progress.fraction <= 1 for progress in seen)
    assert not Path(f"/proc/{pid}").exists()
    assert engine.died is None
    assert engine.peak_bytes() == peak_bytes or (engine.peak_bytes() or 0) > peak_bytes


def test_files_in_the_current_folder_are_not_imported(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    with Engine(spec) as engine:
        engine.start()
        engine.wait_ready()
        assert engine.is_running


def test_the_engines_refusals_keep_their_words(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "ready")
    with Engine(spec, command=COMMAND) as engine:
        engine.start()
        engine.wait_ready()
        with pytest.raises(UsageError, match="the engine refused the request: no thanks"):
            engine.client().call("/x", {"refuse": 1})
        with pytest.raises(EngineError, match="the engine could not answer: out of order"):
            engine.client().call("/x", {"break": 1})


def test_a_refused_model_names_the_engines_reason(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "error")
    engine = Engine(spec, command=COMMAND)
    engine.start()
    with pytest.raises(EngineError, match=r"could not load x\.gguf: error loading model: the file is made"):
        engine.wait_ready()
    assert not engine.is_running


def test_a_death_while_loading(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, f"signal:{int(signal.SIGKILL)}")
    engine = Engine(spec, command=COMMAND)
    engine.start()
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL; the kernel's out-of-memory killer"):
        engine.wait_ready()
    with pytest.raises(WorkerDiedError):
        engine.client()


def test_a_death_in_a_stream(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "die-in-stream")
    deaths: list[WorkerDiedError] = []
    with Engine(spec, command=COMMAND, on_death=deaths.append) as engine:
        engine.start()
        engine.wait_ready()
        events = engine.client().stream("/completion", {})
        assert next(events) == {"number": 0}
        with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
            list(events)
    assert deaths == [engine.died]


def test_stop_ends_a_load_that_takes_long(spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "silent")
    engine = Engine(spec, command=COMMAND)

    class EnoughError(Exception):
        pass

    def give_up(_: LoadProgress) -> None:
        raise EnoughError

    with engine:
        engine.start()
        with pytest.raises(EngineError, match="still loading"):
            engine.client()
        with pytest.raises(EnoughError):
            engine.wait_ready(give_up)
    assert not engine.is_running


def test_a_library_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libguanaco.so"
    broken.write_text("not a library")
    monkeypatch.setenv(native.LIBRARY_VARIABLE, str(broken))
    engine = Engine(demo_spec(LoadConfig(Path(), load_mode="streaming")), command=COMMAND)
    with pytest.raises(EngineError, match="cannot be loaded"):
        engine.start()
    assert not engine.is_running


def test_the_environment_bounds_spinning_and_arenas() -> None:
    plain = worker_environment({}, library=None, plan_file=None, verbose=False, spin_count=1000)
    assert plain == {"GOMP_SPINCOUNT": "1000", "MALLOC_ARENA_MAX": "2", "GGML_NO_BACKTRACE": "1"}
    shown = worker_environment({}, library=None, plan_file=None, verbose=True, spin_count=1000)
    assert "GGML_NO_BACKTRACE" not in shown


def test_what_the_user_set_is_kept() -> None:
    user = {
        "GOMP_SPINCOUNT": "5",
        "MALLOC_ARENA_MAX": "8",
        "LD_PRELOAD": "libfast.so",
        "GUANACO_PLAN": "stale",
    }
    plain = worker_environment(user, library=None, plan_file=None, verbose=True, spin_count=1000)
    assert plain == {"GOMP_SPINCOUNT": "5", "MALLOC_ARENA_MAX": "8", "LD_PRELOAD": "libfast.so"}
    streaming = worker_environment(
        user, library=Path("/x/lib.so"), plan_file=Path("/p"), verbose=True, spin_count=1000
    )
    assert streaming["LD_PRELOAD"] == "/x/lib.so:libfast.so"
    assert streaming["GUANACO_PLAN"] == "/p"


def test_run_files_are_private_and_go_away() -> None:
    files = RunFiles()
    files.plan.write_text("x")
    assert files.plan.parent.stat().st_mode & 0o077 == 0
    files.remove()
    assert not files.plan.parent.exists()


@pytest.mark.parametrize("folder", ["my programs", "a:b"])
def test_the_library_may_lie_where_preload_cannot_name_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    odd = tmp_path / folder / "libguanaco.so"
    odd.parent.mkdir()
    shutil.copy(native.library_path(), odd)
    monkeypatch.setenv(native.LIBRARY_VARIABLE, str(odd))
    with Engine(demo_spec(LoadConfig(Path(), load_mode="streaming", n_ctx=256))) as engine:
        engine.start()
        engine.wait_ready()
        stats = engine.stats()
        assert stats is not None
        assert stats.groups_bound == stats.groups_expected > 0


def test_a_library_named_from_the_current_folder_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(native.library_path(), tmp_path / "mine.so")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(native.LIBRARY_VARIABLE, "mine.so")
    assert native.library_path() == tmp_path / "mine.so"


def test_a_full_file_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    engine = Engine(demo_spec(LoadConfig(Path(), load_mode="streaming")), command=COMMAND)
    with pytest.raises(EngineError, match=r"cannot be written to /\S+: No space left on device"):
        engine.start()
    assert not engine.is_running
