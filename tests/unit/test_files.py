"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from guanaco.files import has_place, replacing


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(path) as partial:
        partial.write_text("half")
        raise OSError("full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    with replacing(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_itself(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(pipe) as path:
        path.write_text("new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert not has_place(pipe)
