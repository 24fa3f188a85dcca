"""Clients that send a workload to a server and measure what they get.

Owns the threads and the figures of each request. Leaves what is sent to ``workload``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from guanaco.bench.workload import Prompts, Request, Workload
from guanaco.errors import EngineError

_SIDE = -1


@dataclass(frozen=True)
class Counters:
    """Of the server, at one moment."""

    batches: int = 0  # decoded by the engine, of all clients together
    accesses: int = 0
    hits: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class Answer:
    """One request as its client saw it. ``client`` -1 is the one beside the others."""

    client: int
    index: int
    n_prompt: int
    n_answer: int
    first_token_s: float
    whole_s: float
    asked: Counters
    first: Counters  # when the first token came
    ended: Counters

    @property
    def decode_hit_rate(self) -> float | None:
        """Of what was decoded while it was answered, other clients' tokens too."""
        accesses = self.ended.accesses - self.first.accesses
        return (self.ended.hits - self.first.hits) / accesses if accesses else None


def run(
    workload: Workload, url: str, n_vocab: int, counters: Callable[[], Counters], seed: int
) -> tuple[list[Answer], float]:
    """All answers, and the seconds until the last. Raises EngineError when one failed."""
    answers: list[Answer] = []
    problems: list[Exception] = []
    done = threading.Event()

    def client(number: int, requests: Sequence[Request]) -> None:
        prompts = Prompts(seed * 1000 + number, n_vocab)
        try:
            with _connected(url) as http:
                for index, request in enumerate(requests):
                    answers.append(_ask(http, number, index, prompts.next(request), request, counters))
                    time.sleep(request.pause_s)
        except (EngineError, httpx.HTTPError) as problem:
            problems.append(problem)

    def beside(request: Request) -> None:
        prompts, index = Prompts(seed * 1000 + 999, n_vocab), 0
        try:
            with _connected(url) as http:
                while not done.wait(request.pause_s):
                    answers.append(_ask(http, _SIDE, index, prompts.next(request), request, counters))
                    index += 1
        except (EngineError, httpx.HTTPError) as problem:
            problems.append(problem)

    threads = [
        threading.Thread(target=client, args=(number, requests), daemon=True)
        for number, requests in enumerate(workload.clients)
    ]
    side = [threading.Thread(target=beside, args=(workload.side,), daemon=True)] if workload.side else []
    began_s = time.monotonic()
    for thread in (*threads, *side):
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.monotonic() - began_s
    done.set()
    for thread in side:
        thread.join()
    if problems:
        raise EngineError(f"a request of the workload failed: {problems[0]}")
    return answers, wall_s


def _connected(url: str) -> httpx.Client:
    # An answer takes as long as it takes; that is what is measured.
    return httpx.Client(base_url=url, timeout=httpx.Timeout(None), trust_env=False)


def _ask(
    http: httpx.Client,
    client: int,
    index: int,
    prompt: list[int],
    request: Request,
    counters: Callable[[], Counters],
) -> Answer:
    body = {
        "prompt": prompt,
        "max_tokens": request.n_answer,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    asked, asked_s = counters(), time.monotonic()
    first: Counters | None = None
    first_s = 0.0
    with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise EngineError(f"{response.status_code}: {response.text[:300]}")
        for line in response.iter_lines():
            if line.startswith('data: {"error"'):
                raise EngineError(line[:300])
            if first is None and line.startswith("data: "):
                first, first_s = counters(), time.monotonic()
    whole_s, ended = time.monotonic() - asked_s, counters()
    if first is None:
        raise EngineError("an answer without a token")
    return Answer(
        client, index, len(prompt), request.n_answer, first_s - asked_s, whole_s, asked, first, ended
    )
