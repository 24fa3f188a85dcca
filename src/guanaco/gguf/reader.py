"""Reading a model's GGUF headers: one file, or every shard of a split model given any one of them.

Owns opening, file identity and the checks across shards. Reads metadata only: no tensor data is mapped
or used, and the pages read are dropped from the file cache again. Refuses all that is not a regular,
complete file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guanaco.gguf.cursor import Budget, Cursor
from guanaco.gguf.header import Header, read_header
from guanaco.gguf.problem import CONVERT_AGAIN, FETCH_AGAIN, model_error, shown
from guanaco.gguf.types import GgufModel, ShardFile, TensorInfo

_NAMED_MISSING = 3


@dataclass(frozen=True)
class _Shard:
    file: ShardFile
    header: Header


def read_gguf(path: Path) -> GgufModel:
    """The header of a GGUF model; of all its shards, in order, if it is split.

    Blocks on the file system. Raises ModelError that names the file, the field, the value and the way out.
    """
    budget = Budget()
    shard = _read_file(path, 0, budget)
    count = _split_value(shard, "split.count", "u16", default=1)
    if count <= 1:
        return _model([shard])
    number = _split_value(shard, "split.no", "u16", default=None)
    paths = shard_paths(path, number, count)
    _check_present(path, paths)
    if number != 0:  # file indices and the metadata that counts start from the first shard
        budget = Budget()
        shard = _read_file(paths[0], 0, budget)
    shards = [shard]
    shards += [_read_file(paths[index], index, budget) for index in range(1, count)]
    _check_shards(shards, count)
    return _model(shards)


def shard_paths(path: Path, number: int, count: int) -> list[Path]:
    """Every shard's path, from the name of shard ``number`` (from 0); names are as llama.cpp splits them."""
    suffix = _shard_suffix(number, count)
    prefix = path.name.removesuffix(suffix)
    if prefix in ("", path.name):
        problem = (
            f"{path.name} should end in {suffix}: its metadata says split.no={number}, split.count={count}"
        )
        raise model_error(path, "name", problem, "give the shards the names they were split with", path.name)
    return [path.parent / (prefix + _shard_suffix(index, count)) for index in range(count)]


def _shard_suffix(number: int, count: int) -> str:
    return f"-{number + 1:05d}-of-{count:05d}.gguf"


def _read_file(path: Path, file_index: int, budget: Budget) -> _Shard:
    try:
        # a FIFO would block the open, a device could do anything
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise model_error(path, "path", "is a folder", "give the path of one .gguf file in it")
        if not stat.S_ISREG(mode):
            raise model_error(path, "path", "is not a regular file", "give the path of a .gguf file")
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise model_error(path, "file", "does not exist", "check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise model_error(
            path, "file", f"cannot be opened: {reason}", "check its path and permissions"
        ) from error
    try:
        return _read_open_file(fd, path, file_index, budget)
    finally:
        os.close(fd)


def _read_open_file(fd: int, path: Path, file_index: int, budget: Budget) -> _Shard:
    status = os.fstat(fd)
    _advise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead into the tensor data
    cursor = Cursor(fd, path, status.st_size, budget)
    try:
        header = read_header(cursor, file_index, budget)
    finally:
        if cursor.end_bytes:  # a length of 0 would mean the whole file
            _advise(fd, 0, cursor.end_bytes, os.POSIX_FADV_DONTNEED)
    file = ShardFile(
        path=path,
        size_bytes=status.st_size,
        device=status.st_dev,
        inode=status.st_ino,
        mtime_ns=status.st_mtime_ns,
        header_bytes=header.header_bytes,
        alignment=header.alignment,
    )
    return _Shard(file, header)


def _advise(fd: int, offset: int, length: int, advice: int) -> None:
    with contextlib.suppress(OSError):  # only advice: some file systems have none
        os.posix_fadvise(fd, offset, length, advice)


def _split_value(shard: _Shard, key: str, type_name: str, default: int | None) -> int:
    """A ``split.*`` number, of exactly the type llama.cpp asks for."""
    value = shard.header.metadata.get(key, default)
    found = shard.header.value_types.get(key, type_name)
    if value is None:
        raise model_error(shard.file.path, key, "is missing", CONVERT_AGAIN)
    if found != type_name or not isinstance(value, int):
        problem = f"is {shown(value)} of type {found}, not {type_name}"
        raise model_error(shard.file.path, key, problem, CONVERT_AGAIN, value)
    return value


def _check_present(path: Path, paths: Sequence[Path]) -> None:
    missing = [item.name for item in paths if not os.access(item, os.F_OK)]
    if missing:
        named = ", ".join(missing[:_NAMED_MISSING])
        more = f" and {len(missing) - _NAMED_MISSING} more" if len(missing) > _NAMED_MISSING else ""
        problem = f"are missing, {len(missing)} of {len(paths)}: {named}{more}"
        raise model_error(path, "shards", problem, "download them into the same folder")


def _check_shards(shards: Sequence[_Shard], count: int) -> None:
    files: dict[str, Path] = {}
    for index, shard in enumerate(shards):
        number = _split_value(shard, "split.no", "u16", default=None)
        of = _split_value(shard, "split.count", "u16", default=count)
        if (number, of) != (index, count):
            problem = f"is {number} of {of}, but by its name this is shard {index} of {count}, counted from 0"
            raise model_error(shard.file.path, "split.no", problem, FETCH_AGAIN, number)
        for tensor in shard.header.tensors:
            if tensor.name in files:
                problem = f"is there twice: in {files[tensor.name].name} too"
                raise model_error(shard.file.path, f"tensor {shown(tensor.name)}", problem, FETCH_AGAIN)
            files[tensor.name] = shard.file.path
    expected = _split_value(shards[0], "split.tensors.count", "i32", default=None)
    if expected != len(files):
        problem = f"is {expected}, but the {count} shards hold {len(files)} tensors"
        raise model_error(shards[0].file.path, "split.tensors.count", problem, FETCH_AGAIN, expected)


def _model(shards: Sequence[_Shard]) -> GgufModel:
    tensors: list[TensorInfo] = []
    for shard in shards:
        tensors += shard.header.tensors
    return GgufModel(
        files=tuple(shard.file for shard in shards),
        version=shards[0].header.version,
        metadata=shards[0].header.metadata,
        tensors=tuple(tensors),
    )
