"""What describes a tiny architecture, and how its layers are put together.

Owns ``TinySpec``, the metadata common to all and the small combinators over parts. Leaves the architectures
to ``tiny_uniform`` and ``tiny_varied``, the weights and files to ``tiny_models``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support import tiny_parts as p
from tests.support.tiny_parts import HEAD, WIDTH, Part

Layer = Callable[[int], list[Part]]


@dataclass(frozen=True)
class TinySpec:
    name: str
    arch: str
    quant: str  # of the expert tensors; rows that do not divide into its blocks fall back to Q8_0
    n_expert: int
    top_k: int
    moe_layers: tuple[int, ...]  # those a plain decode runs
    metadata: Mapping[str, object] = field(repr=False)  # keys without the architecture's prefix
    parts: tuple[Part, ...] = field(repr=False)
    covers: frozenset[str] = frozenset()


def make_spec(
    name: str,
    *,
    layers: list[list[Part]],
    ends: list[Part],
    metadata: dict[str, object],
    n_expert: int,
    top_k: int,
    moe_layers: range | tuple[int, ...],
    quant: str = "Q8_0",
    arch: str = "",
    width: int = WIDTH,
    covers: str = "",
) -> TinySpec:
    common: dict[str, object] = {
        "context_length": 4096,
        "embedding_length": width,
        "block_count": len(layers),
        "feed_forward_length": 256,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": HEAD,
        "expert_count": n_expert,
        "expert_used_count": top_k,
    }
    parts = (*ends, *(part for layer in layers for part in layer))
    return TinySpec(
        name=name,
        arch=arch or name,
        quant=quant,
        n_expert=n_expert,
        top_k=top_k,
        moe_layers=tuple(moe_layers),
        metadata=common | metadata,
        parts=parts,
        covers=frozenset(covers.split()),
    )


def stack(n_layer: int, *makers: Layer) -> list[list[Part]]:
    return [[part for make in makers for part in make(i)] for i in range(n_layer)]


def choose(is_first: Callable[[int], bool], first: Layer, second: Layer) -> Layer:
    return lambda i: first(i) if is_first(i) else second(i)


def norms(*names: str) -> Layer:
    return lambda i: p.norm(i, *names)


PRE_NORMS = norms("attn_norm", "ffn_norm")
POST_NORMS = norms("attn_norm", "post_attention_norm")
