"""Request bodies in memory: each is read whole, because it is checked before it is passed on.

Owns how much of them there is at once. A body counts from its first byte, announced or chunked, until its
request has been answered, because the connection to the worker holds it so long. One owner: the event loop's
thread. Refuses, with RequestError, what has no room.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from guanaco.planner.plan import Plan
from guanaco.server.problems import RequestError
from guanaco.units import MIB, format_bytes

MAX_BODY_BYTES = 32 * MIB
MAX_TOTAL_BYTES = 64 * MIB
# A body holds its room while it comes: nobody may keep that from the others for long.
PAUSE_S, WHOLE_S = 10.0, 120.0
# What parsing adds, here and in the engine: for a number or short text, a key, a list or object.
_VALUE_BYTES, _KEY_BYTES, _NEST_BYTES = 64, 128, 400
# Letters that make every letter of a Python string take four bytes, or two.
_WIDEST = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")
_WIDE = re.compile(rb"[\xc4-\xf4]|\\u")


class BodyRoom:
    """What all requests together may hold."""

    def __init__(self, total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0

    @classmethod
    def of(cls, plan: Plan) -> BodyRoom:
        """Half of the headroom: the other half is for what reading them takes, here and in the engine."""
        return cls(min(MAX_TOTAL_BYTES, plan.parts.headroom_bytes // 2))

    def take(self, nbytes: int) -> None:
        if self.held_bytes + nbytes > self.total_bytes:
            raise RequestError(
                503,
                f"the requests that are being answered hold {format_bytes(self.held_bytes)} of "
                f"{format_bytes(self.total_bytes)}, so there is no room for this one; send it again later",
            )
        self.held_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        self.held_bytes -= nbytes


class Body:
    """One request's body; ``release`` it when the request has been answered. May be released twice."""

    def __init__(self, room: BodyRoom, *, pause_s: float = PAUSE_S, whole_s: float = WHOLE_S) -> None:
        self.content = b""
        self._pause_s, self._whole_s = pause_s, whole_s
        self._room = room
        self._held_bytes = 0

    async def read(self, announced_bytes: int, chunks: AsyncIterator[bytes]) -> None:
        """All of ``chunks``. ``announced_bytes`` is the length the client gave, 0 without one."""
        self._check_length(announced_bytes)
        pieces = []
        try:
            async with asyncio.timeout(self._whole_s):
                async for chunk in _without_pauses(chunks, self._pause_s):
                    self._check_length(self._held_bytes + len(chunk))
                    self._room.take(len(chunk))
                    self._held_bytes += len(chunk)
                    pieces.append(chunk)
        except TimeoutError:
            raise RequestError(
                408,
                f"the request did not arrive: {self._held_bytes} bytes of it are here, and a pause may last "
                f"{self._pause_s:g} s, the whole {self._whole_s:g} s; send it again",
            ) from None
        self.content = b"".join(pieces)

    def release(self) -> None:
        self._room.give_back(self._held_bytes)
        self._held_bytes = 0
        self.content = b""

    def check_parsed(self) -> None:
        """Raises RequestError when there is no room for what the body becomes when it is read.

        One body is parsed at a time.
        """
        takes_bytes = parsed_bytes(self.content)
        if takes_bytes > self._room.total_bytes:
            raise RequestError(
                413,
                f"reading this request would take {format_bytes(takes_bytes)} of memory, and there is room "
                f"for {format_bytes(self._room.total_bytes)}; send fewer or shorter values",
            )

    def _check_length(self, nbytes: int) -> None:
        most_bytes = min(MAX_BODY_BYTES, self._room.total_bytes)
        if nbytes > most_bytes:
            raise RequestError(413, f"the request is longer than {most_bytes} bytes")


async def _without_pauses(chunks: AsyncIterator[bytes], pause_s: float) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(pause_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        yield chunk


def parsed_bytes(content: bytes) -> int:
    """An upper estimate of the memory that a JSON body takes once parsed."""
    n_nested = content.count(b"[") + content.count(b"{")
    structure = _VALUE_BYTES * content.count(b",") + _KEY_BYTES * content.count(b":") + _NEST_BYTES * n_nested
    return len(content) * _bytes_a_letter(content) + structure


def _bytes_a_letter(content: bytes) -> int:
    """Of a Python string with the widest letter there is: which string it is in is not looked for."""
    if content.isascii() and b"\\u" not in content:
        return 1
    return 4 if _WIDEST.search(content) else 2 if _WIDE.search(content) else 1
