"""Bytes of a context (KV caches, state, compute buffers), of the work buffer and of repacked weights.

Owns the formulas. Leaves which layer keeps what to ``layers``, measured constants to ``overheads`` and
choosing sizes to ``placement``. KV, state and compute are used only without an engine report; the work
buffer and repacked weights always come from here, because no report shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from guanaco.config import LoadConfig
from guanaco.model.map import ModelMap
from guanaco.planner.layers import layer_states
from guanaco.planner.report import ContextBytes
from guanaco.units import KIB, MIB

CELL_PAD = 256  # the engine rounds a context up to this many cells
_F32 = 4

# bytes and elements of one block of each cache type
_CACHE_BLOCKS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "f32": (4, 1),
        "f16": (2, 1),
        "bf16": (2, 1),
        "q8_0": (34, 32),
        "q4_0": (18, 32),
        "q4_1": (20, 32),
        "iq4_nl": (18, 32),
        "q5_0": (22, 32),
        "q5_1": (24, 32),
    }
)

# The widest set any build copies; a report narrows it to what the build at hand does.
REPACKABLE_TYPES = frozenset(
    ("q2_K", "q4_0", "q4_1", "q4_K", "q5_K", "q6_K", "q8_0", "iq4_nl", "iq4_xs", "mxfp4")
)

# Expert products computed while experts are read take so many rows at a time: Overlap::kMostRows.
OVERLAP_ROWS = 128
# Per thread: the tiled product's slot, attention's scratch and rounding.
_THREAD_WORK_BYTES = MIB
_CACHE_LINE_BYTES = 64
_ROW_MAPPING_BYTES = 8
_ROW_COUNT_BYTES = 8


def pad_cells(n_ctx: int) -> int:
    return -(-n_ctx // CELL_PAD) * CELL_PAD


def sequence_cells(n_ctx: int, n_parallel: int) -> int:
    """Cells of one sequence: the engine rounds the whole up, splits it evenly and rounds each share up."""
    return pad_cells(max(1, pad_cells(n_ctx) // n_parallel))


def slot_context(model: ModelMap, n_ctx: int, n_parallel: int) -> int:
    """Tokens that one request can hold: the server gives none more than the model was trained for."""
    return min(sequence_cells(n_ctx, n_parallel), model.n_ctx_train)


def context_bytes(model: ModelMap, config: LoadConfig, n_ctx: int, n_ubatch: int) -> ContextBytes:
    """The formula's estimate of one context; rounds up where it does not know."""
    kv_bytes, window_bytes = kv_cache_bytes(model, config, n_ctx, n_ubatch)
    return ContextBytes(
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        kv_bytes=kv_bytes,
        window_bytes=window_bytes,
        state_bytes=state_bytes(model, config.n_parallel),
        compute_bytes=compute_bytes(model, config, n_ctx, n_ubatch),
        output_bytes=output_bytes(model, config, n_ubatch),
    )


def kv_cache_bytes(model: ModelMap, config: LoadConfig, n_ctx: int, n_ubatch: int) -> tuple[int, int]:
    """(every KV cache, the part in sliding windows). The context is split evenly between sequences."""
    per_sequence = sequence_cells(n_ctx, config.n_parallel)
    total = windows = 0
    for layer in layer_states(model):
        cells = per_sequence
        if layer.window_tokens:
            cells = min(per_sequence, pad_cells(layer.window_tokens + n_ubatch))
        row = row_bytes(layer.k_width, config.cache_type_k) + row_bytes(layer.v_width, config.cache_type_v)
        total += config.n_parallel * cells * row
        windows += config.n_parallel * cells * row if layer.window_tokens else 0
    return total, windows


def state_bytes(model: ModelMap, n_parallel: int) -> int:
    """Recurrent state of all sequences, always F32."""
    return n_parallel * _F32 * sum(layer.state_width for layer in layer_states(model))


