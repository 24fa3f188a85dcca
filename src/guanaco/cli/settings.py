"""How flags, variables and defaults become configuration. Pure: the environment is passed in.

Owns precedence (flag, then variable, then default), deprecated aliases and refusals; the rows are in
``table``. Nothing else in the product reads the environment for settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from guanaco.cli.table import Setting
from guanaco.config import LoadConfig, SamplingConfig, ServeConfig
from guanaco.errors import UsageError


@dataclass(frozen=True)
class _Candidate:
    value: object
    origin: str
    shown: str  # in errors
    rank: tuple[int, int]  # source, row


@dataclass(frozen=True)
class Resolved:
    """Values by ``group.field`` for all that was set, and what to tell the user about it."""

    values: dict[str, object]
    warnings: tuple[str, ...]
    shown: Mapping[str, str] = field(default_factory=dict)  # where each came from, in an error's words

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
            shown = setting.spellings if is_flag else origin
            if setting.refusal is not None:
                raise UsageError(f"{shown} {setting.refusal}", setting=origin)
            value = _parsed(setting, shown, word)
            if setting.use_instead is not None:
                warnings.append(f"{origin} is deprecated; use {setting.use_instead} {value}")
            source = int(is_flag == setting.variable_wins)
            candidates.setdefault(setting.target, []).append(_Candidate(value, origin, shown, (source, row)))
    chosen: dict[str, object] = {}
    named: dict[str, str] = {}
    for target, found in candidates.items():
        found.sort(key=lambda candidate: candidate.rank)
        _check_flags_agree(found)
        chosen[target], named[target] = found[0].value, found[0].shown
        for loser in found[1:]:
            if found[0].rank[0] == 0 and loser.origin.startswith("-") and loser.value != found[0].value:
                warnings.append(f"{found[0].origin} overrides {loser.origin} {loser.value}")
    return Resolved(chosen, tuple(warnings), named)


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
    given = resolved.group("load")
    if given.get("n_parallel", 1) is None:
        del given["n_parallel"]
    return _valid(LoadConfig(model=model, grow_ubatch="n_ubatch" not in given, **given), "load", resolved)


def sampling_config(resolved: Resolved) -> SamplingConfig:
    return _valid(SamplingConfig(**resolved.group("sampling")), "sampling", resolved)


def serve_config(resolved: Resolved) -> ServeConfig:
    return _valid(ServeConfig(**resolved.group("serve")), "serve", resolved)


def _sources(
    setting: Setting, given: Mapping[str, object], environment: Mapping[str, str]
) -> Iterator[tuple[bool, str, str]]:
    flag_value = given.get(setting.parameter) if setting.flags else None
    if flag_value is not None and flag_value is not False:
        yield True, setting.long_flag, str(flag_value)
    for variable in setting.variables:
        if environment.get(variable):
            yield False, variable, environment[variable]


def _parsed(setting: Setting, shown: str, word: str) -> object:
    try:
        value = setting.parse(word)
    except ValueError as problem:
        raise UsageError(f"{shown}: {problem}", setting=shown, value=word) from None
    return dict(setting.meanings).get(value, value) if setting.meanings else value


def _check_flags_agree(found: list[_Candidate]) -> None:
    flags = [candidate for candidate in found if candidate.origin.startswith("-")]
    for other in flags[1:]:
        if other.value != flags[0].value:
            raise UsageError(f"{flags[0].origin} and {other.origin} contradict each other; keep one of them")


_Config = TypeVar("_Config", LoadConfig, SamplingConfig, ServeConfig)


def _valid(config: _Config, group: str, resolved: Resolved) -> _Config:
    reason = config.validate()
    if reason is None:
        return config
    # At fault is what makes the reason go away when it is left out.
    usual: dict[str, Any] = {entry.name: entry.default for entry in fields(config)}
    at_fault = [
        resolved.shown[f"{group}.{name}"]
        for name in resolved.group(group)
        if usual.get(name, MISSING) is not MISSING
        and replace(config, **{name: usual[name]}).validate() != reason
        and f"{group}.{name}" in resolved.shown
    ]
    raise UsageError(f"{' and '.join(at_fault)}: {reason}" if at_fault else reason)
