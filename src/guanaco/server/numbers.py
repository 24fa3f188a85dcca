"""Numbers in JSON schemas that the engine's parsers count wrong with. Pure.

Near the ends of a 64-bit integer they overflow: one takes memory without end, the other all of its stack. A
large ``multipleOf`` is a machine with as many states. Leaves everything else in a schema to the engine.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 1 << 53  # JSON's numbers are exact up to here
MOST_MULTIPLE = 10_000_000
_LOWER_BOUNDS = ("minimum", "exclusiveMinimum")
_VALUES = ("const", "enum")


def too_large(part: object) -> str | None:
    """The first number in a schema that is too large to count with, as ``name: number``."""
    return _in_value(part, "") if isinstance(part, int | float) else _in_schema(part)


def _in_schema(part: object) -> str | None:
    if isinstance(part, list):
        return _first(_in_schema(item) for item in part)
    if not isinstance(part, dict):
        return None
    return _first(_of_keyword(name, value) for name, value in part.items())


def _of_keyword(name: str, value: object) -> str | None:
    if isinstance(value, int | float):
        if name in _LOWER_BOUNDS:
            return _named(name, value) if value > MOST else None
        if name == "multipleOf":
            return _named(name, value) if abs(value) > MOST_MULTIPLE else None
        return _in_value(value, name)
    return _in_value(value, name) if name in _VALUES else _in_schema(value)


def _in_value(part: object, name: str) -> str | None:
    """Below zero only: the other end is counted well."""
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, list):
        return _first(_in_value(item, name) for item in part)
    return _named(name, part) if isinstance(part, int | float) and part < -MOST else None


def _first(found: Iterable[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def _named(name: str, value: float) -> str:
    return f"{name}: {value:g}"