def compute_bytes(model: ModelMap, config: LoadConfig, n_ctx: int, n_ubatch: int) -> int:
    """An upper bound of the compute buffer: a few of a layer's widest activations, the mask, the logits."""
    meta = model.meta
    n_head = max(meta.get_ints("attention.head_count", model.n_layer, 0), default=0)
    tokens = min(n_ubatch, n_ctx)
    activations = 4 * _F32 * tokens * (model.n_embd + _widest_activation(model))
    mask = tokens * pad_cells(n_ctx) * _F32
    scores = 2 * mask * n_head if config.flash_attn == "off" else 0
    n_outputs = tokens if config.embeddings else config.n_parallel
    return activations + mask + scores + n_outputs * model.n_vocab * _F32 + MIB


def output_bytes(model: ModelMap, config: LoadConfig, n_ubatch: int) -> int:
    """Logits, and embeddings where they are asked for: then every token of a batch has a row."""
    rows = n_ubatch if config.embeddings else config.n_parallel
    return rows * _F32 * (model.n_vocab + (model.n_embd if config.embeddings else 0))


def work_bytes(model: ModelMap, n_ubatch: int, n_threads: int, products: tuple[tuple[int, int], ...]) -> int:
    """The processor back end's work buffer.

    ``products``: (slots or experts, selected per token) of each kind of expert product; the buffer holds a
    table of rows for every slot, used or not.
    """
    # The inputs, in the format the weights are multiplied in: at most 2 bytes a number.
    rows = 2 * n_ubatch * _widest_activation(model)
    tables = max(
        (
            n_slots * (_ROW_COUNT_BYTES + _ROW_MAPPING_BYTES * n_used * n_ubatch + _CACHE_LINE_BYTES)
            for n_slots, n_used in products
        ),
        default=0,
    )
    return rows + tables + n_threads * _THREAD_WORK_BYTES + 4 * KIB


def rows_bytes(model: ModelMap, n_rows: int) -> int:
    """Rows of an expert product's input and of its result, as float32; gate and up may be one product."""
    n_ff = max(model.meta.get_ints("feed_forward_length", model.n_layer, 0), default=0)
    n_ff_expert = max(model.meta.get_ints("expert_feed_forward_length", model.n_layer, n_ff), default=0)
    return _F32 * n_rows * (model.n_embd + max(model.n_embd, 2 * n_ff_expert))


def repack_bytes(model: ModelMap, repack_types: frozenset[str] = REPACKABLE_TYPES) -> int:
    """Weights that the engine copies to a layout of its own unless told not to."""
    return sum(
        tensor.nbytes
        for tensor in model.gguf.tensors
        if tensor.type_name in repack_types
        and len(tensor.dims) > 1
        # Looked up by row, never multiplied, unless it is the output matrix too.
        and not (tensor.name == "token_embd.weight" and model.has_own_output)
    )


def _widest_activation(model: ModelMap) -> int:
    """Numbers a token's widest intermediate has."""
    meta = model.meta
    n_head = max(meta.get_ints("attention.head_count", model.n_layer, 0), default=0)
    head = meta.get_int("attention.key_length", model.n_embd // max(1, n_head))
    n_ff = max(meta.get_ints("feed_forward_length", model.n_layer, 0), default=0)
    n_ff_expert = max(meta.get_ints("expert_feed_forward_length", model.n_layer, n_ff), default=0)
    n_used = max((group.top_k for group in model.groups), default=0)
    return max(
        model.n_embd,
        n_ff,
        n_used * max(n_ff_expert, model.n_embd),
        n_head * max(head, meta.get_int("attention.kv_lora_rank", 0)),
        meta.get_int("ssm.inner_size", 0),
    )


def row_bytes(width: int, cache_type: str) -> int:
    block_bytes, block_elements = _CACHE_BLOCKS[cache_type]
    return -(-width // block_elements) * block_bytes
