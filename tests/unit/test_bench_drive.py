"""The drive's read-ahead around a run, on a made-up /sys; dropping a file from the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guanaco.bench.drive import drive_limit, drop_file_cache, read_ahead, read_ahead_file
from guanaco.bench.residency import cached_bytes
from guanaco.errors import EngineError
from guanaco.hardware.cgroup import Cgroup
from guanaco.hardware.child_cgroup import ChildCgroup


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 65536)
    return path


@pytest.fixture
def setting(tmp_path: Path, model: Path) -> Path:
    """The setting of a disk whose first partition holds the model: 4,096 KiB."""
    queue = tmp_path / "sys/block/nvme7n1/queue"
    queue.mkdir(parents=True)
    (tmp_path / "sys/block/nvme7n1/nvme7n1p1").mkdir()
    numbers = model.stat().st_dev
    node = tmp_path / f"sys/dev/block/{os.major(numbers)}:{os.minor(numbers)}"
    node.parent.mkdir(parents=True)
    node.symlink_to(tmp_path / "sys/block/nvme7n1/nvme7n1p1")
    path = queue / "read_ahead_kb"
    path.write_text("4096\n")
    return path


def test_it_is_set_for_the_run_and_put_back(tmp_path: Path, model: Path, setting: Path) -> None:
    assert read_ahead_file(model, tmp_path) == setting
    with read_ahead(model, 128, tmp_path) as kib:
        assert kib == 128
        assert setting.read_text() == "128"
    assert setting.read_text() == "4096\n"


def test_it_is_put_back_after_a_failed_run(tmp_path: Path, model: Path, setting: Path) -> None:
    with pytest.raises(ZeroDivisionError), read_ahead(model, 32, tmp_path):
        raise ZeroDivisionError
    assert setting.read_text() == "4096\n"


def test_it_stays_where_nothing_was_asked_for(tmp_path: Path, model: Path, setting: Path) -> None:
    before = setting.stat().st_mtime_ns
    with read_ahead(model, None, tmp_path) as kib:
        assert kib == 4096
    assert setting.stat().st_mtime_ns == before


def test_what_may_not_be_set_is_reported_as_it_is(
    tmp_path: Path, model: Path, setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, text: str) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    with read_ahead(model, 128, tmp_path) as kib:
        assert kib == 4096
    assert setting.read_text() == "4096\n"


def test_a_drive_nobody_knows_is_none(tmp_path: Path, model: Path) -> None:
    with read_ahead(model, 128, tmp_path) as kib:
        assert kib is None


def test_a_dropped_file_is_not_cached(model: Path) -> None:
    descriptor = os.open(model, os.O_RDWR)
    os.fsync(descriptor)  # only clean pages go
    os.close(descriptor)
    model.read_bytes()
    if cached_bytes(model, [(0, 65536)]) != 65536:
        pytest.skip("this file system does not say what it caches")
    drop_file_cache([model])
    assert cached_bytes(model, [(0, 65536)]) == 0
    with model.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(20480)
        assert file.read(1) == b"x"
    assert cached_bytes(model, [(0, 65536)]) > 0
    assert cached_bytes(model, [(100, 4000), (4097, 4095)]) == 0, "whole pages only"


def test_no_limit_asks_nothing_of_the_machine(tmp_path: Path, model: Path) -> None:
    with drive_limit(model, None, None, tmp_path) as joined:
        assert joined is None


@pytest.fixture
def memory(tmp_path: Path) -> ChildCgroup:
    """A run's own version 2 cgroup."""
    top = tmp_path / "cgroup"
    (top / "run").mkdir(parents=True)
    (top / "cgroup.subtree_control").write_text("memory")
    return ChildCgroup(Cgroup(2, top / "run", top), None)


def test_version_2_limits_reads_in_the_runs_own_cgroup(
    tmp_path: Path, model: Path, setting: Path, memory: ChildCgroup
) -> None:
    (setting.parents[1] / "dev").write_text("259:4\n")
    with drive_limit(model, 150_000_000, memory, tmp_path) as joined:
        assert joined is None
        assert (memory.path / "io.max").read_text() == "259:4 rbps=150000000"
        assert (memory.path.parent / "cgroup.subtree_control").read_text() == "+io"


def test_a_run_without_a_cgroup_of_its_own_cannot_be_limited(
    tmp_path: Path, model: Path, setting: Path
) -> None:
    (setting.parents[1] / "dev").write_text("259:4\n")
    with (
        pytest.raises(EngineError, match=r"150000000 bytes/s.*no cgroup"),
        drive_limit(model, 150_000_000, None, tmp_path),
    ):
        raise AssertionError("it ran")


def test_a_file_on_no_drive_cannot_be_limited(tmp_path: Path, model: Path, memory: ChildCgroup) -> None:
    with pytest.raises(EngineError, match="on no drive"), drive_limit(model, 1, memory, tmp_path):
        raise AssertionError("it ran")


def test_failures_of_the_run_are_its_own(tmp_path: Path, model: Path) -> None:
    with pytest.raises(FileNotFoundError), drive_limit(model, None, None, tmp_path):
        raise FileNotFoundError("of the run")
