"""The settings table as click options, and the check that no word is taken for a flag it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click

from guanaco.cli.table import Setting, settings_for
from guanaco.config import LoadConfig, SamplingConfig, ServeConfig
from guanaco.errors import UsageError

_DEFAULTS = {
    f"{group}.{field.name}": field.default
    for group, config in (("load", LoadConfig), ("sampling", SamplingConfig), ("serve", ServeConfig))
    for field in fields(config)
}
_SHORT_FLAG = re.compile(r"-[A-Za-z]{2}\S*")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def setting_options(*groups: str) -> Callable[[_Function], _Function]:
    """Add every flag of these groups; each arrives as text (a switch as True), None when not given."""

    def decorate(function: _Function) -> _Function:
        for setting in reversed(settings_for(groups)):
            if setting.flags:
                function = _option(setting)(function)
        return function

    return decorate


def _option(setting: Setting) -> Callable[[_Function], _Function]:
    text = setting.help
    default = _DEFAULTS.get(setting.target)
    if isinstance(default, (str, int, float)) and not setting.is_switch and "Default" not in text:
        text += f" Default: {default}."
    if setting.variables:
        text += f"  [{', '.join(setting.variables)}]"
    hidden = setting.refusal is not None or setting.use_instead is not None
    if setting.is_switch:
        return click.option(
            *setting.flags, setting.parameter, is_flag=True, default=None, help=text, hidden=hidden
        )
    return click.option(
        *setting.flags, setting.parameter, metavar=setting.metavar, default=None, help=text, hidden=hidden
    )


def refuse_glued_flags(command: click.Command, words: Sequence[str]) -> None:
    """``-md x`` is not ``-m d`` and a word ``x``: llama.cpp's short flags have several letters.

    Raises UsageError for a word that looks like such a flag and is none of the command's.
    """
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    known = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    with_value = {flag for option in options if not option.is_flag for flag in option.opts}
    is_value = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if is_value:
            is_value = False
        elif word == "--":
            return
        elif flag in with_value:
            is_value = not equals
        elif _SHORT_FLAG.fullmatch(word) and flag not in known:
            raise UsageError(f"no such option: {flag}; guanaco {command.name} --help lists them")
