"""What goes to the cards: all layers, the experts of the fewest leading ones left on the host.

Owns that rule, and the length of the first conversation. A model that fits whole stays whole. Leaves the
host's side to ``split``, other models to ``reserve``. Pure; None where even the least does not fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from guanaco.config import LoadConfig
from guanaco.errors import BudgetError
from guanaco.hardware.facts import CardFacts
from guanaco.model.map import ModelMap
from guanaco.planner.card_sizes import CardWeights, card_weights
from guanaco.planner.conversations import (
    FEWEST_TOKENS,
    Conversations,
    conversations,
    layer_bytes,
    lengths,
)
from guanaco.units import MIB, format_bytes

# Of a card's free memory, for buffers and what no plan sees.
_MARGIN_SHARE = 10
_MARGIN_BYTES = 256 * MIB  # and for each conversation


@dataclass(frozen=True)
class DevicePart:
    """One card's share of the model."""

    name: str
    free_bytes: int
    n_layers: int
    weights_bytes: int
    kv_bytes: int
    margin_bytes: int  # kept free of both


@dataclass(frozen=True)
class CardPlan:
    n_cpu_moe: int  # leading layers whose experts are on the host
    talk: Conversations
    devices: tuple[DevicePart, ...]
    limited_by: str | None
    reserved_bytes: int = 0  # for another model

    @property
    def vram_bytes(self) -> int:
        return sum(part.weights_bytes + part.kv_bytes for part in self.devices)


def margin_bytes(free_bytes: int, n_parallel: int) -> int:
    return free_bytes // _MARGIN_SHARE + _MARGIN_BYTES * n_parallel


def place(model: ModelMap, cards: Sequence[CardFacts], config: LoadConfig) -> CardPlan | None:
    """The fewest leading layers, then the longest first conversation.

    First there has to be room for the usual conversations; only when not even all experts on the host make
    it, they are shorter. What was asked for (``cpu_moe_layers``, ``n_ctx``) is never changed.
    """
    weights = card_weights(model)
    counts = weights.counts
    if config.cpu_moe_layers >= 0:
        counts = (min(config.cpu_moe_layers, len(weights.layers)),)
    usual = conversations(model, config)
    n_cpu_moe = next((n for n in counts if _spread(model, weights, cards, config, n, usual)), None)
    fewest = usual.first_tokens
    if n_cpu_moe is None:
        n_cpu_moe, fewest = counts[-1], FEWEST_TOKENS

    def spread(first_tokens: int) -> tuple[DevicePart, ...] | None:
        talk = conversations(model, config, first_tokens)
        return _spread(model, weights, cards, config, n_cpu_moe, talk)

    if config.n_ctx is not None:
        first_tokens = usual.first_tokens
    else:
        choices = lengths(model, fewest)
        n_fitting = bisect_left(choices, True, key=lambda tokens: spread(tokens) is None)
        first_tokens = choices[max(0, n_fitting - 1)]
    devices = spread(first_tokens)
    if devices is None:
        return None
    is_cut = config.n_ctx is None and first_tokens < model.n_ctx_train
    return CardPlan(
        n_cpu_moe=n_cpu_moe,
        talk=conversations(model, config, first_tokens),
        devices=devices,
        limited_by="memory" if is_cut else None,
    )


def _spread(
    model: ModelMap,
    weights: CardWeights,
    cards: Sequence[CardFacts],
    config: LoadConfig,
    n_cpu_moe: int,
    talk: Conversations,
) -> tuple[DevicePart, ...] | None:
    """Layers in order over the cards in order, each as full as it goes; None when they do not all fit."""
    kept = layer_bytes(model, config, talk)
    sizes = [
        (layer.dense_bytes + (layer.expert_bytes if index >= n_cpu_moe else 0), kept[index])
        for index, layer in enumerate(weights.layers)
    ]
    pieces = [*sizes, (weights.output_bytes, 0)]  # the output goes with the last layer, or after it
    at = 0
    devices = []
    for number, card in enumerate(cards):
        margin = margin_bytes(card.free_bytes, talk.n_parallel)
        room = card.free_bytes - margin
        first, weights_bytes, kv_bytes = at, 0, 0
        while at < len(pieces) and weights_bytes + kv_bytes + sum(pieces[at]) <= room:
            weights_bytes += pieces[at][0]
            kv_bytes += pieces[at][1]
            at += 1
        n_layers = min(at, len(sizes)) - min(first, len(sizes))
        name = card.name or f"card {number}"
        devices.append(DevicePart(name, card.free_bytes, n_layers, weights_bytes, kv_bytes, margin))
    return tuple(devices) if at == len(pieces) else None


def needed_bytes(model: ModelMap, config: LoadConfig, n_cpu_moe: int, n_cards: int = 1) -> int:
    """Free memory of all cards together that the least of this takes."""
    weights = card_weights(model)
    usual = conversations(model, config)
    first_tokens = usual.first_tokens if config.n_ctx is not None else min(usual.first_tokens, FEWEST_TOKENS)
    talk = conversations(model, config, first_tokens)
    total = weights.output_bytes + sum(layer_bytes(model, config, talk))
    total += sum(layer.dense_bytes for layer in weights.layers)
    total += sum(layer.expert_bytes for layer in weights.layers[n_cpu_moe:])
    total += n_cards * _MARGIN_BYTES * talk.n_parallel
    # What is left of the free memory without its tenth has to hold it.
    return -(-total * _MARGIN_SHARE // (_MARGIN_SHARE - 1))


def refusal(model: ModelMap, cards: Sequence[CardFacts], config: LoadConfig) -> BudgetError:
    """The error where a number of layers was asked for that does not fit."""
    free_bytes = sum(card.free_bytes for card in cards)
    needed = needed_bytes(model, config, config.cpu_moe_layers, len(cards))
    if needed <= free_bytes:  # together they have it, but no layer may be split
        needed = free_bytes + 1
    what = "all experts" if config.cpu_moe_layers == 0 else f"experts of {config.cpu_moe_layers} layers"
    where = "on the card" if config.cpu_moe_layers == 0 else "on the host"
    return BudgetError(
        f"{model.name} with {what} {where} takes at least {format_bytes(needed)} of card memory, and "
        f"{format_bytes(free_bytes)} are free; leave more layers' experts on the host (-1: as many as it "
        "takes), or ask for a shorter context",
        needed_bytes=needed,
        free_bytes=free_bytes,
        budget_bytes=free_bytes,
    )
