"""What a grammar or a JSON schema makes of a few letters: the engine writes repetitions out. Pure.

Owns the estimate, an upper one, and the bounds that keep the engine's parser from running out of stack.
Leaves judging whether a grammar is one to the engine.
"""

from __future__ import annotations

import re

MOST_CHARS = 1 << 16
MOST_DEPTH = 128  # the engine's parser recurses
# The engine's own parser refuses to repeat anything more often; the one behind ``json_schema`` does not.
_MOST_REPEATS = 2000
_ELEMENT_BYTES = 24  # of a grammar, kept twice: 20.5 were measured
_RULE_BYTES = 512  # for each optional repetition, with its name
_ITEM_BYTES = 1024  # for each repetition that a schema asks for
_REGEX_BYTES = 256  # of a schema's pattern, for each letter with all repetitions: 210

ENDLESS_BYTES = 1 << 62  # a repetition that ends before it begins: the engine counts down from there

_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')
_SYMBOL = re.compile(
    r'(?P<text>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|#[^\n]*|(?P<close>\))'
    r"|\{\s*(?P<fewest>\d*)\s*(?:,\s*(?P<most>\d*)\s*)?\}|(?P<any>[*+?])|(?P<name>[\w.<>-]+)"
)
# The engine reads numbers between braces as C does: blanks and signs are no hindrance.
_REGEX = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(?P<repeat>[^{}]*\d[^{}]*)\}|.", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+")
_FOREIGN_REPEAT = re.compile(r'(?:[{,~]|\.\.|"(?:min|max)Items"\s*:)\s*(\d+)')
_FOREIGN = "%llguidance"  # a grammar of another kind, for another parser


def too_deep(grammar: str) -> int | None:
    """How deep its parentheses nest, when that is more than the engine's stack should bear."""
    depth = deepest = 0
    for letter in _LITERAL.sub("", grammar):
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    return deepest if deepest > MOST_DEPTH else None


def backward(grammar: str) -> str | None:
    """A repetition that ends before it begins, which the engine would write out for ever."""
    for symbol in _SYMBOL.finditer(_without_comments(grammar)):
        fewest, most = symbol["fewest"], symbol["most"]
        if most and int(most) < int(fewest or 0):
            return symbol[0]
    return None


def _without_comments(grammar: str) -> str:
    return _LITERAL.sub(lambda found: " " if found[0].startswith("#") else found[0], grammar)


def grammar_bytes(grammar: str) -> int:
    """Memory of the engine for a grammar, its repetitions written out.

    A literal is one element a letter, a group or a name is one; ``S{m,n}`` is S m times and n - m rules.
    """
    if grammar.lstrip().startswith(_FOREIGN):
        return _ITEM_BYTES * sum(int(count) for count in _FOREIGN_REPEAT.findall(grammar))
    elements = rules = last = 0
    for symbol in _SYMBOL.finditer(_without_comments(grammar)):
        if symbol["text"] is not None:
            last = len(symbol["text"])
        elif symbol["name"] is not None or symbol["close"] is not None:
            last = 1
        elif symbol["any"] is not None:
            rules += 1
        elif symbol["fewest"] is not None:
            times = max(int(symbol["fewest"] or 0), int(symbol["most"] or 0))
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
        if piece["repeat"] is not None:
            counts = [int(number) for number in _NUMBER.findall(piece["repeat"])]
            if counts != sorted(counts) or counts[0] < 0:
                return ENDLESS_BYTES
            times = counts[-1]
            total, last = total + last * (times - 1), last * times
        elif piece[0] == "(":
            open_groups.append(total)
            total = last = 0
        elif piece[0] == ")" and open_groups:
            total, last = open_groups.pop() + total, total
        else:
            total, last = total + 1, 1
    return _REGEX_BYTES * (total + sum(open_groups))


def schema_bytes(part: object, *, is_bounded: bool) -> int:
    """Memory of the engine for the repetitions that JSON schemas anywhere in ``part`` ask for.

    ``is_bounded``: the engine's own parser gets it, which takes no repetition beyond its limit.
    """
    if isinstance(part, dict):
        total = sum(schema_bytes(value, is_bounded=is_bounded) for value in part.values())
        for key in ("minItems", "maxItems", "minLength", "maxLength"):
            times = part.get(key)
            if isinstance(times, bool) or not isinstance(times, (int, float)) or times <= 0:
                continue
            # Lengths are not written out by the parser that takes any number of items.
            bounded = is_bounded or key.endswith("Length")
            total += int(min(times, _MOST_REPEATS if bounded else 1e18)) * _ITEM_BYTES
        pattern = part.get("pattern")
        return total + (pattern_bytes(pattern) if isinstance(pattern, str) else 0)
    if isinstance(part, list):
        return sum(schema_bytes(value, is_bounded=is_bounded) for value in part)
    return 0
