"""How a node's models are placed: settings that are changed while it runs, and kept across restarts.

Owns their names, their bounds and the file. Validated as a whole: a change with one wrong value changes
nothing. Leaves acting on them to the next load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from guanaco.errors import UsageError
from guanaco.files import replacing
from guanaco.units import parse_size

_MOST_LAYERS = 999
_MOST_TOKENS = (1 << 31) - 1
_FEWEST_TOKENS = 2
_MOST_FILE_BYTES = 1 << 16
_MOST_SECONDS = 1e9


@dataclass(frozen=True)
class InferenceSettings:
    """None: decided from the machine or the model."""

    cpu_moe_layers: int = -1  # leading layers whose experts stay off the card; -1: as few as it takes
    gpu_layers: int = _MOST_LAYERS  # 0: all on the processor
    ctx_length: int | None = None  # tokens of the first conversation
    memory_bytes: int | None = None  # of the whole node
    idle_unload_s: float | None = None  # None: models stay until others need their room
    multi_model_reserve: bool = True  # keep room on the card for the smallest other chat model


def changed(settings: InferenceSettings, wanted: object) -> InferenceSettings:
    """``settings`` with the fields of a JSON object changed; others stay as they are.

    Raises UsageError that names the field, the value and what it may be.
    """
    if not isinstance(wanted, Mapping):
        raise UsageError('the settings must be a JSON object, such as {"ctx_length": 8192}')
    values: dict[str, Any] = {}
    for name, value in wanted.items():
        if name not in _PARSERS:
            raise UsageError(f"{name!r} is not a setting; there are {', '.join(_PARSERS)}", setting=name)
        values["memory_bytes" if name == "memory" else name] = _PARSERS[name](name, value)
    return replace(settings, **values)


def settings_json(settings: InferenceSettings) -> dict[str, Any]:
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    values["memory"] = values.pop("memory_bytes")
    return values


def load_settings(path: Path) -> InferenceSettings:
    """What was kept, or the defaults where nothing was.

    Raises UsageError for a file that says nothing usable.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_FILE_BYTES + 1)
        if len(text) > _MOST_FILE_BYTES:
            raise ValueError("it is too long")
        return changed(InferenceSettings(), json.loads(text))
    except FileNotFoundError:
        return InferenceSettings()
    except (OSError, ValueError, RecursionError, UsageError) as problem:
        raise UsageError(
            f"{path} holds no usable settings: {problem}; correct it, or remove it for the defaults"
        ) from None


def save_settings(path: Path, settings: InferenceSettings) -> None:
    """Whole or not at all. Raises UsageError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(json.dumps(settings_json(settings), indent=2) + "\n")
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be written: {problem.strerror}; the settings are as before"
        ) from None


def _whole(least: int, most: int, or_none: str | None = None) -> Any:
    def parse(name: str, value: object) -> int | None:
        if value is None and or_none is not None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            none = f", or null ({or_none})" if or_none else ""
            raise UsageError(
                f"{name} is {_shown(value)}, but must be a whole number from {least} to {most}{none}",
                setting=name,
            )
        return value

    return parse


def _memory(name: str, value: object) -> int | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{_shown(value)} is not a size; write it as 8GiB, or null (from the machine)")
        return parse_size(str(value))
    except ValueError as problem:
        raise UsageError(f"{name}: {problem}", setting=name) from None


def _seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < _MOST_SECONDS:  # type: ignore[operator]
        raise UsageError(
            f"{name} is {_shown(value)}, but must be seconds from 0 up, or null (never)", setting=name
        )
    return float(value)  # type: ignore[arg-type]


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {_shown(value)}, but must be true or false", setting=name)
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:80]}..."


_PARSERS: Mapping[str, Any] = {
    "cpu_moe_layers": _whole(-1, _MOST_LAYERS),
    "gpu_layers": _whole(0, _MOST_LAYERS),
    "ctx_length": _whole(_FEWEST_TOKENS, _MOST_TOKENS, "from the model and the memory"),
    "memory": _memory,
    "idle_unload_s": _seconds,
    "multi_model_reserve": _flag,
}
