"""What to expect of each expert before anything was selected: from an imatrix, from earlier use, or both.

Owns the arithmetic: counts in, uses a token out. Pure. A policy takes the result for its slow rate, so it
fades with the first few dozen tokens; how much each source weighs matters only until then.
"""

from __future__ import annotations

from collections.abc import Sequence

# What a source weighs, in tokens of one's own use. A few tokens say little about the rest of the experts.
_IMATRIX_TOKENS = 256.0
_EVEN_TOKENS = 16.0


def expected_use(
    n_expert: int, top_k: int, imatrix: Sequence[float] = (), earlier: Sequence[float] = ()
) -> tuple[float, ...]:
    """Uses a token of each expert, 0 to 1; ``()`` when neither source knows anything of this layer.

    ``imatrix`` and ``earlier``: how often each expert was chosen, or empty.
    """
    totals = sum(imatrix), sum(earlier)
    if top_k == 0 or not any(totals):
        return ()
    use = [top_k / n_expert] * n_expert
    weight = _EVEN_TOKENS
    if totals[0] > 0:
        use = [top_k * count / totals[0] for count in imatrix]
        weight = _IMATRIX_TOKENS
    if totals[1] > 0:
        n_tokens = totals[1] / top_k
        use = [
            (weight * base + count) / (weight + n_tokens) for base, count in zip(use, earlier, strict=True)
        ]
    return tuple(min(1.0, value) for value in use)
