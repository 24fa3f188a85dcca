"""The models of a folder: what each is called, which file it is, and why one cannot be used.

Owns names and identities. A name is only ever looked up, never made into a path. Reads headers, no weights.
Refuses nothing: a file that cannot be used is listed with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from guanaco.errors import ModelError, UsageError
from guanaco.gguf.reader import read_gguf
from guanaco.model.map import ModelMap, build_model_map
from guanaco.model.recipes import NOT_MODELS

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-\d{5}")
_MOST_FILES = 10_000  # a folder with more is not one of models


@dataclass(frozen=True)
class Entry:
    """One model. Exactly one of ``model`` and ``problem`` is there."""

    name: str
    path: Path  # of the first shard
    model: ModelMap | None
    problem: str | None = None
    aliases: tuple[str, ...] = ()  # other names of the same file

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Registry:
    entries: tuple[Entry, ...]  # by name
    skipped: Mapping[Path, str]  # files that are no models, and what they are

    def find(self, name: str) -> Entry | None:
        """By any of its names; None for a name that nobody has."""
        return next((entry for entry in self.entries if name in entry.names), None)


def scan(folder: Path) -> Registry:
    """All ``.gguf`` files below ``folder``; links to one file are one model.

    Raises UsageError when the folder cannot be read or holds far too much.
    """
    paths = _gguf_files(folder)
    by_file: dict[tuple[int, int], list[Path]] = {}
    for path in paths:
        status = path.stat()
        by_file.setdefault((status.st_dev, status.st_ino), []).append(path)
    entries, skipped = [], {}
    taken = _names(folder, paths)
    for same in by_file.values():
        # The file itself rather than a link to it.
        first = min(same, key=lambda path: (path.is_symlink(), str(path)))
        names = sorted({taken[path] for path in same if path != first} - {taken[first]})
        try:
            model = build_model_map(read_gguf(first))
        except ModelError as problem:
            kind = _kind(problem)
            if kind is not None:
                skipped[first] = kind
            else:
                entries.append(Entry(taken[first], first, None, problem.message, tuple(names)))
            continue
        entries.append(Entry(taken[first], first, model, None, tuple(names)))
    return Registry(tuple(sorted(entries, key=lambda entry: entry.name)), MappingProxyType(skipped))


def _gguf_files(folder: Path) -> list[Path]:
    """Whole files and first shards, links followed, in a fixed order."""
    found: list[Path] = []
    try:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder; name one that holds .gguf files")
        n_seen = 0
        for place, folders, files in os.walk(folder):
            folders.sort()
            n_seen += len(files)
            if n_seen > _MOST_FILES:
                raise UsageError(
                    f"{folder} holds more than {_MOST_FILES} files; name a folder of models alone"
                )
            found += [Path(place) / name for name in sorted(files) if name.endswith(".gguf")]
    except OSError as problem:
        raise UsageError(f"{folder} cannot be read: {problem.strerror}; check its permissions") from None
    return [path for path in found if _is_first(path) and path.is_file()]


def _is_first(path: Path) -> bool:
    shard = _SHARD.fullmatch(path.stem)
    return shard is None or int(shard["number"]) == 1


def _names(folder: Path, paths: list[Path]) -> dict[Path, str]:
    """The file's name without its ending; with its folders where that is not one of a kind."""
    short = {path: _plain(path.stem) for path in paths}
    counts: dict[str, int] = {}
    for path, name in short.items():
        if not path.is_symlink():
            counts[name] = counts.get(name, 0) + 1
    return {
        path: name
        if counts.get(name, 0) <= 1
        else "/".join((*path.relative_to(folder).parent.parts, name)).lstrip("/")
        for path, name in short.items()
    }


def _plain(stem: str) -> str:
    shard = _SHARD.fullmatch(stem)
    name = shard["stem"] if shard else stem
    return "".join(letter if letter.isprintable() else "_" for letter in name)


def _kind(problem: ModelError) -> str | None:
    """What a file is that is no model, as a projector or an importance matrix; None: a damaged model."""
    return NOT_MODELS.get(str(problem.details.get("value")).strip("'"))
