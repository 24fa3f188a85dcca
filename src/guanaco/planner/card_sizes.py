"""Which bytes of a model go to a card when its layers do, layer by layer, and which stay on the host.

Owns that table: llama.cpp keeps the input tables on the host and copies tied embeddings as output;
biases and scales of experts go with their experts. Leaves choosing to ``card``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from guanaco.model.map import ExpertGroup, ModelMap

_BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
# What llama.cpp's own "n-cpu-moe" keeps on the host.
_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch)?exps\.")
# Looked up by row on the host, however many layers are on a card.
_HOST_TABLES = ("token_embd", "per_layer_token_embd", "position_embd", "token_types")


@dataclass(frozen=True)
class LayerWeights:
    dense_bytes: int
    expert_bytes: int  # that may stay on the host, with their biases and scales


@dataclass(frozen=True)
class CardWeights:
    """Weights by place. MTP layers, which a plain decode does not load, are in none."""

    layers: tuple[LayerWeights, ...]
    output_bytes: int  # on the card of the last layer
    host_bytes: int  # always on the host

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of leading layers that make a difference: 0, and up to and with each layer of experts."""
        return (0, *(index + 1 for index, layer in enumerate(self.layers) if layer.expert_bytes))


def card_weights(model: ModelMap) -> CardWeights:
    """Pure."""
    n_layer = model.n_layer - model.meta.get_int("nextn_predict_layers", 0)
    dense, experts = [0] * n_layer, [0] * n_layer
    output_bytes = 0 if model.has_own_output else model.token_embd_bytes
    host_bytes = 0
    for item in model.dense:
        block = _BLOCK.fullmatch(item.tensor_name)
        if block is None:
            if is_host_table(item.tensor_name):
                host_bytes += item.nbytes
            else:
                output_bytes += item.nbytes
        elif not item.is_mtp and int(block[1]) < n_layer:
            sizes = experts if _EXPERTS.match(block[2]) else dense
            sizes[int(block[1])] += item.nbytes
    for group in model.groups:
        if not group.is_mtp and group.layer < n_layer:
            sizes = experts if can_stay(group) else dense
            sizes[group.layer] += group.expert_bytes * group.n_expert
    layers = tuple(LayerWeights(*pair) for pair in zip(dense, experts, strict=True))
    return CardWeights(layers, output_bytes, host_bytes)


def is_host_table(tensor_name: str) -> bool:
    return tensor_name.startswith(_HOST_TABLES)


def leaves_with_experts(tensor_name: str, n_cpu_moe: int) -> bool:
    """Whether it is a bias or a scale of experts of the first ``n_cpu_moe`` layers."""
    block = _BLOCK.fullmatch(tensor_name)
    return block is not None and int(block[1]) < n_cpu_moe and _EXPERTS.match(block[2]) is not None


def can_stay(group: ExpertGroup) -> bool:
    """Whether these experts are among those that may stay on the host."""
    block = _BLOCK.fullmatch(group.parts[0].tensor_name)
    return block is not None and _EXPERTS.match(block[2]) is not None
