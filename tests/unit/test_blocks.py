"""Generated weights against the gguf package's own decoding of the same bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from benchmarks import blocks
from benchmarks.vocabulary import MIN_TOKENS, vocabulary


@pytest.mark.parametrize("name", sorted(blocks.TYPES))
@pytest.mark.parametrize("std", [0.02, 1.0])
def test_spread_mean_and_size(name: str, std: float) -> None:
    n_rows, row_length = 256, 512
    raw = blocks.random_rows(np.random.default_rng(7), name, n_rows, row_length, std)
    kind = gguf.GGMLQuantizationType[name]
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    assert raw.shape == (n_rows, row_length // block_weights * block_bytes)
    assert blocks.TYPES[name].type_id == kind.value
    values = gguf.quants.dequantize(raw, kind).reshape(-1)
    assert values.size == n_rows * row_length
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(std, rel=0.05)
    assert abs(values.mean()) < 0.02 * std


def test_two_seeds_differ_and_one_repeats() -> None:
    first, again, other = (
        blocks.random_rows(np.random.default_rng(seed), "MXFP4", 4, 64, 0.1) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_a_row_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row of 48 .* blocks of 32"):
        blocks.row_bytes("Q8_0", 48)
    with pytest.raises(ValueError, match="'Q9' is not a type"):
        blocks.row_bytes("Q9", 64)


@pytest.mark.parametrize("n_tokens", [MIN_TOKENS, 384, 150_000])
def test_every_token_is_distinct_and_every_merge_builds_one(n_tokens: int) -> None:
    vocab = vocabulary(n_tokens)
    assert len(vocab.tokens) == len(set(vocab.tokens)) == n_tokens
    assert len(vocab.token_types) == len(vocab.printable) == n_tokens
    known = set(vocab.tokens)
    for merge in vocab.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


def test_a_size_the_rule_cannot_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="258 tokens is too small"):
        vocabulary(258)
    with pytest.raises(ValueError, match="too large"):
        vocabulary(2_000_000)
