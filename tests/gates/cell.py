"""One cell of the exactness gates: ``python -m tests.gates.cell``, job as JSON on standard input.

Decodes every prompt greedily through llama.cpp's C interface and prints tokens and a digest of the first
logits. Streamed cells get the native library by LD_PRELOAD; the process itself does the same in both.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass

import numpy as np

from tests.support.capi import Model


@dataclass(frozen=True)
class Job:
    model: str
    n_ubatch: int
    n_ctx: int
    n_threads: int
    prompts: list[list[int]]
    n_tokens: int
    n_logits: int  # rows of logits compared bit for bit

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def run(job: Job) -> dict[str, object]:
    tokens, digests = [], []
    not_finite = 0
    with Model(
        job.model, n_ctx=job.n_ctx, n_batch=512, n_ubatch=job.n_ubatch, n_threads=job.n_threads
    ) as model:
        for prompt in job.prompts:
            model.clear()
            digest = hashlib.sha256()
            chosen: list[int] = []
            logits = model.decode(prompt)
            for index in range(job.n_tokens):
                not_finite += not np.isfinite(logits).all()
                if index < job.n_logits:
                    digest.update(logits.tobytes())
                chosen.append(int(np.argmax(logits)))
                if index + 1 < job.n_tokens:
                    logits = model.decode(chosen[-1:])
            tokens.append(chosen)
            digests.append(digest.hexdigest())
    return {"tokens": tokens, "digests": digests, "not_finite": not_finite}


if __name__ == "__main__":
    print(json.dumps(run(Job(**json.load(sys.stdin)))))
