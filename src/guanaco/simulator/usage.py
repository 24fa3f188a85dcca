"""How unevenly and how repeatedly a trace uses its experts: the figures that decide what a cache can do.

Owns the two published statistics. Pure; reads no files.
"""

from __future__ import annotations

from collections import Counter

from guanaco.simulator.trace import Trace


def share_of_top(trace: Trace, fraction: float) -> float:
    """Mean over layers: the share of uses that goes to the most used ``fraction`` of the layer's experts."""
    n_top = round(fraction * trace.n_expert)
    shares = []
    for layer in range(trace.n_layer):
        counts = Counter(e for step in trace.steps for e in step[layer])
        uses = counts.total()
        if uses:
            shares.append(sum(n for _, n in counts.most_common(n_top)) / uses)
    return sum(shares) / len(shares)


def repeat_probability(trace: Trace, lag: int) -> float:
    """The probability that an expert used for one token is used again, in its layer, ``lag`` tokens later."""
    if not 1 <= lag < trace.n_tokens:
        raise ValueError(f"a lag of {lag} in a trace of {trace.n_tokens} tokens")
    again = uses = 0
    for now, later in zip(trace.steps, trace.steps[lag:], strict=False):
        for ids, later_ids in zip(now, later, strict=True):
            again += len(set(ids) & set(later_ids))
            uses += len(ids)
    return again / uses
