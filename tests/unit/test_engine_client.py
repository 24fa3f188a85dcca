"""Event streams and refusals as the small client reads them."""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterator

import pytest

from guanaco.engine.client import decode_events
from guanaco.errors import EngineError, UsageError


def lines(text: bytes) -> Iterator[bytes]:
    return iter(io.BytesIO(text))


def test_comments_and_blank_lines_are_no_events() -> None:
    text = b': ping\n\ndata: {"a": 1}\n\nevent: x\ndata:{"a":2}\n\ndata: [DONE]\n\ndata: {"a": 3}\n\n'
    assert list(decode_events(lines(text))) == [{"a": 1}, {"a": 2}]


def test_the_engines_own_stream_ends_with_stop() -> None:
    text = b'data: {"content": "a", "stop": false}\n\ndata: {"content": "", "stop": true}\n\n'
    assert [event["stop"] for event in decode_events(lines(text))] == [False, True]


@pytest.mark.parametrize("text", [b"", b'data: {"a": 1}\n\n', b": ping\n"])
def test_an_early_end_is_a_broken_connection(text: bytes) -> None:
    with pytest.raises(http.client.IncompleteRead):
        list(decode_events(lines(text)))


@pytest.mark.parametrize(("code", "kind"), [(400, UsageError), (500, EngineError)])
def test_error_events_are_raised(code: int, kind: type[Exception]) -> None:
    text = b'data: {"error": {"code": %d, "message": "it broke"}}\n\n' % code
    with pytest.raises(kind, match="it broke"):
        list(decode_events(lines(text)))


def test_error_events_get_their_reason() -> None:
    text = b'data: {"a": 1}\n\ndata: {"error": {"code": 500, "message": "it broke"}}\n\n'
    events = decode_events(lines(text), lambda message: f"{message}, and this is why")
    assert next(events) == {"a": 1}
    with pytest.raises(EngineError, match="it broke, and this is why"):
        next(events)
