"""The tensors that MoE architectures are put together from, as plain rows: name, dimensions, kind.

Owns the vocabulary of parts (attention variants, dense and expert feed-forward, mixers). Leaves which
architecture uses which part to ``tiny_uniform`` and ``tiny_varied``, the weights to ``tiny_models``.
Dimensions are in file order, the row length first.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 128  # embedding length of every tiny model that has no reason for another
HEAD = 32
VOCAB = 384


@dataclass(frozen=True)
class Part:
    name: str
    dims: tuple[int, ...]
    kind: str  # matrix | expert | router | norm | bias | scale | conv | decay | embedding | output | ones
    gain: float = 1.0


def _blk(i: int, name: str, dims: tuple[int, ...], kind: str = "matrix", gain: float = 1.0) -> Part:
    return Part(f"blk.{i}.{name}", dims, kind, gain)


def norm(i: int, *names: str, length: int = WIDTH, gain: float = 1.0) -> list[Part]:
    return [_blk(i, f"{name}.weight", (length,), "norm", gain) for name in names]


def bias(i: int, name: str, *dims: int, gain: float = 0.1) -> list[Part]:
    return [_blk(i, f"{name}.bias", dims, "bias", gain)]


def matrix(i: int, name: str, *dims: int, gain: float = 1.0) -> list[Part]:
    return [_blk(i, f"{name}.weight", dims, "matrix", gain)]


def vector(i: int, name: str, kind: str, *dims: int, gain: float = 1.0) -> list[Part]:
    return [_blk(i, name, dims, kind, gain)]


def ends(*, width: int = WIDTH, norm_name: str = "output_norm", embedding_gain: float = 1.0) -> list[Part]:
    """Embedding, last norm and an output matrix of its own: tied ones repeat the last token for ever."""
    return [
        Part("token_embd.weight", (width, VOCAB), "embedding", embedding_gain),
        Part(f"{norm_name}.weight", (width,), "norm"),
        Part("output.weight", (width, VOCAB), "output", 3.0),
    ]


def attention(
    i: int,
    *,
    width: int = WIDTH,
    heads: int = 4,
    kv_heads: int = 2,
    head: int = HEAD,
    query_factor: int = 1,
    qk_norm: str = "",  # "head": one vector for all heads, "full": one of the whole projection
    biases: bool = False,
    out_bias: bool = False,
    gain: float = 1.0,
) -> list[Part]:
    q, kv = heads * head, kv_heads * head
    parts = [
        *matrix(i, "attn_q", width, q * query_factor, gain=gain),
        *matrix(i, "attn_k", width, kv, gain=gain),
        *matrix(i, "attn_v", width, kv, gain=gain),
        *matrix(i, "attn_output", q, width, gain=gain),
    ]
    if qk_norm:
        parts += norm(i, "attn_q_norm", length=head if qk_norm == "head" else q, gain=1.5)
        parts += norm(i, "attn_k_norm", length=head if qk_norm == "head" else kv, gain=1.5)
    if biases:
        parts += bias(i, "attn_q", q * query_factor) + bias(i, "attn_k", kv) + bias(i, "attn_v", kv)
    if out_bias:
        parts += bias(i, "attn_output", width)
    return parts


def fused_attention(
    i: int, *, width: int = WIDTH, heads: int = 4, kv_heads: int = 2, head: int = HEAD
) -> list[Part]:
    q, kv = heads * head, kv_heads * head
    return [*matrix(i, "attn_qkv", width, q + 2 * kv), *matrix(i, "attn_output", q, width)]


def dense_ffn(
    i: int, n_ff: int = 256, *, suffix: str = "", width: int = WIDTH, gated: bool = True
) -> list[Part]:
    parts = [
        *matrix(i, f"ffn_up{suffix}", width, n_ff),
        *matrix(i, f"ffn_down{suffix}", n_ff, width),
    ]
    return parts + (matrix(i, f"ffn_gate{suffix}", width, n_ff) if gated else [])


def experts(
    i: int,
    n_expert: int,
    n_ff: int,
    *,
    width: int = WIDTH,
    layout: str = "split",  # split: gate, up, down; fused: gate_up, down; ungated: up, down
    family: str = "exps",
    router: bool = True,
    router_gain: float = 1.5,
    selection_bias: bool = False,
    biases: bool = False,
    scales: tuple[str, ...] = (),
    gain: float = 1.5,
) -> list[Part]:
    """One layer's experts. The gains make their output as large as the residual stream."""
    rows = {
        "split": (("gate", n_ff), ("up", n_ff)),
        "fused": (("gate_up", 2 * n_ff),),
        "ungated": (("up", n_ff),),
    }
    parts: list[Part] = []
    if router:
        parts.append(_blk(i, "ffn_gate_inp.weight", (width, n_expert), "router", router_gain))
    if selection_bias:
        parts += bias(i, "exp_probs_b", n_expert, gain=0.05)
    for role, n_rows in rows[layout]:
        parts.append(_blk(i, f"ffn_{role}_{family}.weight", (width, n_rows, n_expert), "expert", gain))
        if biases:
            parts += bias(i, f"ffn_{role}_{family}", n_rows, n_expert)
    parts.append(_blk(i, f"ffn_down_{family}.weight", (n_ff, width, n_expert), "expert", 2 * gain))
    if biases:
        parts += bias(i, f"ffn_down_{family}", width, n_expert)
    for role in scales:
        parts += vector(i, f"ffn_{role}_{family}.scale", "scale", n_expert)
    return parts


