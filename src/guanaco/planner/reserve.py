"""Room that is kept on the cards for one more chat model of the folder.

Owns the rule: the smallest other chat model, its weights and a tenth more, and one short conversation. It
is not kept where somebody chose the context, nor where it would leave little of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from guanaco.config import LoadConfig
from guanaco.hardware.facts import CardFacts
from guanaco.model.map import ModelMap
from guanaco.model.recipes import EMBEDDING_ARCHS
from guanaco.planner.card import CardPlan, place
from guanaco.planner.conversations import WORTH_RESERVING_TOKENS, Conversations, layer_bytes

_MORE_PERCENT = 10
_SHORT_TOKENS = 2048
LIMIT_NAME = "multi_model_reserve"


def is_chat_model(model: ModelMap) -> bool:
    """Embedding and rerank models say how they pool, or are of an architecture made for it."""
    return model.arch not in EMBEDDING_ARCHS and model.get_int("pooling_type", 0) <= 0


def reserve_bytes(others: Sequence[ModelMap], config: LoadConfig) -> int:
    """Of the smallest chat model among ``others``; 0 without one."""
    return min((_one_more(model, config) for model in others if is_chat_model(model)), default=0)


def place_beside(
    model: ModelMap, cards: Sequence[CardFacts], config: LoadConfig, kept_bytes: int
) -> CardPlan | None:
    """As ``place``, with ``kept_bytes`` of the emptiest card left for another model if that is worth it."""
    alone = place(model, cards, config)
    if alone is None or not kept_bytes or config.n_ctx is not None or not is_chat_model(model):
        return alone
    emptiest = max(range(len(cards)), key=lambda index: cards[index].free_bytes)
    fewer = [
        replace(card, free_bytes=max(0, card.free_bytes - kept_bytes)) if index == emptiest else card
        for index, card in enumerate(cards)
    ]
    beside = place(model, fewer, config)
    if beside is None or beside.talk.first_tokens < min(WORTH_RESERVING_TOKENS, alone.talk.first_tokens):
        return alone
    is_less = beside.talk.first_tokens < alone.talk.first_tokens or beside.n_cpu_moe > alone.n_cpu_moe
    return replace(beside, limited_by=LIMIT_NAME if is_less else beside.limited_by, reserved_bytes=kept_bytes)


def _one_more(model: ModelMap, config: LoadConfig) -> int:
    weights = model.dense_bytes + model.expert_bytes
    talk = Conversations(min(_SHORT_TOKENS, model.n_ctx_train), 1, 0)
    return weights + weights * _MORE_PERCENT // 100 + sum(layer_bytes(model, config, talk))
