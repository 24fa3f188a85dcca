"""Tiny architectures whose layers differ, or whose expert tensors are laid out in other ways.

A row each: metadata and tensors. Covered here: leading dense layers, experts in some layers only, layers
for multi-token prediction, recurrent and convolution mixers, latent attention, fused and ungated experts,
expert groups.
"""

from __future__ import annotations

from tests.support import tiny_parts as p
from tests.support.tiny_parts import HEAD, WIDTH, Part
from tests.support.tiny_spec import POST_NORMS, PRE_NORMS, Layer, TinySpec, choose, make_spec, norms, stack

SIGMOID = 2  # expert_gating_func


def _qwen35moe() -> TinySpec:
    n_trunk, n_expert = 4, 32

    def is_full(i: int) -> bool:
        return i % 4 == 3 or i >= n_trunk

    return make_spec(
        "qwen35moe",
        quant="MXFP4",
        n_expert=n_expert,
        top_k=4,
        moe_layers=range(n_trunk),
        ends=p.ends(),
        layers=stack(
            n_trunk + 1,
            POST_NORMS,
            choose(is_full, lambda i: p.attention(i, qk_norm="head", query_factor=2), p.delta_net),
            lambda i: p.experts(i, n_expert, 32, layout="fused"),
            lambda i: p.shared_expert(i, 32, own_gate=True),
            lambda i: p.next_token_block(i) if i >= n_trunk else [],
        ),
        metadata={
            "expert_feed_forward_length": 32,
            "expert_shared_feed_forward_length": 32,
            "nextn_predict_layers": 1,
            "full_attention_interval": 4,
            "rope.dimension_sections": [6, 5, 5, 0],
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 128,
            "ssm.state_size": 32,
            "ssm.time_step_rank": 4,
            "ssm.group_count": 2,
        },
        covers="fused shared mtp recurrent",
    )


def _deepseek2() -> TinySpec:
    return make_spec(
        "deepseek2",
        n_expert=16,
        top_k=4,
        moe_layers=range(1, 4),
        ends=p.ends(),
        layers=stack(
            4,
            PRE_NORMS,
            p.latent_attention,
            choose(
                lambda i: i < 1,
                p.dense_ffn,
                lambda i: p.experts(i, 16, 64, selection_bias=True) + p.shared_expert(i, 64),
            ),
        ),
        metadata={
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_gating_func": SIGMOID,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": 64,
            "attention.kv_lora_rank": 64,
            "attention.key_length": 96,
            "attention.value_length": 64,
            "attention.key_length_mla": 64,
            "attention.value_length_mla": 32,
        },
        covers="split shared groups selection_bias leading_dense latent",
    )


def _glm4moe() -> TinySpec:
    n_trunk = 4
    return make_spec(
        "glm4moe",
        quant="Q4_0",
        n_expert=16,
        top_k=4,
        moe_layers=range(1, n_trunk),
        ends=p.ends(),
        layers=stack(
            n_trunk + 1,
            POST_NORMS,
            lambda i: p.attention(i, biases=True, qk_norm="head"),
            choose(
                lambda i: i < 1,
                p.dense_ffn,
                lambda i: p.experts(i, 16, 64, selection_bias=True) + p.shared_expert(i, 64),
            ),
            lambda i: p.next_token_block(i) if i >= n_trunk else [],
        ),
        metadata={
            "leading_dense_block_count": 1,
            "nextn_predict_layers": 1,
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_gating_func": SIGMOID,
            "expert_weights_norm": True,
            "rope.dimension_count": HEAD // 2,
        },
        covers="split shared mtp selection_bias leading_dense",
    )


def _lfm2moe() -> TinySpec:
    kv_heads = [0, 2, 0, 0, 2]
    return make_spec(
        "lfm2moe",
        n_expert=16,
        top_k=4,
        moe_layers=range(1, 5),
        ends=p.ends(norm_name="token_embd_norm"),
        layers=stack(
            5,
            PRE_NORMS,
            choose(lambda i: kv_heads[i] > 0, lambda i: p.attention(i, qk_norm="head"), p.short_conv),
            choose(lambda i: i < 1, p.dense_ffn, lambda i: p.experts(i, 16, 32, selection_bias=True)),
        ),
        metadata={
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": 32,
            "expert_gating_func": SIGMOID,
            "attention.head_count_kv": kv_heads,
            "shortconv.l_cache": 3,
        },
        covers="split selection_bias leading_dense recurrent",
    )