def shared_expert(i: int, n_ff: int, *, own_gate: bool = False, gated: bool = True) -> list[Part]:
    parts = dense_ffn(i, n_ff, suffix="_shexp", gated=gated)
    return parts + (vector(i, "ffn_gate_inp_shexp.weight", "bias", WIDTH) if own_gate else [])


def next_token_block(i: int, *, head_norm: bool = True) -> list[Part]:
    """What marks a multi-token-prediction layer, beside an ordinary block."""
    parts = matrix(i, "nextn.eh_proj", 2 * WIDTH, WIDTH) + norm(i, "nextn.enorm", "nextn.hnorm")
    return parts + (norm(i, "nextn.shared_head_norm") if head_norm else [])


def delta_net(
    i: int, *, state: int = 32, key_heads: int = 2, value_heads: int = 4, kernel: int = 4
) -> list[Part]:
    keys, values = state * key_heads, state * value_heads
    return [
        *matrix(i, "attn_qkv", WIDTH, 2 * keys + values),
        *matrix(i, "attn_gate", WIDTH, values),
        *vector(i, "ssm_conv1d.weight", "conv", kernel, 2 * keys + values),
        *bias(i, "ssm_dt", value_heads),
        *vector(i, "ssm_a", "decay", value_heads),
        *matrix(i, "ssm_beta", WIDTH, value_heads),
        *matrix(i, "ssm_alpha", WIDTH, value_heads),
        *norm(i, "ssm_norm", length=state),
        *matrix(i, "ssm_out", values, WIDTH),
    ]


def mamba2(
    i: int, *, inner: int = 256, state: int = 32, heads: int = 8, groups: int = 2, kernel: int = 4
) -> list[Part]:
    channels = inner + 2 * groups * state
    return [
        *matrix(i, "ssm_in", WIDTH, inner + channels + heads),
        *vector(i, "ssm_conv1d.weight", "conv", kernel, channels),
        *bias(i, "ssm_conv1d", channels),
        *bias(i, "ssm_dt", heads),
        *vector(i, "ssm_a", "decay", 1, heads),
        *vector(i, "ssm_d", "ones", 1, heads),
        *vector(i, "ssm_norm.weight", "norm", inner // groups, groups),
        *matrix(i, "ssm_out", inner, WIDTH),
    ]


def short_conv(i: int, *, kernel: int = 3) -> list[Part]:
    return [
        *vector(i, "shortconv.conv.weight", "conv", kernel, WIDTH),
        *matrix(i, "shortconv.in_proj", WIDTH, 3 * WIDTH),
        *matrix(i, "shortconv.out_proj", WIDTH, WIDTH),
    ]


def latent_attention(
    i: int,
    *,
    heads: int = 4,
    q_rank: int = 64,
    kv_rank: int = 64,
    rope: int = 32,
    nope: int = 32,
    value: int = 32,
) -> list[Part]:
    return [
        *norm(i, "attn_q_a_norm", length=q_rank),
        *norm(i, "attn_kv_a_norm", length=kv_rank),
        *matrix(i, "attn_q_a", WIDTH, q_rank),
        *matrix(i, "attn_q_b", q_rank, heads * (nope + rope)),
        *matrix(i, "attn_kv_a_mqa", WIDTH, kv_rank + rope),
        *matrix(i, "attn_k_b", nope, kv_rank, heads),
        *matrix(i, "attn_v_b", kv_rank, value, heads),
        *matrix(i, "attn_output", heads * value, WIDTH),
    ]
