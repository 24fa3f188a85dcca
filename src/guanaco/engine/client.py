"""A small HTTP client of the worker's own server, for the command line and the load probe.

Owns requests over one loopback address: JSON, event streams, tokens. Standard library only, because the
parent's memory is part of the budget. A broken connection is explained by whoever watches the worker.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

from guanaco.errors import EngineError, GuanacoError, UsageError

Explain = Callable[[str], str]  # the engine's words, with the reason added when there is a better one


def as_it_is(message: str) -> str:
    return message


def no_watch() -> Explain:
    return as_it_is


class EngineClient:
    """Blocks in every call; one connection per call, so closing a stream cancels its generation."""

    def __init__(
        self,
        address: str,
        api_key: str,
        explain_loss: Callable[[], GuanacoError | None],
        watch_faults: Callable[[], Explain] = no_watch,
    ) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        self._explain_loss = explain_loss
        self._watch_faults = watch_faults

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST ``body`` (GET without one); the decoded answer."""
        connection = http.client.HTTPConnection(self._address)
        try:
            return json.loads(self._open(connection, path, body, self._watch_faults()).read())
        except (OSError, http.client.HTTPException) as problem:
            raise self._lost(problem) from problem
        finally:
            connection.close()

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """POST ``body`` with ``stream`` on; the decoded events as they come."""
        connection = http.client.HTTPConnection(self._address)
        explain = self._watch_faults()
        try:
            response = self._open(connection, path, {**body, "stream": True}, explain)
            yield from decode_events(response, explain)
        except (OSError, http.client.HTTPException) as problem:
            raise self._lost(problem) from problem
        finally:
            connection.close()

    def tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        answer = self.call("/tokenize", {"content": text, "add_special": add_special})
        return [int(token) for token in answer["tokens"]]

    def detokenize(self, tokens: list[int]) -> str:
        return str(self.call("/detokenize", {"tokens": tokens})["content"])

    def _open(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: dict[str, Any] | None,
        explain: Explain,
    ) -> http.client.HTTPResponse:
        payload = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, payload, self._headers)
        response = connection.getresponse()
        if response.status >= 400:
            raise _refusal(response.status, response.read(), explain)
        return response

    def _lost(self, problem: Exception) -> GuanacoError:
        return self._explain_loss() or EngineError(f"the connection to the worker broke: {problem!r}")


def decode_events(
    lines: Iterator[bytes] | http.client.HTTPResponse, explain: Explain = as_it_is
) -> Iterator[Any]:
    """The JSON of a server-sent event stream. Raises error events; an early end is a broken connection."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue  # blank separators and keep-alive comments
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if isinstance(event, dict) and "error" in event:
            raise _refusal(int(event["error"].get("code") or 500), data, explain)
        yield event
        if isinstance(event, dict) and event.get("stop") is True:
            return  # the engine's own completion stream has no end mark
    raise http.client.IncompleteRead(b"")


def _refusal(status: int, answer: bytes, explain: Explain) -> GuanacoError:
    try:
        message = explain(str(json.loads(answer)["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        message = answer.decode(errors="replace")[:200] or f"status {status}"
    if 400 <= status < 500:
        return UsageError(f"the engine refused the request: {message}", status=status)
    return EngineError(f"the engine could not answer: {message}", status=status)
