"""The figures of one workload run, from its clients' answers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guanaco.bench.clients import Answer, Counters
from guanaco.bench.one import RunSpec


@dataclass(frozen=True)
class LoadSpec(RunSpec):
    """What one run of a workload does; travels as JSON. None: the workload's usual size."""

    workload: str = "chat"
    n_clients: int | None = None
    n_requests: int | None = None
    n_long: int | None = None  # tokens of the longest new prompt


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that ``percent`` of all do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] if ranked else None


def figures(answers: Sequence[Answer], wall_s: float, expert_mean_bytes: float) -> dict[str, Any]:
    """``expert_mean_bytes``: of one expert of one layer, 0 where nothing is streamed."""
    main = [answer for answer in answers if answer.client >= 0]
    side = [answer for answer in answers if answer.client < 0]
    first = sorted((a for a in main if a.client == 0), key=lambda a: a.index)
    longest = max(main, key=lambda answer: answer.n_prompt)
    firsts_s = [answer.first_token_s for answer in main]
    return {
        "requests": len(main),
        "wall_s": wall_s,
        "requests_per_s": len(main) / wall_s,
        "prompt_tps": sum(answer.n_prompt for answer in main) / wall_s,
        "decode_tps": sum(answer.n_answer for answer in main) / wall_s,
        "first_token_p50_s": percentile(firsts_s, 50),
        "first_token_p95_s": percentile(firsts_s, 95),
        "longest_prompt_n": longest.n_prompt,
        "longest_prompt_s": longest.first_token_s,
        "longest_read_per_touched": _read_per_touched(longest.asked, longest.first, expert_mean_bytes),
        "decode_hit_rates": [answer.decode_hit_rate for answer in first],
        "side_requests": len(side),
        "side_p50_s": percentile([answer.whole_s for answer in side], 50),
        "side_most_s": max((answer.whole_s for answer in side), default=None),
        "side_most_batches": max((_batches(answer) for answer in side), default=None),
    }


def _batches(answer: Answer) -> int:
    """That ended while it was answered, its own among them."""
    return answer.ended.batches - answer.asked.batches


def _read_per_touched(before: Counters, after: Counters, expert_mean_bytes: float) -> float | None:
    """Bytes read over the bytes of the experts that each batch and layer selected."""
    touched = (after.accesses - before.accesses) * expert_mean_bytes
    return (after.bytes_read - before.bytes_read) / touched if touched else None
