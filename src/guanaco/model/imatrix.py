"""The importance matrix beside a model: how often each expert was chosen while it was computed.

Owns finding ``<model>.imatrix.gguf`` (the suffix of a shard may be there or not) and reading the counts of
the expert tensors; nothing else of it is read. Leaves what they are good for to ``cache.prior``. Refuses a
file that is no imatrix, or one whose counts do not fit the model, naming the file.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from guanaco.errors import ModelError
from guanaco.gguf.problem import FETCH_AGAIN, model_error, shown
from guanaco.gguf.reader import read_gguf
from guanaco.gguf.types import TensorInfo
from guanaco.model.experts import ExpertGroup

_SUFFIX = ".imatrix.gguf"
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_OTHER_MODEL = "it belongs to another model: move it away, or set GUANACO_IMATRIX=0"


def find_imatrix(model: Path) -> Path | None:
    """The imatrix of a model named by its file, or by its first shard."""
    stem = model.name.removesuffix(".gguf")
    for name in dict.fromkeys((_SHARD.sub("", stem), stem)):
        path = model.with_name(name + _SUFFIX)
        if path.is_file():
            return path
    return None


def read_expert_counts(path: Path, groups: Sequence[ExpertGroup]) -> tuple[tuple[float, ...], ...]:
    """How often each expert of each group was chosen; ``()`` for a group of which nothing is known.

    Raises ModelError.
    """
    matrix = read_gguf(path)
    kind = matrix.metadata.get("general.type")
    if kind != "imatrix":
        problem = f"is {shown(kind)}, not 'imatrix'"
        raise model_error(path, "general.type", problem, "move it away, or compute it again", kind)
    tensors = {tensor.name: tensor for tensor in matrix.tensors}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise model_error(path, "file", f"cannot be opened: {error.strerror}", "check it") from error
    try:
        return tuple(_counts_of(fd, path, tensors, group) for group in groups)
    finally:
        os.close(fd)


def _counts_of(fd: int, path: Path, tensors: dict[str, TensorInfo], group: ExpertGroup) -> tuple[float, ...]:
    """Every part of an expert is used as often as the others: the first that is there says it."""
    for part in group.parts:
        tensor = tensors.get(f"{part.tensor_name}.counts")
        if tensor is not None:
            counts = _numbers(fd, path, tensor, group.n_expert)
            # One number stands for experts that were all chosen equally often: that tells nothing.
            return counts if len(set(counts)) > 1 else ()
    return ()


def _numbers(fd: int, path: Path, tensor: TensorInfo, n_expert: int) -> tuple[float, ...]:
    label = f"tensor {shown(tensor.name)}"
    count = math.prod(tensor.dims)
    if tensor.type_name != "f32" or count not in (1, n_expert):
        problem = f"holds {count} values of type {tensor.type_name}, not one for each of {n_expert} experts"
        raise model_error(path, label, problem, _OTHER_MODEL, tensor.dims)
    raw = _read(fd, path, tensor.offset, 4 * count, label)
    counts = struct.unpack(f"<{count}f", raw)
    if not all(0 <= value < math.inf for value in counts):
        raise model_error(path, label, "holds a value that is no count", FETCH_AGAIN)
    return counts


def _read(fd: int, path: Path, offset: int, nbytes: int, label: str) -> bytes:
    try:
        raw = os.pread(fd, nbytes, offset)
    except OSError as error:
        raise _unreadable(path, label, error.strerror or "the drive failed") from error
    if len(raw) < nbytes:
        raise _unreadable(path, label, "the file ends early")
    return raw


def _unreadable(path: Path, label: str, reason: str) -> ModelError:
    return model_error(path, label, f"cannot be read: {reason}", FETCH_AGAIN)
