"""What a request asks the engine's slots for: how many of them, and about how much to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, TypeAdapter

from guanaco.server import grammars
from guanaco.server.costs import answers_of, text_bytes, texts_of
from guanaco.server.schemas import ChatRequest, CompletionRequest, Generation
from guanaco.server.slot_choice import digest_of

_TOKEN_BYTES = 3  # of text: few enough for most languages and vocabularies, digits one by one excepted
_MOST_ANSWERS = 1 << 16
_JSON = TypeAdapter(object)


@dataclass(frozen=True)
class Ask:
    n_sequences: int  # texts times answers of each
    n_tokens: int  # of the longest text, estimated unless the client sent tokens
    n_answers: int = 1  # of each text
    engine_chooses: bool = False  # the slot: there are several, or the client speaks of one
    digest: bytes = b""  # of the prompt
    is_stream: bool = False
    ping_s: int | None = None  # how often the client wants a comment on a silent stream; -1: never


def ask_of(request: BaseModel, n_slots: int) -> Ask | None:
    """None for what needs no slot of a conversation. With one slot nothing is chosen: no digest."""
    if not isinstance(request, Generation):
        return None
    extra = request.model_extra or {}
    texts: list[object] = [""]
    if isinstance(request, CompletionRequest):
        texts = list(texts_of(request.prompt))
    elif isinstance(request, ChatRequest):
        texts = [[request.tools, request.messages]]
    n_answers = answers_of(extra)
    n_sequences = max(1, len(texts)) * min(n_answers, _MOST_ANSWERS)
    engine_chooses = n_sequences > 1 or _names_slot(extra.get("id_slot"))
    return Ask(
        n_sequences=n_sequences,
        n_tokens=max(map(_tokens, texts), default=0),
        n_answers=n_answers,
        engine_chooses=engine_chooses,
        digest=b"" if engine_chooses or n_slots == 1 else digest_of(_JSON.dump_json(texts)),
        is_stream=bool(request.stream),
        ping_s=grammars.whole(extra.get("sse_ping_interval")),
    )


def _names_slot(id_slot: object) -> bool:
    """Below 0, or null, is as good as none; what is no number is the engine's to judge."""
    number = grammars.whole(id_slot)
    return id_slot is not None and (number is None or number >= 0)


def _tokens(text: object) -> int:
    pieces = text if isinstance(text, list) else [text]
    n_given = sum(isinstance(piece, int) for piece in pieces)
    return n_given + text_bytes(pieces) // _TOKEN_BYTES


def with_slot(content: bytes, id_slot: int) -> bytes:
    """The JSON object ``content`` with this slot, which is the one that counts."""
    end = content.rindex(b"}")
    return b'%s,"id_slot":%d%s' % (content[:end], id_slot, content[end:])
