"""The models of a folder: names, links, shards, what is no model and what is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import pytest

from guanaco.cli.demo import demo_model
from guanaco.errors import UsageError
from guanaco.node.registry import scan


def _real(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(demo_model().read_bytes())
    return path


def test_names_are_those_of_the_files(tmp_path: Path) -> None:
    _real(tmp_path / "b.Q8_0.gguf")
    _real(tmp_path / "publisher" / "a.gguf")
    (tmp_path / "notes.txt").write_text("not a model")
    registry = scan(tmp_path)
    assert [entry.name for entry in registry.entries] == ["a", "b.Q8_0"]
    entry = registry.find("a")
    assert entry is not None
    assert entry.path == tmp_path / "publisher" / "a.gguf"
    assert entry.model is not None
    assert entry.model.is_moe


def test_equal_names_get_their_folders(tmp_path: Path) -> None:
    _real(tmp_path / "one" / "model.gguf")
    _real(tmp_path / "two" / "deep" / "model.gguf")
    assert [entry.name for entry in scan(tmp_path).entries] == ["one/model", "two/deep/model"]


def test_links_to_one_file_are_one_model(tmp_path: Path) -> None:
    """Three names for one file would be three workers of it."""
    _real(tmp_path / "model.gguf")
    (tmp_path / "latest.gguf").symlink_to("model.gguf")
    os.link(tmp_path / "model.gguf", tmp_path / "zz.gguf")
    (entry,) = scan(tmp_path).entries
    assert entry.name == "model"
    assert entry.aliases == ("latest", "zz")
    assert scan(tmp_path).find("latest") == entry


def test_shards_are_one_model_and_missing_ones_a_reason(tmp_path: Path) -> None:
    _real(tmp_path / "big-00001-of-00002.gguf")
    _real(tmp_path / "big-00002-of-00002.gguf")
    assert [entry.name for entry in scan(tmp_path).entries] == ["big"]


def test_what_is_no_model_is_skipped_with_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    registry = scan(tmp_path)
    assert registry.entries == ()
    assert registry.skipped == {path: "a vision or audio projector"}


def test_a_damaged_file_is_listed_with_its_reason(tmp_path: Path) -> None:
    whole = _real(tmp_path / "good.gguf")
    (tmp_path / "cut.gguf").write_bytes(whole.read_bytes()[:100])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "gone.gguf").symlink_to("nowhere")
    registry = scan(tmp_path)
    assert [entry.name for entry in registry.entries] == ["cut", "empty", "good"]
    cut = registry.find("cut")
    assert cut is not None
    assert cut.model is None
    assert cut.problem is not None
    assert "cut.gguf" in cut.problem


def test_names_are_looked_up_and_nothing_else(tmp_path: Path) -> None:
    _real(tmp_path / "inside" / "model.gguf")
    registry = scan(tmp_path / "inside")
    for name in ("../inside/model", "/etc/passwd", "", ".", str(tmp_path / "inside" / "model.gguf"), "Model"):
        assert registry.find(name) is None


def test_what_is_not_a_folder_of_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        scan(tmp_path / "none")
    assert scan(tmp_path).entries == ()
