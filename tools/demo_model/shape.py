"""The demo model's dimensions and its tensors, under the names GGUF gives them.

One table serves training, export and tests, so nothing is renamed or transposed on the way to the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

N_LAYER = 4
N_EMBD = 192
N_HEAD = 6
N_HEAD_KV = 2
HEAD_LENGTH = 32
N_EXPERT = 32
TOP_K = 4
N_FF_EXPERT = 96
N_VOCAB = 1024
CONTEXT_LENGTH = 1024
RMS_EPSILON = 1e-6
ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class Tensor:
    name: str
    dims: tuple[int, ...]  # as numpy and torch count them: row length last
    type_name: str
    std: float  # of the first values; 0: ones


def tensors() -> Iterator[Tensor]:
    """In file order. What leads back into the residual stream starts smaller the more layers add to it."""
    back = 1 / sqrt(2 * N_LAYER)
    yield Tensor("token_embd.weight", (N_VOCAB, N_EMBD), "F16", 0.02)
    yield _norm("output_norm.weight", N_EMBD)
    yield _matrix("output.weight", N_VOCAB, N_EMBD)
    for layer in range(N_LAYER):
        prefix = f"blk.{layer}."
        yield _norm(prefix + "attn_norm.weight", N_EMBD)
        yield _norm(prefix + "ffn_norm.weight", N_EMBD)
        yield _norm(prefix + "attn_q_norm.weight", HEAD_LENGTH)
        yield _norm(prefix + "attn_k_norm.weight", HEAD_LENGTH)
        yield _matrix(prefix + "attn_q.weight", N_HEAD * HEAD_LENGTH, N_EMBD)
        yield _matrix(prefix + "attn_k.weight", N_HEAD_KV * HEAD_LENGTH, N_EMBD)
        yield _matrix(prefix + "attn_v.weight", N_HEAD_KV * HEAD_LENGTH, N_EMBD)
        yield _matrix(prefix + "attn_output.weight", N_EMBD, N_HEAD * HEAD_LENGTH, back)
        yield Tensor(prefix + "ffn_gate_inp.weight", (N_EXPERT, N_EMBD), "F32", 1 / sqrt(N_EMBD))
        yield _experts(prefix + "ffn_gate_exps.weight", N_FF_EXPERT, N_EMBD)
        yield _experts(prefix + "ffn_up_exps.weight", N_FF_EXPERT, N_EMBD)
        yield _experts(prefix + "ffn_down_exps.weight", N_EMBD, N_FF_EXPERT, back)


def _norm(name: str, length: int) -> Tensor:
    return Tensor(name, (length,), "F32", 0.0)


def _matrix(name: str, n_out: int, n_in: int, scale: float = 1.0) -> Tensor:
    return Tensor(name, (n_out, n_in), "F16", scale / sqrt(n_in))


def _experts(name: str, n_out: int, n_in: int, scale: float = 1.0) -> Tensor:
    return Tensor(name, (N_EXPERT, n_out, n_in), "Q8_0", scale / sqrt(n_in))
