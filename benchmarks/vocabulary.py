"""A byte-level BPE vocabulary of any size, made by rule: real enough for the whole server to load and use.

Owns the tokens, their merges, the special tokens and the chat template of generated models. Every token is
distinct and every merge builds one. Refuses sizes that the rule cannot fill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"  # by rough frequency, so that early merges are likely ones
_SPACE = "\u0120"  # how byte-level BPE writes a leading space
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_TOKENS = 256 + len(SPECIAL_TOKENS)
TOKEN_NORMAL, TOKEN_CONTROL = 1, 3

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    token_types: tuple[int, ...]
    printable: tuple[bool, ...]  # tokens of plain ASCII text: what a generated model may say

    @property
    def eos_id(self) -> int:
        return len(self.tokens) - 1

    @property
    def pad_id(self) -> int:
        return len(self.tokens) - len(SPECIAL_TOKENS)


def byte_symbols() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(stand_ins)) for byte in range(256)]


def _merge_pairs() -> Iterator[tuple[str, str]]:
    pairs = [a + b for a, b in product(_LETTERS, repeat=2)]
    for letter in _LETTERS:
        yield _SPACE, letter
    yield from product(_LETTERS, repeat=2)
    for letter in _LETTERS:
        yield from ((_SPACE + letter, follower) for follower in _LETTERS)
    yield from product(pairs, repeat=2)
    for first in pairs:
        yield from ((_SPACE + first, second) for second in pairs)


def vocabulary(n_tokens: int) -> Vocabulary:
    """``n_tokens`` tokens: 256 bytes, words by merging, the special tokens last."""
    n_merges = n_tokens - MIN_TOKENS
    if n_merges < 0:
        raise ValueError(f"a vocabulary of {n_tokens} tokens is too small; at least {MIN_TOKENS}")
    merges = list(islice(_merge_pairs(), n_merges))
    if len(merges) < n_merges:
        raise ValueError(
            f"a vocabulary of {n_tokens} tokens is too large; at most {MIN_TOKENS + len(merges)}"
        )
    byte_tokens = byte_symbols()
    tokens = [*byte_tokens, *(a + b for a, b in merges), *SPECIAL_TOKENS]
    is_printable = [0x20 <= byte < 0x7F for byte in range(256)]
    return Vocabulary(
        tokens=tuple(tokens),
        merges=tuple(f"{a} {b}" for a, b in merges),
        token_types=tuple(
            [TOKEN_NORMAL] * (len(tokens) - len(SPECIAL_TOKENS)) + [TOKEN_CONTROL] * len(SPECIAL_TOKENS)
        ),
        printable=tuple(is_printable + [True] * len(merges) + [False] * len(SPECIAL_TOKENS)),
    )
