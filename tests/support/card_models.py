"""Models whose published loads on cards are known, as values: only sizes and metadata are real."""

from __future__ import annotations

from dataclasses import replace

from guanaco.hardware.facts import CardFacts, Hardware
from guanaco.model.experts import ExpertGroup, ExpertPart
from guanaco.model.map import DenseRange, ModelMap
from guanaco.units import MIB
from tests.support.plan_models import MACHINE, shape


def with_weights(
    model: ModelMap,
    *,
    token_embd_bytes: int,
    output_bytes: int,
    dense_layer_bytes: int,
    expert_layer_bytes: int = 0,
    n_expert: int = 32,
    top_k: int = 4,
    first_moe_layer: int = 0,
    is_tied: bool = False,
) -> ModelMap:
    """``model`` with weights of these sizes; every layer is alike."""
    names = [("token_embd.weight", token_embd_bytes)]
    names += [] if is_tied else [("output.weight", output_bytes)]
    names += [(f"blk.{i}.attn_q.weight", dense_layer_bytes) for i in range(model.n_layer)]
    dense = tuple(DenseRange(name, 0, 4096 * i, nbytes, False) for i, (name, nbytes) in enumerate(names))
    groups = tuple(
        ExpertGroup(
            layer,
            "exps",
            n_expert,
            top_k,
            tuple(
                ExpertPart(role, f"blk.{layer}.ffn_{role}_exps.weight", "mxfp4", 0, 0, nbytes)
                for role, nbytes in _thirds(expert_layer_bytes // n_expert)
            ),
            False,
        )
        for layer in range(first_moe_layer, model.n_layer)
        if expert_layer_bytes
    )
    return replace(
        model,
        dense=dense,
        groups=groups,
        n_expert=n_expert if groups else 0,
        n_expert_used=top_k if groups else 0,
        token_embd_bytes=token_embd_bytes,
        has_own_output=not is_tied,
    )


def _thirds(nbytes: int) -> tuple[tuple[str, int], ...]:
    return ("gate", nbytes // 3), ("up", nbytes // 3), ("down", nbytes - nbytes // 3 * 2)


def gpt_oss_20b() -> ModelMap:
    """MXFP4: 11,536 MiB of tensors, of these 404.5 MiB of experts a layer and 586.8 MiB of token_embd."""
    experts, table = int(404.5 * MIB), int(586.8 * MIB)
    model = shape(
        "gpt-oss",
        24,
        2880,
        attention__head_count=64,
        attention__head_count_kv=8,
        attention__key_length=64,
        attention__value_length=64,
        attention__sliding_window=128,
        expert_feed_forward_length=2880,
    )
    return with_weights(
        model,
        token_embd_bytes=table,
        output_bytes=table,
        dense_layer_bytes=(11536 * MIB - 24 * experts - 2 * table) // 24,
        expert_layer_bytes=experts,
    )


def llama_8b() -> ModelMap:
    """llama3.1-8b: 128 KiB of conversation memory a token, no experts."""
    model = shape(
        "llama",
        32,
        4096,
        attention__head_count=32,
        attention__head_count_kv=8,
        attention__key_length=128,
        attention__value_length=128,
        feed_forward_length=14336,
    )
    return with_weights(
        model, token_embd_bytes=282 * MIB, output_bytes=411 * MIB, dense_layer_bytes=125 * MIB
    )


def router_1b() -> ModelMap:
    """A chat model of 1.2B parameters that takes 1.52 GB with one conversation of 2,048 tokens."""
    model = shape(
        "lfm2",
        16,
        2048,
        attention__head_count=32,
        attention__head_count_kv=8,
        attention__key_length=64,
        attention__value_length=64,
    )
    # 2,048 tokens of 32 KiB beside weights and a tenth more.
    weights = int((1_520_000_000 - 2048 * 32 * 1024) / 1.1)
    return with_weights(
        model, token_embd_bytes=weights // 8, output_bytes=weights // 8, dense_layer_bytes=weights * 3 // 64
    )


def machine_with(*free_bytes: int, ram_bytes: int | None = None) -> Hardware:
    """A machine whose cards have so much free memory."""
    ram = {} if ram_bytes is None else {"ram_total_bytes": ram_bytes, "ram_available_bytes": ram_bytes}
    return replace(MACHINE, cards=tuple(CardFacts(free) for free in free_bytes), **ram)  # type: ignore[arg-type]
