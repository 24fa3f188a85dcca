"""Slots saved to files, and what makes them safe to read back.

The engine ends on a damaged file, and takes one of another model for its own. Owns a mark beside each file:
its digest, what it was saved from, and which conversation. A file without a mark, or that is not what its
mark says, is refused before the engine sees it. Blocks; nothing here is shared between threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from guanaco.config import LoadConfig
from guanaco.files import replacing
from guanaco.model.map import ModelMap
from guanaco.server.problems import RequestError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MARK, _PARTIAL = ".mark", ".partial"
_PIECE_BYTES = 1 << 20
_PIECES = 8  # of a file of weights


def origin_of(model: ModelMap, config: LoadConfig, engine: str) -> str:
    """What a saved slot depends on: the weights, the caches' types and number, and the engine.

    Of the weights a few pieces of each file: another quantisation of a model has its name and its sizes.
    """
    digest = hashlib.sha256()
    caches = [config.cache_type_k, config.cache_type_v, config.flash_attn, config.n_parallel]
    digest.update(json.dumps([engine, model.name, model.arch, caches]).encode())
    for file in model.files:
        digest.update(file.size_bytes.to_bytes(8, "little"))
        spread = [
            file.header_bytes + (file.size_bytes - file.header_bytes) * n // _PIECES for n in range(_PIECES)
        ]
        with file.path.open("rb") as opened:
            for offset in (0, *spread):
                digest.update(os.pread(opened.fileno(), _PIECE_BYTES, offset))
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Mark:
    sha256: str
    origin: str
    conversation: str  # digest of the prompt, in hex: who goes on with it finds its slot

    @classmethod
    def read(cls, path: Path) -> _Mark:
        fields = json.loads(path.read_text())
        return cls(str(fields["sha256"]), str(fields["origin"]), str(fields["conversation"]))


class SavedSlots:
    """The files of one folder, for one model as it is loaded."""

    def __init__(self, folder: Path, origin: str) -> None:
        self._folder = folder
        self._origin = origin
        for left_behind in folder.glob(f"*{_PARTIAL}"):  # by a server that was killed
            self.drop(left_behind.name)

    def partial_name(self, name: str) -> str:
        """What the engine is to write to; ``keep`` makes it ``name``. Raises RequestError for a bad name."""
        self._path(name)
        return f"{secrets.token_hex(8)}{_PARTIAL}"

    def keep(self, name: str, partial: str, conversation: bytes) -> None:
        """What the engine has written to ``partial`` is whole now, and becomes ``name``."""
        path, written = self._path(name), self._folder / partial
        try:
            mark = _Mark(_digest(written, is_written=True), self._origin, conversation.hex())
            with replacing(path.with_name(name + _MARK)) as target:
                target.write_text(json.dumps(asdict(mark)))
                # Last: when this fails the mark before stays, with the file before.
                written.replace(path)
        except OSError as problem:
            raise RequestError(500, f"{name} could not be kept: {problem.strerror}") from None

    def drop(self, partial: str) -> None:
        """What the engine may have begun to write."""
        with contextlib.suppress(OSError):
            (self._folder / partial).unlink(missing_ok=True)

    def check(self, name: str) -> bytes:
        """The conversation in it. Raises RequestError unless it is what was saved, and by this model."""
        path = self._path(name)
        try:
            mark = _Mark.read(path.with_name(name + _MARK))
            is_whole = _digest(path, is_written=False) == mark.sha256
            conversation = bytes.fromhex(mark.conversation)
        except FileNotFoundError:
            raise RequestError(404, f"no slot was saved as {name!r} here", "filename") from None
        except (OSError, ValueError, LookupError, TypeError):
            is_whole = False
        if not is_whole:
            raise RequestError(
                400, f"{name} is damaged, or another program wrote it; save the slot again", "filename"
            )
        if mark.origin != self._origin:
            raise RequestError(
                400,
                f"{name} was saved by another model, another engine, with other cache types or another -np; "
                "start the server as it was then, or save the slot again",
                "filename",
            )
        return conversation

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or ".." in name or name.endswith((_MARK, _PARTIAL, ".")):
            raise RequestError(
                400,
                f"filename: {name!r} is no name for a saved slot; use up to 128 letters, digits, '.', '_' "
                f"and '-', not '..', no '.' or '-' first, no '.', {_MARK} or {_PARTIAL} last",
                "filename",
            )
        return self._folder / name


def _digest(path: Path, *, is_written: bool) -> str:
    """SHA-256 of a file; none of it stays in the page cache, which is part of the budget."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if is_written:
            os.fsync(file.fileno())
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()
