"""What the engine takes for a request beyond its body: an upper estimate. Pure.

Owns the constants. Each is the upper end of a measurement that ``docs/memory.md`` describes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from guanaco.server import grammars
from guanaco.server.schemas import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Generation,
    TokenizeRequest,
)
from guanaco.units import KIB

_TEXT_BYTES = 88  # of the tokenizer, for a byte of text: 85
_PIECES_BYTES = 400  # of an answer that spells its tokens, for a byte of text: 385
_REQUEST_BYTES = 896 * KIB  # of a request that is open, here and in the engine: 600-900 KiB
_TASK_BYTES = 12 * KIB  # for each text of a list: 11
_CANDIDATE_BYTES = 1600  # of an answer, for each candidate of each token: 1,530
_EMBEDDING_VALUE_BYTES = 64  # of an answer, for each number
_LAST_TOKEN_BYTES = 8  # of a sampler that looks at so many: 7.7
_USUAL_SAMPLERS = 2  # that look back, when a request names none
_MOST_ANSWERS = 1 << 32  # as good as endless
_DEFAULT_CANDIDATES = 20  # of a conversation that asks for log-probabilities and does not say how many


@dataclass(frozen=True)
class ModelSizes:
    """What bounds an answer."""

    n_ctx: int  # of one request
    n_vocab: int
    n_embd: int


@dataclass(frozen=True)
class Cost:
    """Bytes by what takes them. ``reading`` is over when the answer begins, ``answering`` when it ends."""

    text: int = 0
    grammar: int = 0
    texts: int = 0
    probabilities: int = 0
    embeddings: int = 0
    samplers: int = 0
    open: int = _REQUEST_BYTES

    @property
    def answering_bytes(self) -> int:
        return self.open + self.grammar + self.probabilities + self.embeddings + self.samplers

    @property
    def total_bytes(self) -> int:
        return self.text + self.texts + self.answering_bytes

    @property
    def largest(self) -> str:
        """What to make smaller."""
        named = {
            "its text": self.text,
            "its grammar or JSON schema with all repetitions": self.grammar,
            "the number of its texts": self.texts,
            "the log-probabilities of its answer": self.probabilities,
            "the embeddings of its answer": self.embeddings,
            "the last tokens that its samplers look at": self.samplers,
        }
        return max(named, key=named.__getitem__)


def cost_of(request: BaseModel, sizes: ModelSizes) -> Cost:
    """The engine's memory for ``request``."""
    fields = {**dict(request), **(request.model_extra or {})}
    if isinstance(request, TokenizeRequest):
        each = _PIECES_BYTES if fields.get("with_pieces") else _TEXT_BYTES
        return Cost(text=each * text_bytes(list(fields.values())))
    if isinstance(request, EmbeddingRequest):
        texts = list(texts_of(fields.pop("input")))
        return Cost(
            text=_TEXT_BYTES * (_longest(texts) + text_bytes(list(fields.values()))),
            texts=_TASK_BYTES * len(texts),
            embeddings=_EMBEDDING_VALUE_BYTES * sizes.n_embd * len(texts),
        )
    if not isinstance(request, Generation):
        return Cost()
    texts = list(texts_of(fields.pop("prompt"))) if isinstance(request, CompletionRequest) else [""]
    answers = len(texts) * min(answers_of(fields), _MOST_ANSWERS)
    schema = fields.get("json_schema")
    rest = {name: value for name, value in fields.items() if name != "json_schema"}
    return Cost(
        text=_TEXT_BYTES * (_longest(texts) + text_bytes(list(fields.values()))),
        texts=_TASK_BYTES * answers,
        grammar=grammars.grammar_bytes(request.grammar or "")
        + grammars.schema_bytes(schema, is_bounded=isinstance(request, ChatRequest))
        + grammars.schema_bytes(rest, is_bounded=True),
        samplers=answers * _samplers_bytes(request),
        probabilities=_CANDIDATE_BYTES * answers * _candidates(fields, sizes) * _answer_tokens(fields, sizes),
    )


def answers_of(fields: Mapping[str, object]) -> int:
    """To each text: the engine has two names for it."""
    return max(1, *(grammars.whole(fields.get(name)) or 1 for name in ("n", "n_cmpl")))


def text_bytes(part: object) -> int:
    """Of all texts in ``part``, names in objects too: any of them may end in the engine's tokenizer."""
    if isinstance(part, str):
        return len(part) if part.isascii() else len(part.encode(errors="surrogatepass"))
    if isinstance(part, BaseModel):
        return text_bytes(list(dict(part).values())) + text_bytes(part.model_extra)
    if isinstance(part, dict):
        return sum(text_bytes(key) + text_bytes(value) for key, value in part.items())
    return sum(map(text_bytes, part)) if isinstance(part, list) else 0


def texts_of(prompt: object) -> Iterator[object]:
    """One or several: a list of numbers, or of numbers and pieces of text, is one."""
    if isinstance(prompt, list) and not any(isinstance(item, int) for item in prompt):
        yield from prompt
    else:
        yield prompt


def _longest(texts: list[object]) -> int:
    return max(map(text_bytes, texts), default=0)


def _candidates(fields: dict[str, object], sizes: ModelSizes) -> int:
    asked = [grammars.whole(fields.get(name)) or 0 for name in ("n_probs", "logprobs", "top_logprobs")]
    if fields.get("logprobs") is True and fields.get("top_logprobs") is None:
        asked.append(_DEFAULT_CANDIDATES)
    most = min(max(asked), sizes.n_vocab)
    return most + 1 if most > 0 else 0  # the token itself too


def _samplers_bytes(request: Generation) -> int:
    """Each has a ring of the last tokens, as long as was asked for."""
    last = max(request.repeat_last_n or 0, request.dry_penalty_last_n or 0, 0)
    return _LAST_TOKEN_BYTES * last * max(_USUAL_SAMPLERS, len(request.samplers or ()))


def _answer_tokens(fields: dict[str, object], sizes: ModelSizes) -> int:
    # Which of them counts is the engine's to say, and differs from route to route.
    named = (
        grammars.whole(fields.get(name)) for name in ("max_tokens", "max_completion_tokens", "n_predict")
    )
    asked = [count for count in named if count is not None]
    return min(max(asked), sizes.n_ctx) if asked and min(asked) >= 0 else sizes.n_ctx
