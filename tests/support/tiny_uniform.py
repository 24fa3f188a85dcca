"""Tiny architectures in which every layer has the same kind of experts.

A row each: metadata and tensors. Covered here: expert biases and scales, shared experts, a second family of
experts in a layer, selection biases, a router that runs before attention, several norms and attentions.
"""

from __future__ import annotations

from tests.support import tiny_parts as p
from tests.support.tiny_parts import HEAD, WIDTH, Part
from tests.support.tiny_spec import POST_NORMS, PRE_NORMS, TinySpec, make_spec, norms, stack

SIGMOID = 2  # expert_gating_func


def _qwen3moe() -> TinySpec:
    return make_spec(
        "qwen3moe",
        quant="MXFP4",
        n_expert=16,
        top_k=4,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(4, PRE_NORMS, lambda i: p.attention(i, qk_norm="head"), lambda i: p.experts(i, 16, 64)),
        metadata={"expert_feed_forward_length": 64},
        covers="split",
    )


def _qwen2moe() -> TinySpec:
    return make_spec(
        "qwen2moe",
        n_expert=8,
        top_k=2,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(
            4,
            PRE_NORMS,
            lambda i: p.attention(i, biases=True),
            lambda i: p.experts(i, 8, 96, gain=3.0),
            lambda i: p.shared_expert(i, 64, own_gate=True),
        ),
        metadata={"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 64},
        covers="split shared",
    )


def _gpt_oss() -> TinySpec:
    return make_spec(
        "gpt-oss",
        quant="MXFP4",
        n_expert=16,
        top_k=4,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(
            4,
            POST_NORMS,
            lambda i: p.attention(i, biases=True, out_bias=True),
            lambda i: p.vector(i, "attn_sinks.weight", "bias", 4),
            lambda i: p.experts(i, 16, 64, biases=True) + p.bias(i, "ffn_gate_inp", 16),
        ),
        metadata={"expert_feed_forward_length": 64, "attention.sliding_window": 32},
        covers="split biases",
    )


def _llama() -> TinySpec:
    return make_spec(
        "llama",
        quant="F16",
        n_expert=8,
        top_k=2,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(
            4,
            PRE_NORMS,
            p.attention,
            lambda i: p.experts(i, 8, 64, scales=("gate", "up", "down")),
        ),
        metadata={"feed_forward_length": 64},
        covers="split scales",
    )


def _olmoe() -> TinySpec:
    width = 256
    return make_spec(
        "olmoe",
        quant="Q4_K",
        width=width,
        n_expert=16,
        top_k=4,
        moe_layers=range(3),
        ends=p.ends(width=width),
        layers=stack(
            3,
            lambda i: p.norm(i, "attn_norm", "ffn_norm", length=width),
            lambda i: p.attention(i, width=width, heads=8, kv_heads=8, qk_norm="full"),
            lambda i: p.experts(i, 16, 64, width=width, gain=2.0),
        ),
        metadata={"feed_forward_length": 64, "attention.head_count": 8, "attention.head_count_kv": 8},
        covers="split",
    )


def _granitemoe() -> TinySpec:
    return make_spec(
        "granitemoe",
        quant="MXFP4",
        n_expert=32,
        top_k=4,
        moe_layers=range(4),
        ends=p.ends(embedding_gain=0.25),
        layers=stack(
            4,
            PRE_NORMS,
            p.attention,
            lambda i: p.experts(i, 32, 32, gain=2.0) + p.shared_expert(i, 64),
        ),
        metadata={
            "feed_forward_length": 32,
            "expert_shared_feed_forward_length": 64,
            "embedding_scale": 4.0,
            "residual_scale": 0.5,
            "logit_scale": 1.0,
            "attention.scale": HEAD**-0.5,
        },
        covers="split shared",
    )


def _dbrx() -> TinySpec:
    return make_spec(
        "dbrx",
        n_expert=8,
        top_k=3,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(
            4,
            norms("attn_norm", "attn_output_norm"),
            p.fused_attention,
            lambda i: p.experts(i, 8, 96),
        ),
        metadata={
            "feed_forward_length": 96,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.clamp_kqv": 8.0,
        },
        covers="split",
    )


def _grovemoe() -> TinySpec:
    return make_spec(
        "grovemoe",
        quant="MXFP4",
        n_expert=16,
        top_k=4,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(
            4,
            PRE_NORMS,
            lambda i: p.attention(i, qk_norm="head"),
            lambda i: p.experts(i, 16, 64),
            lambda i: p.experts(i, 8, 32, family="chexps", router=False),
        ),
        metadata={
            "expert_feed_forward_length": 64,
            "expert_chunk_feed_forward_length": 32,
            "expert_group_scale": 0.5,
            "experts_per_group": 2,
        },
        covers="split second_family",
    )


def _phimoe() -> TinySpec:
    return make_spec(
        "phimoe",
        n_expert=16,
        top_k=2,
        moe_layers=range(4),
        ends=[
            *p.ends(),
            Part("output_norm.bias", (WIDTH,), "bias", 0.1),
            Part("output.bias", (p.VOCAB,), "zeros"),
        ],
        layers=stack(
            4,
            PRE_NORMS,
            lambda i: p.bias(i, "attn_norm", WIDTH) + p.bias(i, "ffn_norm", WIDTH),
            lambda i: p.attention(i, biases=True, out_bias=True),
            lambda i: p.experts(i, 16, 64),
        ),
        metadata={"feed_forward_length": 64, "attention.sliding_window": 2048},
        covers="split",
    )


def _hunyuan() -> TinySpec:
    return make_spec(
        "hunyuan-moe",
        n_expert=8,
        top_k=4,
        moe_layers=range(3),
        ends=p.ends(),
        layers=stack(
            3,
            PRE_NORMS,
            lambda i: p.attention(i, qk_norm="head"),
            lambda i: p.experts(i, 8, 96) + p.shared_expert(i, 64),
        ),
        metadata={
            "feed_forward_length": 96,
            "expert_feed_forward_length": 96,
            "expert_shared_feed_forward_length": 64,
        },
        covers="split shared",
    )


def _minimax_m2() -> TinySpec:
    return make_spec(
        "minimax-m2",
        quant="Q4_0",
        n_expert=32,
        top_k=4,
        moe_layers=range(3),
        ends=p.ends(),
        layers=stack(
            3,
            PRE_NORMS,
            lambda i: p.attention(i, qk_norm="full"),
            lambda i: p.experts(i, 32, 32, selection_bias=True),
        ),
        metadata={
            "feed_forward_length": 32,
            "expert_feed_forward_length": 32,
            "expert_gating_func": SIGMOID,
        },
        covers="split selection_bias",
    )


def _smallthinker() -> TinySpec:
    return make_spec(
        "smallthinker",
        quant="MXFP4",
        n_expert=16,
        top_k=4,
        moe_layers=range(4),
        ends=p.ends(),
        layers=stack(
            # The router reads the layer's input, before attention: its ids are known early.
            4,
            PRE_NORMS,
            p.attention,
            lambda i: p.experts(i, 16, 64, router_gain=0.7),
        ),
        metadata={"expert_feed_forward_length": 64, "expert_gating_func": SIGMOID},
        covers="split early_router",
    )


UNIFORM: tuple[TinySpec, ...] = (
    _qwen3moe(),
    _qwen2moe(),
    _gpt_oss(),
    _llama(),
    _olmoe(),
    _granitemoe(),
    _dbrx(),
    _grovemoe(),
    _phimoe(),
    _hunyuan(),
    _minimax_m2(),
    _smallthinker(),
)
