"""Conversations as the engine takes them: it fails at a null where a client means "not given". Pure."""

from __future__ import annotations

import json
from typing import Any

from guanaco.server.schemas import ChatRequest


def left_out(content: bytes, request: ChatRequest) -> bytes:
    """``content``, the body that ``request`` was read from, without optional fields that are null."""
    messages = [message.model_dump(exclude_unset=True) for message in request.messages]
    given = _optional_parts({"messages": messages, "tools": request.tools})
    if not any(map(_null_names, given)):
        return content
    body = json.loads(content)
    for part in _optional_parts(body):
        for name in _null_names(part):
            del part[name]
    return json.dumps(body).encode()


def _optional_parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages, the tool calls in them, tools, and the functions of both."""
    parts: list[Any] = list(body.get("messages") or [])
    for message in body.get("messages") or []:
        calls = message.get("tool_calls")
        parts += calls if isinstance(calls, list) else []
    parts += body.get("tools") or []
    objects = [part for part in parts if isinstance(part, dict)]
    functions = [part.get("function") for part in objects]
    return objects + [function for function in functions if isinstance(function, dict)]


def _null_names(part: dict[str, Any]) -> list[str]:
    """``content`` may be null: of an assistant's message that calls tools."""
    return [name for name, value in part.items() if value is None and name != "content"]
