"""Tokens for made-up prompts. Pure."""

from __future__ import annotations

FIRST_PLAIN_TOKEN = 1000  # past the special tokens of any vocabulary used here
_MOST = 100_000


def plain_tokens(n_vocab: int) -> range:
    """Tokens of plain text; the upper half of a vocabulary that is too small for that."""
    return range(min(FIRST_PLAIN_TOKEN, n_vocab // 2), min(n_vocab, _MOST))
