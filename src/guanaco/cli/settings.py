"""How flags, variables and defaults become configuration. Pure: the environment is passed in.

Owns precedence (flag, then variable, then default), deprecated aliases and refusals; the rows are in
``table``. Nothing else in the product reads the environment for settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from guanaco.cli.table import Setting
from guanaco.config import LoadConfig, SamplingConfig, ServeConfig
from guanaco.errors import UsageError


@dataclass(frozen=True)
class _Candidate:
    value: object
    origin: str
    rank: tuple[int, int]  # source, row


@dataclass(frozen=True)
class Resolved:
    """Values by ``group.field`` for all that was set, and what to tell the user about it."""

    values: dict[str, object]
    warnings: tuple[str, ...]

    def group(self, name: str) -> dict[str, Any]:
        prefix = name + "."
        return {
            key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)
        }


def resolve(
    settings: Iterable[Setting], given: Mapping[str, object], environment: Mapping[str, str]
) -> Resolved:
    """Decide every value. ``given`` maps ``Setting.parameter`` to the flag's text (True for a switch)."""
    candidates: dict[str, list[_Candidate]] = {}
    warnings: list[str] = []
    for row, setting in enumerate(settings):
        for is_flag, origin, word in _sources(setting, given, environment):
            if setting.refusal is not None:
                spellings = ", ".join(setting.flags) if is_flag else origin
                raise UsageError(f"{spellings} {setting.refusal}", setting=origin)
            value = _parsed(setting, origin, word)
            if setting.use_instead is not None:
                warnings.append(f"{origin} is deprecated; use {setting.use_instead} {value}")
            source = int(is_flag == setting.variable_wins)
            candidates.setdefault(setting.target, []).append(_Candidate(value, origin, (source, row)))
    chosen: dict[str, object] = {}
    for target, found in candidates.items():
        found.sort(key=lambda candidate: candidate.rank)
        _check_flags_agree(found)
        chosen[target] = found[0].value
        for loser in found[1:]:
            if found[0].rank[0] == 0 and loser.origin.startswith("-") and loser.value != found[0].value:
                warnings.append(f"{found[0].origin} overrides {loser.origin} {loser.value}")
    return Resolved(chosen, tuple(warnings))


def model_path(argument: str | None, given: Mapping[str, object], resolved: Resolved) -> Path:
    """The model, named by position or by -m; the variable counts when neither is given."""
    flag = given.get("m")
    if argument is not None and flag is not None and argument != flag:
        raise UsageError(f"two models are named, {argument} and {flag}; keep one of them")
    named = argument or resolved.values.get("model.path")
    if not isinstance(named, str):
        raise UsageError("no model is named; give the path of a .gguf file")
    return Path(named)


def load_config(model: Path, resolved: Resolved) -> LoadConfig:
    fields = {name: value for name, value in resolved.group("load").items() if name != "spec_type"}
    if fields.get("n_parallel", 1) is None:
        del fields["n_parallel"]
    return _valid(LoadConfig(model=model, **fields))


def sampling_config(resolved: Resolved) -> SamplingConfig:
    return _valid(SamplingConfig(**resolved.group("sampling")))


def serve_config(resolved: Resolved) -> ServeConfig:
    return _valid(ServeConfig(**resolved.group("serve")))


def _sources(
    setting: Setting, given: Mapping[str, object], environment: Mapping[str, str]
) -> Iterator[tuple[bool, str, str]]:
    flag_value = given.get(setting.parameter) if setting.flags else None
    if flag_value is not None and flag_value is not False:
        yield True, setting.long_flag, str(flag_value)
    for variable in setting.variables:
        if environment.get(variable):
            yield False, variable, environment[variable]


def _parsed(setting: Setting, origin: str, word: str) -> object:
    try:
        value = setting.parse(word)
    except ValueError as problem:
        raise UsageError(f"{origin}: {problem}", setting=origin, value=word) from None
    return dict(setting.meanings).get(value, value) if setting.meanings else value


def _check_flags_agree(found: list[_Candidate]) -> None:
    flags = [candidate for candidate in found if candidate.origin.startswith("-")]
    for other in flags[1:]:
        if other.value != flags[0].value:
            raise UsageError(f"{flags[0].origin} and {other.origin} contradict each other; keep one of them")


_Config = TypeVar("_Config", LoadConfig, SamplingConfig, ServeConfig)


def _valid(config: _Config) -> _Config:
    reason = config.validate()
    if reason is not None:
        raise UsageError(reason)
    return config
