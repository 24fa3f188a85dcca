"""Which experts a model's user has used: kept from one run to the next, a small file for each model.

Owns the file, its bounds and what identifies a model: its shape, sizes and metadata, not where it lies. Holds
numbers of uses only, nothing of what was said. A file that cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guanaco.engine.heat import LayerHeat
from guanaco.model.map import ModelMap

_FORMAT = 1
_FOLDER = "use"
_MOST_FILES = 64
_MOST_TOKENS = 20_000.0  # more are scaled down, so that a new habit shows after about as many
_LEAST_TOKENS = 8
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Profile:
    """``uses[group][expert]``, for the groups of a ModelMap."""

    uses: tuple[tuple[float, ...], ...]


def load_profile(cache_dir: Path | None, model: ModelMap) -> Profile | None:
    """What was kept of this model, or None."""
    if cache_dir is None:
        return None
    path = _path(cache_dir, model)
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        value = json.loads(path.read_text())
        uses = tuple(tuple(float(count) for count in layer) for layer in value["uses"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    fits = [len(layer) for layer in uses] == [group.n_expert for group in model.groups]
    good = fits and all(0 <= count < 1e15 for layer in uses for count in layer)
    return Profile(uses) if good else None


def save_profile(cache_dir: Path | None, model: ModelMap, profile: Profile) -> None:
    """Through a temporary name; the longest unused files make room."""
    if cache_dir is None:
        return
    path = _path(cache_dir, model)
    text = json.dumps(
        {"guanaco_use": _FORMAT, "name": model.name, "uses": profile.uses}, separators=(",", ":")
    )
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
        try:
            temporary.write_text(text)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _make_room(path.parent)


def updated(
    model: ModelMap, group_class: Sequence[int], earlier: Profile | None, heat: Sequence[LayerHeat]
) -> Profile | None:
    """The profile with the uses of a run added; None when it used too little to tell anything.

    ``heat`` has one entry for each group that the plan gives a class.
    """
    planned = [index for index, class_index in enumerate(group_class) if class_index >= 0]
    fresh = {index: layer.uses for index, layer in zip(planned, heat, strict=True)}
    groups = model.groups
    n_tokens = max((sum(uses) / max(1, groups[index].top_k) for index, uses in fresh.items()), default=0.0)
    if n_tokens < _LEAST_TOKENS:
        return None
    uses = []
    for index, group in enumerate(groups):
        before: Sequence[float] = earlier.uses[index] if earlier is not None else [0.0] * group.n_expert
        added = fresh.get(index, (0,) * group.n_expert)
        total = [a + b for a, b in zip(before, added, strict=True)]
        keep = min(1.0, _MOST_TOKENS * max(1, group.top_k) / max(1.0, sum(total)))
        uses.append(tuple(round(count * keep, 2) for count in total))
    return Profile(tuple(uses))


def _path(cache_dir: Path, model: ModelMap) -> Path:
    files = [(file.size_bytes, file.header_bytes) for file in model.files]
    groups = [(group.layer, group.n_expert, group.expert_bytes) for group in model.groups]
    metadata = sorted((key, repr(value)) for key, value in model.gguf.metadata.items())
    identity = json.dumps([_FORMAT, model.arch, model.name, files, groups, metadata])
    return cache_dir / _FOLDER / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def _make_room(folder: Path) -> None:
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in kept[_MOST_FILES:]:
        path.unlink(missing_ok=True)
