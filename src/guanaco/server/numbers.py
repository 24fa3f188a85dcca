"""Numbers in JSON schemas that the engine's parsers count wrong with. Pure.

One writes out what may follow a bound, and takes memory without end from the 16th digit on and for a range
that ends before it begins; the other overflows near the ends of 64 bits and takes all of its stack. A
``multipleOf`` is a machine with as many states, and several are one with their least common multiple. Leaves
the rest to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from guanaco.server.grammars import objects

MOST = 10**15 - 1
MOST_MULTIPLE = 10_000  # 200 bytes a state
_LONGEST = 10**308  # floats end there
_LOWER_BOUNDS = ("minimum", "exclusiveMinimum")
_VALUES = ("const", "enum")
_RANGES = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)


def too_large(part: object) -> str | None:
    """The first number in a schema that is too large to count with, as ``name: number``."""
    return _in_value(part, "") if isinstance(part, int | float) else _in_schema(part)


def backward(part: object) -> str | None:
    """The first range in a schema that ends before it begins."""
    for schema in objects(part):
        for low, high in _RANGES:
            least, most = schema.get(low), schema.get(high)
            if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
                return f"{_named(low, least)} and {_named(high, most)}"
    return None


def common_multiple(part: object) -> int:
    """Of all ``multipleOf`` in a schema, the decimal point and the zeros at the end left out."""
    given = (schema.get("multipleOf") for schema in objects(part))
    return math.lcm(*(_digits(value) for value in given if isinstance(value, int | float) and value > 0))


def _digits(value: float) -> int:
    if not value < _LONGEST:
        return MOST_MULTIPLE + 1
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits)))


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
    return f"{name}: {value:g}" if abs(value) < _LONGEST else f"{name}: a number of over 308 digits"
