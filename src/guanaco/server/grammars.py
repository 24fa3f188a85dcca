"""What a grammar or a JSON schema makes of a few letters: the engine writes repetitions out. Pure.

Owns the estimate, an upper one, and the bounds that keep the engine's parser from running out of stack.
Leaves judging whether a grammar is one to the engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

MOST_CHARS = 1 << 16
MOST_DEPTH = 128  # the engine's parser recurses
# The engine's own parser refuses to repeat anything more often; the one behind ``json_schema`` does not.
_MOST_REPEATS = 2000
_ELEMENT_BYTES = 24  # of a grammar, kept twice: 20.5 were measured
_RULE_BYTES = 512  # for each optional repetition, with its name
_ITEM_BYTES = 1024  # for each repetition that a schema asks for
_REGEX_BYTES = 256  # of a schema's pattern, for each letter with all repetitions: 210

_MOST_DIGITS = 18  # of a number that is looked at; more are as good as endless

ENDLESS_BYTES = 1 << 62  # a repetition that ends before it begins: the engine counts down from there

# None of these goes back over what it has read (``*+``), and what is never closed ends with the text: it
# takes as long as the text is, whatever a client sends.
_TEXT = r'"(?:\\.|[^"\\])*+"?|\[(?:\\.|[^\]\\])*+\]?'
_ENTRY = r"<[^>]*+>?"
_LITERAL = re.compile(rf"{_TEXT}|{_ENTRY}|#[^\n]*", re.DOTALL)
_SYMBOL = re.compile(
    rf"(?P<text>{_TEXT})|#[^\n]*|(?P<close>\))"
    r"|\{\s*+(?P<fewest>\d*+)\s*+(?:,\s*+(?P<most>\d*+)\s*+)?\}|(?P<any>[*+?])|(?P<name>[\w.-]++)"
    rf"|(?P<token>{_ENTRY})",
    re.DOTALL,
)
# The engine reads numbers between braces as C does: blanks and signs are no hindrance.
_REGEX = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{(?P<repeat>[^{}]*+)\}|.", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d++")
_FOREIGN = "%llguidance"  # a grammar of another kind, for another parser


def too_deep(grammar: str) -> int | None:
    """How deep its parentheses nest, when that is more than the engine's stack should bear."""
    depth = deepest = 0
    for letter in _LITERAL.sub("", grammar):
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    return deepest if deepest > MOST_DEPTH else None


def is_foreign(grammar: str) -> bool:
    """Whether it is for the parser whose memory nobody can tell before."""
    return grammar.lstrip().startswith(_FOREIGN)


def whole(value: object) -> int | None:
    """A JSON number as the engine rounds it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or math.isfinite(value) else None


def backward(grammar: str) -> str | None:
    """A repetition that ends before it begins, which the engine would write out for ever."""
    for symbol in _SYMBOL.finditer(_without_comments(grammar)):
        fewest, most = symbol["fewest"], symbol["most"]
        if most and _times(most) < _times(fewest or "0"):
            return symbol[0]
    return None


def _without_comments(grammar: str) -> str:
    return _LITERAL.sub(lambda found: " " if found[0].startswith("#") else found[0], grammar)


def grammar_bytes(grammar: str) -> int:
    """Memory of the engine for a grammar, its repetitions written out.

    A literal is one element a letter, a group or a name is one; ``S{m,n}`` is S m times and n - m rules.
    """
    elements = rules = last = 0
    for symbol in _SYMBOL.finditer(_without_comments(grammar)):
        if symbol["text"] is not None:
            last = len(symbol["text"])
        elif symbol["name"] or symbol["token"] or symbol["close"]:
            last = 1
        elif symbol["any"] is not None:
            rules += 1
        elif symbol["fewest"] is not None:
            times = max(_times(symbol["fewest"] or "0"), _times(symbol["most"] or "0"))
            times = min(times, _MOST_REPEATS)  # the engine refuses the whole grammar
            last *= times
            rules += times if symbol["most"] is not None else 0
        else:
            continue
        elements += last
    return _ELEMENT_BYTES * elements + _RULE_BYTES * rules


def pattern_bytes(pattern: str) -> int:
    """Memory of the engine for a regular expression, its repetitions written out."""
    open_groups, total, last = [], 0, 0
    for piece in _REGEX.finditer(pattern):
        counts = [_times(number) for number in _NUMBER.findall(piece["repeat"] or "")]
        if counts:
            if counts != sorted(counts) or counts[0] < 0:
                return ENDLESS_BYTES
            times = counts[-1]
            total, last = total + last * (times - 1), last * times
            if total > ENDLESS_BYTES:
                return ENDLESS_BYTES
        elif piece[0] == "(":
            open_groups.append(total)
            total = last = 0
        elif piece[0] == ")" and open_groups:
            total, last = open_groups.pop() + total, total
        else:
            total, last = total + (1 if piece["repeat"] is None else len(piece[0])), 1
    return _REGEX_BYTES * (total + sum(open_groups))


def schema_bytes(part: object, *, is_bounded: bool) -> int:
    """Memory of the engine for the repetitions that JSON schemas anywhere in ``part`` ask for.

    ``is_bounded``: the engine's own parser gets it, which takes no repetition beyond its limit.
    """
    schemas = list(objects(part))
    patterns = [value for value in (one.get("pattern") for one in schemas) if isinstance(value, str)]
    if sum(map(len, patterns)) > MOST_CHARS:
        return ENDLESS_BYTES  # as a grammar of that length is refused: to read it takes its time here too
    return sum(map(pattern_bytes, patterns)) + sum(_items_bytes(one, is_bounded) for one in schemas)


def objects(part: object) -> Iterator[dict[str, Any]]:
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _items_bytes(schema: dict[str, Any], is_bounded: bool) -> int:
    total = 0
    for key in ("minItems", "maxItems", "minLength", "maxLength"):
        times = max(0, whole(schema.get(key)) or 0)
        # Lengths are not written out by the parser that takes any number of items.
        most = _MOST_REPEATS if is_bounded or key.endswith("Length") else 10**_MOST_DIGITS
        total += min(times, most) * _ITEM_BYTES
    return total


def _times(digits: str) -> int:
    """A number as written, which a client may have made as long as it likes."""
    return int(digits) if len(digits) <= _MOST_DIGITS else 10**_MOST_DIGITS
