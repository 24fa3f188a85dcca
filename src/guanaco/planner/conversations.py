"""Conversations that a model keeps on a card: how many, how long, and the bytes of each layer's part.

Owns that arithmetic. Leaves which layer keeps what to ``layers`` and what fits to ``card``. The caches are
unified, as llama-server's are by default: all conversations share one pool of cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.config import LoadConfig
from guanaco.model.map import ModelMap
from guanaco.planner.layers import layer_states
from guanaco.planner.memory import CELL_PAD, pad_cells, row_bytes

# What a plan makes room for before experts leave the card, and of every further conversation.
FIRST_TOKENS, FURTHER_TOKENS = 16384, 8192
# A first conversation shorter than this is worth more than other models' room; llama.cpp's own fitting
# does not go below the second.
WORTH_RESERVING_TOKENS, FEWEST_TOKENS = 8192, 4096
_F32 = 4


@dataclass(frozen=True)
class Conversations:
    """One of ``first_tokens`` and ``n_parallel - 1`` of ``further_tokens``."""

    first_tokens: int
    n_parallel: int
    further_tokens: int

    @property
    def total_tokens(self) -> int:
        """Cells of the pool: the context size that the engine is given."""
        return pad_cells(self.first_tokens + (self.n_parallel - 1) * self.further_tokens)


def conversations(model: ModelMap, config: LoadConfig, first_tokens: int | None = None) -> Conversations:
    """Those that a plan makes room for first: what was asked for, or ``first_tokens``."""
    asked = model.n_ctx_train if config.n_ctx == 0 else config.n_ctx
    first = min(first_tokens or asked or FIRST_TOKENS, model.n_ctx_train)
    return Conversations(first, config.n_parallel, min(FURTHER_TOKENS, model.n_ctx_train))


def layer_bytes(model: ModelMap, config: LoadConfig, talk: Conversations) -> tuple[int, ...]:
    """Bytes that each layer keeps of them, MTP layers left out: caches, windows, recurrent state.

    A window has min(pool, pad(window x sequences + ubatch)) cells, as llama.cpp's unified cache does.
    """
    cells = talk.total_tokens
    sizes = []
    for layer in layer_states(model):
        kept = cells
        if layer.window_tokens:
            kept = min(cells, pad_cells(layer.window_tokens * talk.n_parallel + config.n_ubatch))
        row = row_bytes(layer.k_width, config.cache_type_k) + row_bytes(layer.v_width, config.cache_type_v)
        sizes.append(kept * row + talk.n_parallel * _F32 * layer.state_width)
    return tuple(sizes)


def lengths(model: ModelMap, fewest: int) -> tuple[int, ...]:
    """Lengths of a first conversation to choose from, ascending: blocks of cells, and what was trained."""
    return (*range(fewest, model.n_ctx_train, CELL_PAD), model.n_ctx_train)
