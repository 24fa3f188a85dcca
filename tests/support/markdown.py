"""As much of Markdown as the checks of our own pages need: sections, tables, code, links. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def section(text: str, title: str) -> str:
    """What stands under this heading, up to the next one of the same or a higher level."""
    start = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert start is not None, f"there is no section {title!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings and rules left out."""
    found: list[list[str]] = []
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|--") and not following.startswith("|--"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def code_words(text: str) -> list[str]:
    """What stands in single backticks outside of fenced blocks."""
    return _CODE.findall(_FENCE.sub("", text))


def code_lines(text: str) -> Iterator[str]:
    """Every line of the fenced blocks."""
    for block in _FENCE.findall(text):
        yield from block.splitlines()


def links(text: str) -> list[str]:
    """Targets of links, without those to other sites."""
    return [target for target in _LINK.findall(_FENCE.sub("", text)) if "://" not in target]
