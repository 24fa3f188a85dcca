"""The drive's read-ahead around a run, on a made-up /sys; dropping a file from the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guanaco.bench.drive import drop_file_cache, read_ahead, read_ahead_file
from guanaco.bench.residency import cached_bytes


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
