"""What several clients ask of one server: conversations, an agent with a long prompt, a batch. Pure.

Owns the sizes and the order of requests. Prompts are tokens drawn by a seed, so that every way and every
model reads the same number of them; what a model answered counts as new text in the next prompt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from guanaco.bench.tokens import plain_tokens
from guanaco.errors import UsageError

_PAUSE_S = 0.5  # of somebody who asks for one token at a time


@dataclass(frozen=True)
class Request:
    """One request of a client. The prompt begins with the client's last one, if ``goes_on``."""

    n_new: int  # prompt tokens
    n_answer: int
    goes_on: bool = False
    pause_s: float = 0.0  # after the answer


@dataclass(frozen=True)
class Workload:
    """Each client sends its requests one after the other; all clients begin together.

    The ``side`` request is sent again and again by one more client until all others have their answers.
    """

    clients: tuple[tuple[Request, ...], ...]
    side: Request | None = None

    @property
    def n_ctx(self) -> int:
        """Tokens that one conversation needs at most."""
        return max(_longest(requests) for requests in self.clients)


def _longest(requests: Sequence[Request]) -> int:
    longest, tokens = 0, 0
    for request in requests:
        tokens = request.n_new + (tokens if request.goes_on else 0)
        longest = max(longest, tokens + request.n_answer)
    return longest


def chat(n_clients: int, n_requests: int, n_prompt: int) -> Workload:
    """People who talk: a question, then shorter ones about it."""
    first = Request(n_prompt, 48)
    more = Request(max(1, n_prompt // 4) + first.n_answer, 48, goes_on=True)
    script = (first, *(more for _ in range(n_requests - 1)))
    return Workload((script,) * n_clients)


def agent(n_clients: int, n_requests: int, n_prompt: int) -> Workload:
    """A short conversation, a long prompt, then what tools say. Two clients: one-token requests beside."""
    n_answer = 32
    turn = Request(max(1, n_prompt // 16) + n_answer, n_answer, goes_on=True)
    script = (Request(64, 64), Request(n_prompt, n_answer), *(turn for _ in range(max(0, n_requests - 2))))
    side = Request(1, 1, pause_s=_PAUSE_S) if n_clients > 1 else None
    return Workload((script,), side)


def batch(n_clients: int, n_requests: int, n_prompt: int) -> Workload:
    """Many independent requests of mixed lengths."""
    rng = random.Random(n_prompt)

    def request() -> Request:
        return Request(rng.randint(max(1, n_prompt // 16), n_prompt), rng.randint(8, 48))

    return Workload(tuple(tuple(request() for _ in range(n_requests)) for _ in range(n_clients)))


# What makes it, and its usual clients, requests of each and prompt tokens.
_KINDS = {"chat": (chat, 4, 3, 256), "agent": (agent, 2, 4, 4096), "batch": (batch, 8, 20, 256)}
NAMES = tuple(_KINDS)


def make(
    name: str, n_clients: int | None = None, n_requests: int | None = None, n_prompt: int | None = None
) -> Workload:
    """The workload of this name, in its usual size where none is given.

    Raises UsageError for an unknown name.
    """
    if name not in _KINDS:
        raise UsageError(f"--workload: {name!r} is unknown; choose from {', '.join(NAMES)}")
    kind, clients, requests, prompt = _KINDS[name]
    return kind(n_clients or clients, n_requests or requests, n_prompt or prompt)


class Prompts:
    """The tokens of one client's prompts, by its seed."""

    def __init__(self, seed: int, n_vocab: int) -> None:
        self._rng = random.Random(seed)
        self._vocabulary = plain_tokens(n_vocab)
        self._tokens: list[int] = []

    def next(self, request: Request) -> list[int]:
        new = [self._rng.choice(self._vocabulary) for _ in range(request.n_new)]
        self._tokens = [*self._tokens, *new] if request.goes_on else new
        return self._tokens
