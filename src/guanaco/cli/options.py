"""The settings table as click options. Owns nothing but that translation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from guanaco.cli.table import Setting, settings_for

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
