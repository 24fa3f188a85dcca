"""Random weights written straight into quantised blocks, with a chosen standard deviation and mean zero.

Owns the byte layouts of the types that generated models use. Leaves GGUF and model shapes to its callers.
Refuses a type it has no layout for, and rows that do not divide into blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Rng = np.random.Generator


def _random_bytes(rng: Rng, *shape: int) -> Bytes:
    count = int(np.prod(shape))
    words = rng.integers(0, 2**64, size=-(-count // 8), dtype=np.uint64)
    return words.view(np.uint8)[:count].reshape(shape)


def _f16(values: npt.NDArray[np.floating]) -> Bytes:
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8).reshape(len(values), 2)


def _signed_scale(rng: Rng, n_blocks: int, size: float) -> Bytes:
    """An f16 scale of either sign: formats whose codes are not centred get a mean of zero from it."""
    signs = 1.0 - 2.0 * (_random_bytes(rng, n_blocks) & 1)
    return _f16(size * signs)


def _f32(rng: Rng, n_blocks: int, std: float) -> Bytes:
    return (rng.standard_normal(n_blocks, dtype=np.float32) * np.float32(std)).view(np.uint8).reshape(-1, 4)


def _f16_normal(rng: Rng, n_blocks: int, std: float) -> Bytes:
    return _f16(rng.standard_normal(n_blocks, dtype=np.float32) * np.float32(std))


def _q8_0(rng: Rng, n_blocks: int, std: float) -> Bytes:
    # Codes -128..127 uniform: RMS 73.9.
    return np.concatenate(
        [_signed_scale(rng, n_blocks, std / 73.9), _random_bytes(rng, n_blocks, 32)], axis=1
    )


def _q4_0(rng: Rng, n_blocks: int, std: float) -> Bytes:
    # Codes -8..7 uniform: RMS 4.637.
    return np.concatenate(
        [_signed_scale(rng, n_blocks, std / 4.637), _random_bytes(rng, n_blocks, 16)], axis=1
    )


def _q4_k(rng: Rng, n_blocks: int, std: float) -> Bytes:
    # All eight 6-bit scales and minima are 32: value = d * 32 * (q - 7.5) with dmin = 7.5 d; RMS 32 * 4.61 d.
    d = np.full(n_blocks, std / (32 * 4.61), dtype=np.float32)
    packed = np.array([32] * 4 + [32] * 4 + [0] * 4, dtype=np.uint8)
    # Entries 4-7 keep their low 4 bits in bytes 8-11 (32 & 15 = 0) and their high 2 bits atop bytes 0-7.
    packed[:8] |= (32 >> 4) << 6
    scales = np.broadcast_to(packed, (n_blocks, 12))
    return np.concatenate([_f16(d), _f16(7.5 * d), scales, _random_bytes(rng, n_blocks, 128)], axis=1)


def _q6_k(rng: Rng, n_blocks: int, std: float) -> Bytes:
    # Codes -32..31 uniform: RMS 18.48; scales of 64 with random signs centre it.
    signs = _random_bytes(rng, n_blocks, 16) & 1
    scales = np.where(signs, 64, -64).astype(np.int8).view(np.uint8)
    d = _f16(np.full(n_blocks, std / (64 * 18.48), dtype=np.float32))
    return np.concatenate([_random_bytes(rng, n_blocks, 192), scales, d], axis=1)


def _mxfp4(rng: Rng, n_blocks: int, std: float) -> Bytes:
    # The 4-bit floats 0 .5 1 1.5 2 3 4 6 of either sign have RMS 2.926. The shared scale is a power of two:
    # two neighbouring powers, mixed so that the variance comes out right.
    wanted = std / 2.926
    low = int(np.floor(np.log2(wanted)))
    share_high = ((wanted / 2.0**low) ** 2 - 1) / 3
    high = _random_bytes(rng, n_blocks, 1) < round(256 * share_high)
    exponents = (127 + low + high).astype(np.uint8)
    return np.concatenate([exponents, _random_bytes(rng, n_blocks, 16)], axis=1)


@dataclass(frozen=True)
class BlockType:
    name: str
    type_id: int  # as in the file
    n_weights: int  # a block
    n_bytes: int  # a block
    fill: Callable[[Rng, int, float], Bytes]


TYPES = {
    item.name: item
    for item in (
        BlockType("F32", 0, 1, 4, _f32),
        BlockType("F16", 1, 1, 2, _f16_normal),
        BlockType("Q4_0", 2, 32, 18, _q4_0),
        BlockType("Q8_0", 8, 32, 34, _q8_0),
        BlockType("Q4_K", 12, 256, 144, _q4_k),
        BlockType("Q6_K", 14, 256, 210, _q6_k),
        BlockType("MXFP4", 39, 32, 17, _mxfp4),
    )
}


def block_type(name: str) -> BlockType:
    try:
        return TYPES[name]
    except KeyError:
        raise ValueError(f"{name!r} is not a type that can be generated; one of {', '.join(TYPES)}") from None


def row_bytes(name: str, row_length: int) -> int:
    kind = block_type(name)
    if row_length % kind.n_weights:
        raise ValueError(f"a row of {row_length} does not divide into {name} blocks of {kind.n_weights}")
    return row_length // kind.n_weights * kind.n_bytes


def random_rows(rng: Rng, name: str, n_rows: int, row_length: int, std: float) -> Bytes:
    """``n_rows`` rows of random weights as the bytes of a tensor of that type: (n_rows, bytes of a row)."""
    width = row_bytes(name, row_length)
    kind = block_type(name)
    n_blocks = n_rows * row_length // kind.n_weights
    return np.ascontiguousarray(kind.fill(rng, n_blocks, std)).reshape(n_rows, width)
