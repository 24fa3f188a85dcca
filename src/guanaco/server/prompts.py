"""What a request asks the engine's slots for: how many of them, and about how much to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from guanaco.server import grammars
from guanaco.server.costs import text_bytes, texts_of
from guanaco.server.schemas import ChatRequest, CompletionRequest, Generation

_TOKEN_BYTES = 4  # of text; three to five in most languages and vocabularies
_MOST_ANSWERS = 1 << 16


@dataclass(frozen=True)
class Ask:
    n_sequences: int  # texts times answers of each
    n_tokens: int  # of the longest text, estimated unless the client sent tokens
    id_slot: int | None = None  # the slot that the client asks for
    is_stream: bool = False
    ping_s: int | None = None  # how often the client wants a comment on a silent stream; -1: never


def ask_of(request: BaseModel) -> Ask | None:
    """None for what needs no slot of a conversation."""
    if not isinstance(request, Generation):
        return None
    extra = request.model_extra or {}
    texts: list[object] = [""]
    if isinstance(request, CompletionRequest):
        texts = list(texts_of(request.prompt))
    elif isinstance(request, ChatRequest):
        texts = [[request.messages, request.tools]]
    answers = min(max(1, grammars.whole(extra.get("n")) or 1), _MOST_ANSWERS)
    id_slot = grammars.whole(extra.get("id_slot"))
    return Ask(
        n_sequences=max(1, len(texts)) * answers,
        n_tokens=max(map(_tokens, texts), default=0),
        id_slot=id_slot if id_slot is not None and id_slot >= 0 else None,
        is_stream=bool(request.stream),
        ping_s=grammars.whole(extra.get("sse_ping_interval")),
    )


def _tokens(text: object) -> int:
    pieces = text if isinstance(text, list) else [text]
    n_given = sum(isinstance(piece, int) for piece in pieces)
    return n_given + text_bytes(pieces) // _TOKEN_BYTES


def with_slot(content: bytes, id_slot: int | None) -> bytes:
    """The JSON object ``content``, which names no slot, with one; as it is for None."""
    if id_slot is None:
        return content
    begin = content.index(b"{") + 1
    return b'%s"id_slot":%d,%s' % (content[:begin], id_slot, content[begin:])
