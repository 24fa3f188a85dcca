"""How the text of a flag or variable becomes a value. Each parser raises ValueError with a reason. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from guanaco.units import MIB, parse_size

Parser = Callable[[str], object]
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")
_TRUE = ("1", "on", "true", "yes", "enabled")
_FALSE = ("0", "off", "false", "no", "disabled")
ALL_LAYERS = 999


def text(word: str) -> str:
    return word


def single_name(word: str) -> str:
    if "," in word or not word.strip():
        raise ValueError(f"{word!r} is not one name")
    return word.strip()


def names(words: str) -> tuple[str, ...]:
    """At least one: a key that a script left empty must not open the server."""
    found = tuple(word.strip() for word in words.split(",") if word.strip())
    if not found:
        raise ValueError(f"{words!r} names nothing; give at least one, or leave it out")
    return found


def boolean(word: str) -> bool:
    lowered = word.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(f"{word!r} is neither on (1) nor off (0)")


def pilot(word: str) -> str:
    """A mode, or on (auto) and off as numbers."""
    return {"0": "off", "1": "auto", "on": "auto"}.get(word.lower(), word.lower())


def integer(word: str) -> int:
    if not _WHOLE.fullmatch(word):
        raise ValueError(f"{word!r} is not a whole number")
    return int(word)


def auto_count(word: str) -> int | None:
    """A count; -1 means "decide for me", as in llama-server."""
    count = integer(word)
    return None if count == -1 else count


def number(word: str) -> float:
    try:
        return float(word.replace("_", "no number"))  # Python would read 1_0 as ten
    except ValueError:
        raise ValueError(f"{word!r} is not a number") from None


def memory(word: str) -> int | None:
    """A budget. A few bytes are never meant: whoever writes ``8`` left the unit out."""
    if word.lower() == "auto":
        return None
    size_bytes = parse_size(word)
    if size_bytes < MIB:
        raise ValueError(f"{word!r} is {size_bytes} bytes, too few for any model; write a unit, as in 8GiB")
    return size_bytes


def prompt_cache_bytes(word: str) -> int:
    """MiB, as in llama-server; without a bound there is no memory promise."""
    mib = integer(word)
    if mib < 0:
        raise ValueError(f"a prompt cache without a limit ({mib}) cannot be planned; give MiB, or 0 for none")
    return mib * MIB


def gpu_layers(word: str) -> int | None:
    if word == "auto":
        return None
    if word == "all":
        return ALL_LAYERS
    layers = integer(word)
    if layers < 0:
        return None
    return layers


def flash_attention(word: str) -> str:
    if word.lower() == "auto":
        return "auto"
    return "on" if boolean(word) else "off"


def choice(*allowed: str) -> Parser:
    def parse(word: str) -> str:
        if word not in allowed:
            raise ValueError(f"{word!r} is unknown; choose one of {', '.join(allowed)}")
        return word

    return parse


def choices(*allowed: str) -> Parser:
    """Several, with commas."""

    def parse(words: str) -> tuple[str, ...]:
        return tuple(str(choice(*allowed)(word.strip())) for word in words.split(","))

    return parse


def path(word: str) -> Path:
    return Path(word)


def folder(word: str) -> Path:
    """One that is there and can be written to."""
    found = Path(word)
    if not word or not found.is_dir():
        raise ValueError(f"{word!r} is no folder; make it, or name another")
    if not os.access(found, os.W_OK | os.X_OK):
        raise ValueError(f"{word!r} cannot be written to; change that, or name another")
    return found.absolute()