def _gemma4() -> TinySpec:
    n_layer = 4
    is_window = [True, True, True, False]
    return make_spec(
        "gemma4",
        n_expert=16,
        top_k=4,
        moe_layers=range(n_layer),
        # The engine multiplies embeddings by the root of their length.
        ends=[*p.ends(embedding_gain=WIDTH**-0.5), Part("rope_freqs.weight", (HEAD // 2,), "ones")],
        layers=stack(
            n_layer,
            norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
            norms("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"),
            lambda i: p.attention(i, qk_norm="head"),
            p.dense_ffn,
            lambda i: p.experts(i, 16, 64, layout="fused", scales=("down",)),
            lambda i: p.vector(i, "ffn_gate_inp.scale", "norm", WIDTH, gain=WIDTH**0.5),
        ),
        metadata={
            "expert_feed_forward_length": 64,
            "embedding_length_per_layer_input": 0,
            "attention.sliding_window": 32,
            "attention.sliding_window_pattern": is_window,
            "attention.key_length_swa": HEAD,
            "attention.value_length_swa": HEAD,
            "rope.freq_base_swa": 10000.0,
            "rope.dimension_count_swa": HEAD,
            "attention.shared_kv_layers": 0,
        },
        covers="fused scales shared",
    )


def _afmoe() -> TinySpec:
    return make_spec(
        "afmoe",
        quant="MXFP4",
        n_expert=16,
        top_k=4,
        moe_layers=range(1, 5),
        ends=p.ends(embedding_gain=WIDTH**-0.5),
        layers=stack(
            5,
            norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
            lambda i: p.attention(i, qk_norm="head") + p.matrix(i, "attn_gate", WIDTH, WIDTH),
            choose(
                lambda i: i < 1,
                p.dense_ffn,
                lambda i: p.experts(i, 16, 64, selection_bias=True) + p.shared_expert(i, 64),
            ),
        ),
        metadata={
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_gating_func": SIGMOID,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "attention.sliding_window": 64,
        },
        covers="split shared selection_bias leading_dense",
    )


def _nemotron_h_moe() -> TinySpec:
    kinds = "mememaeme"  # mixer, experts, attention: experts at layers 1, 3, 6, 8
    makers: dict[str, Layer] = {
        "m": p.mamba2,
        "a": p.attention,
        "e": lambda i: (
            p.experts(i, 16, 64, layout="ungated", selection_bias=True, gain=1.0, scales=("up", "down"))
            + p.shared_expert(i, 64, gated=False)
        ),
    }
    return make_spec(
        "nemotron_h_moe",
        n_expert=16,
        top_k=4,
        moe_layers=tuple(i for i, kind in enumerate(kinds) if kind == "e"),
        ends=p.ends(),
        layers=stack(len(kinds), norms("attn_norm"), lambda i: makers[kinds[i]](i)),
        metadata={
            "feed_forward_length": [64 if kind == "e" else 0 for kind in kinds],
            "attention.head_count_kv": [2 if kind == "a" else 0 for kind in kinds],
            "expert_feed_forward_length": 64,
            "expert_shared_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "attention.layer_norm_epsilon": 1e-5,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 256,
            "ssm.state_size": 32,
            "ssm.time_step_rank": 8,
            "ssm.group_count": 2,
        },
        covers="ungated scales shared sparse selection_bias recurrent",
    )


def _ernie() -> TinySpec:
    return make_spec(
        "ernie4_5-moe",
        quant="Q4_0",
        n_expert=16,
        top_k=3,
        moe_layers=range(1, 4),
        ends=p.ends(),
        layers=stack(
            4,
            PRE_NORMS,
            p.attention,
            choose(
                lambda i: i < 1,
                p.dense_ffn,
                lambda i: p.experts(i, 16, 64, selection_bias=True) + p.shared_expert(i, 64),
            ),
        ),
        metadata={
            "leading_dense_block_count": 1,
            "interleave_moe_layer_step": 1,
            "expert_feed_forward_length": 64,
            "expert_shared_feed_forward_length": 64,
        },
        covers="split shared selection_bias leading_dense",
    )


def _llama4() -> TinySpec:
    return make_spec(
        "llama4",
        n_expert=8,
        top_k=1,
        moe_layers=(1, 3, 5),
        ends=p.ends(),
        layers=stack(
            6,
            PRE_NORMS,
            p.attention,
            choose(
                lambda i: i % 2 == 0,
                p.dense_ffn,
                lambda i: p.experts(i, 8, 64, gain=2.5) + p.shared_expert(i, 64),
            ),
        ),
        metadata={"expert_feed_forward_length": 64, "interleave_moe_layer_step": 2},
        covers="split shared sparse top_1",
    )


def _bailingmoe2() -> TinySpec:
    n_trunk = 4
    return make_spec(
        "bailingmoe2",
        quant="MXFP4",
        n_expert=16,
        top_k=4,
        moe_layers=range(1, n_trunk),
        ends=p.ends(),
        layers=stack(
            n_trunk + 1,
            PRE_NORMS,
            p.fused_attention,
            lambda i: p.norm(i, "attn_q_norm", "attn_k_norm", length=HEAD),
            choose(
                lambda i: i < 1,
                p.dense_ffn,
                lambda i: p.experts(i, 16, 64, selection_bias=True) + p.shared_expert(i, 64),
            ),
            lambda i: p.next_token_block(i) + p.norm(i, "layer_output_norm") if i >= n_trunk else [],
        ),
        metadata={
            "leading_dense_block_count": 1,
            "nextn_predict_layers": 1,
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_gating_func": SIGMOID,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
        },
        covers="split shared mtp groups selection_bias leading_dense",
    )


def _dots1() -> TinySpec:
    return make_spec(
        "dots1",
        n_expert=16,
        top_k=4,
        moe_layers=range(1, 4),
        ends=p.ends(),
        layers=stack(
            4,
            PRE_NORMS,
            lambda i: p.attention(i, kv_heads=4, qk_norm="head"),
            choose(
                lambda i: i < 1,
                p.dense_ffn,
                lambda i: p.experts(i, 16, 64, selection_bias=True) + p.shared_expert(i, 64),
            ),
        ),
        metadata={
            "leading_dense_block_count": 1,
            "expert_feed_forward_length": 64,
            "expert_shared_count": 1,
            "expert_gating_func": SIGMOID,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "attention.head_count_kv": 4,
        },
        covers="split shared selection_bias leading_dense",
    )


VARIED: tuple[TinySpec, ...] = (
    _qwen35moe(),
    _deepseek2(),
    _glm4moe(),
    _lfm2moe(),
    _gemma4(),
    _afmoe(),
    _nemotron_h_moe(),
    _ernie(),
    _llama4(),
    _bailingmoe2(),
    _dots1(),
)
