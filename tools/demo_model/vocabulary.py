"""A byte-level BPE vocabulary learnt from the corpus, and text as its tokens.

Owns learning merges and encoding, the way the engine's ``gpt-2`` tokenizer encodes ASCII text. Leaves the
byte alphabet and the special tokens to ``benchmarks.vocabulary``. Refuses other text: the corpus has none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from benchmarks.vocabulary import SPECIAL_TOKENS, byte_symbols

from tools.demo_model.corpus import Turn
from tools.demo_model.shape import N_VOCAB

END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
_SYMBOLS = byte_symbols()
_MAX_MERGES = N_VOCAB - len(_SYMBOLS) - len(SPECIAL_TOKENS)

Pair = tuple[str, str]


class Vocabulary:
    """256 bytes, then one token a merge, then the special tokens."""

    def __init__(self, merges: Sequence[Pair]) -> None:
        self.merges = tuple(merges)
        self.tokens = (*_SYMBOLS, *(left + right for left, right in self.merges), *SPECIAL_TOKENS)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _ranks(self) -> dict[Pair, int]:
        return {pair: rank for rank, pair in enumerate(self.merges)}

    @cached_property
    def _known(self) -> dict[str, list[int]]:
        """Words seen before: the corpus has a few hundred."""
        return {}

    def encode(self, text: str) -> list[int]:
        """ASCII text without special tokens."""
        found: list[int] = []
        for word in _WORD.findall(text):
            if word not in self._known:
                self._known[word] = [self.ids[part] for part in self._parts(word)]
            found += self._known[word]
        return found

    def encode_turn(self, turn: Turn) -> list[int]:
        """One question and its answer, as the chat template writes them."""
        start, end, newline = self.ids[TURN_START], self.ids[TURN_END], self.encode("\n")
        found: list[int] = []
        for role, text in (("user", turn.question), ("assistant", turn.answer)):
            found += [start, *self.encode(f"{role}\n{text}"), end, *newline]
        return found

    def decode(self, ids: Iterable[int]) -> str:
        bytes_of = {symbol: byte for byte, symbol in enumerate(_SYMBOLS)}
        return bytes(bytes_of[symbol] for number in ids for symbol in self.tokens[number]).decode()

    def _parts(self, word: str) -> tuple[str, ...]:
        parts = _symbols_of(word)
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self.merges)))
            if best not in self._ranks:
                break
            parts = _merged(parts, best)
        return parts


def learn(turns: Iterable[Turn]) -> Vocabulary:
    """Merge the commonest pair of neighbours, again and again; ties go to the first in the alphabet."""
    counts = Counter(
        word for turn in turns for text in (turn.question, turn.answer) for word in _WORD.findall(text)
    )
    counts.update(("user", "assistant"))
    words = {word: _symbols_of(word) for word in counts}
    merges: list[Pair] = []
    while len(merges) < _MAX_MERGES:
        pairs: Counter[Pair] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = {word: _merged(parts, best) for word, parts in words.items()}
    return Vocabulary(merges)


def _symbols_of(word: str) -> tuple[str, ...]:
    return tuple(_SYMBOLS[byte] for byte in word.encode("ascii"))


def _merged(parts: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    found: list[str] = []
    for part in parts:
        if found and (found[-1], part) == pair:
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)
