"""What is not a readable regular file, and models split into shards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guanaco.errors import ModelError
from guanaco.gguf.reader import read_gguf, shard_paths
from tests.support.gguf_builder import I32, STRING, U16, U32, GgufBuilder, shard

G = GgufBuilder


def _message(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    return caught.value.message


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    assert _message(path) == f"{path}: file does not exist; check the path"


def test_folder(tmp_path: Path) -> None:
    assert _message(tmp_path) == f"{tmp_path}: path is a folder; give the path of one .gguf file in it"


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.touch()
    assert "file is empty (0 bytes); the file is damaged or incomplete: download it again" in _message(path)


def test_fifo_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    os.mkfifo(path)
    assert "is not a regular file" in _message(path)


def test_device() -> None:
    assert "is not a regular file" in _message(Path("/dev/zero"))


def test_path_with_nul() -> None:
    assert "cannot be opened" in _message(Path("a\0b.gguf"))


def test_path_that_is_too_long() -> None:
    assert "cannot be opened: File name too long" in _message(Path("a" * 5000))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = GgufBuilder().write(tmp_path / "m.gguf")

    def refuse(*_: object) -> int:  # permissions do not bind root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert _message(path) == (
        f"{path}: file cannot be opened: Permission denied; check its path and permissions"
    )


def test_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = GgufBuilder().write(tmp_path / "m.gguf")

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    assert "cannot be read at byte 0: Input/output error; check the drive" in _message(path)


def test_file_that_shrinks_while_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = GgufBuilder().write(tmp_path / "m.gguf")
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    assert "but the file ends at" in _message(path)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = GgufBuilder().key("a", STRING, "text").tensor("t", (8,)).write(tmp_path / "m.gguf")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: real(fd, min(count, 3), offset))
    assert read_gguf(path).metadata == {"a": "text"}


def test_file_descriptor_is_closed(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_gguf(GgufBuilder().write(tmp_path / "m.gguf"))
    _message(GgufBuilder(version=9).write(tmp_path / "m.gguf"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def _write_shards(folder: Path, total: int | None = None) -> list[Path]:
    """Three shards with 0, 2 and 1 tensors."""
    total = 3 if total is None else total
    made = [shard(number, 3, total) for number in range(3)]
    made[0].key("general.name", STRING, "split")
    made[1].tensor("a", (8,)).tensor("b", (8,))
    made[2].aligned(64).tensor("c", (8,))
    return [item.write(folder / f"m-{index + 1:05d}-of-00003.gguf") for index, item in enumerate(made)]


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_leads_to_all(tmp_path: Path, given: int) -> None:
    paths = _write_shards(tmp_path)
    model = read_gguf(paths[given])
    assert [file.path for file in model.files] == paths
    assert [(tensor.name, tensor.file_index) for tensor in model.tensors] == [("a", 1), ("b", 1), ("c", 2)]
    assert model.metadata["general.name"] == "split"
    assert [file.alignment for file in model.files] == [32, 32, 64]
    assert model.tensors[2].offset == model.files[2].header_bytes


def test_links_named_as_shards(tmp_path: Path) -> None:
    """As a download cache keeps them: the files have other names."""
    (tmp_path / "links").mkdir()
    for index, path in enumerate(_write_shards(tmp_path)):
        (tmp_path / "links" / path.name).symlink_to(path.rename(tmp_path / f"blob{index}"))
    assert len(read_gguf(tmp_path / "links" / "m-00002-of-00003.gguf").files) == 3


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths = _write_shards(tmp_path)
    paths[0].unlink()
    paths[2].unlink()
    assert _message(paths[1]) == (
        f"{paths[1]}: shards are missing, 2 of 3: m-00001-of-00003.gguf, m-00003-of-00003.gguf; "
        "download them into the same folder"
    )


def test_many_missing_shards_are_counted(tmp_path: Path) -> None:
    path = shard(0, 65535, 0).write(tmp_path / "m-00001-of-65535.gguf")
    message = _message(path)
    assert "shards are missing, 65534 of 65535: " in message
    assert "and 65531 more" in message


def test_renamed_shard(tmp_path: Path) -> None:
    path = _write_shards(tmp_path)[1].rename(tmp_path / "model.gguf")
    assert "model.gguf should end in -00002-of-00003.gguf: its metadata says split.no=1" in _message(path)


def test_swapped_shards(tmp_path: Path) -> None:
    paths = _write_shards(tmp_path)
    paths[1].rename(tmp_path / "x")
    paths[2].rename(paths[1])
    (tmp_path / "x").rename(paths[2])
    assert "split.no is 2 of 3, but by its name this is shard 1 of 3" in _message(paths[0])


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = _write_shards(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    assert _message(paths[0]).startswith(f"{paths[2]}: data of tensor 'c' is cut off")


def test_tensor_total(tmp_path: Path) -> None:
    assert "split.tensors.count is 4, but the 3 shards hold 3 tensors" in _message(
        _write_shards(tmp_path, 4)[0]
    )


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    shard(0, 2, 2).tensor("a", (8,)).write(tmp_path / "m-00001-of-00002.gguf")
    path = shard(1, 2, 2).tensor("a", (8,)).write(tmp_path / "m-00002-of-00002.gguf")
    assert "tensor 'a' is there twice: in m-00001-of-00002.gguf too" in _message(path)


def test_shard_of_another_split(tmp_path: Path) -> None:
    paths = _write_shards(tmp_path)
    shard(1, 4, 3).tensor("a", (8,)).tensor("b", (8,)).write(paths[1])
    assert "split.no is 1 of 4" in _message(paths[0])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (G().key("split.count", U32, 2), "split.count is 2 of type u32, not u16"),
        (G().key("split.count", U16, 2), "split.no is missing"),
        (G().key("split.count", U16, 2).key("split.no", STRING, "x"), "split.no is 'x' of type str"),
        (G().key("split.count", U16, 2).key("split.no", U16, 7), "should end in -00008-of-00002.gguf"),
        (G().key("split.count", U16, 2).key("split.no", U16, 0), "split.tensors.count is missing"),
        (shard(0, 2, 0, G().key("x", I32, 0)), "split.no is 0 of 2, but by its name"),
    ],
)  # fmt: skip
def test_split_keys(tmp_path: Path, made: GgufBuilder, expected: str) -> None:
    second = GgufBuilder().key("split.no", U16, 0 if "by its name" in expected else 1)
    second.write(tmp_path / "m-00002-of-00002.gguf")
    assert expected in _message(made.write(tmp_path / "m-00001-of-00002.gguf"))


def test_a_count_of_one_is_a_single_file(tmp_path: Path) -> None:
    assert len(read_gguf(shard(0, 1, 1).tensor("a", (8,)).write(tmp_path / "any.gguf")).files) == 1


def test_shard_names() -> None:
    assert [path.name for path in shard_paths(Path("d/a-b-00002-of-00002.gguf"), 1, 2)] == [
        "a-b-00001-of-00002.gguf",
        "a-b-00002-of-00002.gguf",
    ]
    with pytest.raises(ModelError, match="should end in"):
        shard_paths(Path("-00001-of-00002.gguf"), 0, 2)
