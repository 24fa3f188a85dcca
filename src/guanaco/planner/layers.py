"""What each layer keeps between tokens: full attention, a sliding window, a recurrent state.

Owns reading that from the metadata, with one table row where an architecture's rule is not written in the
file. Leaves bytes to ``memory``. It serves the formula used when the engine gives no report; an unknown
rule is read as full attention, the larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from guanaco.model.map import ModelMap
from guanaco.model.meta import Meta


@dataclass(frozen=True)
class LayerRule:
    """How an architecture's layers differ when its metadata gives no list."""

    window_period: int = 0  # one layer in so many sees everything, the others a window; 0: all see everything
    full_first: bool = False  # the full layer is the first of its period, not the last
    window_tokens: int = 0  # width when the metadata has none
    state_period: int = 0  # one layer in so many has attention, the others a recurrent state
    n_kv_layers: int = 0  # later layers reuse the cache of these; 0: every layer has its own


RULES: Mapping[str, LayerRule] = MappingProxyType(
    {
        "afmoe": LayerRule(window_period=4),
        "cohere2": LayerRule(window_period=4),
        "cohere2moe": LayerRule(window_period=4, full_first=True),
        "exaone-moe": LayerRule(window_period=4),
        "exaone4": LayerRule(window_period=4),
        "gemma2": LayerRule(window_period=2),
        "gemma3": LayerRule(window_period=6),
        "gemma3n": LayerRule(window_period=5, n_kv_layers=20),
        "gpt-oss": LayerRule(window_period=2),
        "laguna": LayerRule(window_period=4, full_first=True),
        "llama4": LayerRule(window_period=4, window_tokens=8192),
        "mellum": LayerRule(window_period=4),
        "minimax-01": LayerRule(state_period=8),
        "muse-glimmer": LayerRule(window_period=4),
        "olmo2": LayerRule(window_period=4),
        "plamo3": LayerRule(window_period=8),
        "qwen35": LayerRule(state_period=4),
        "qwen35moe": LayerRule(state_period=4),
        "qwen3next": LayerRule(state_period=4),
        "qwen4exp": LayerRule(state_period=4),
        "smallthinker": LayerRule(window_period=4, full_first=True),
    }
)
_NO_RULE = LayerRule()


@dataclass(frozen=True)
class LayerState:
    """What one layer keeps: numbers a cell for K and V, F32 numbers a sequence for a state."""

    k_width: int = 0
    v_width: int = 0
    window_tokens: int = 0  # 0: a cell for every token of the context
    state_width: int = 0


def layer_states(model: ModelMap) -> tuple[LayerState, ...]:
    """One entry for every layer that a plain decode runs; MTP layers keep nothing."""
    meta = model.meta
    n_layer = model.n_layer - meta.get_int("nextn_predict_layers", 0)
    rule = RULES.get(model.arch, _NO_RULE)
    recurrent = _recurrent(meta, model, n_layer, rule)
    windows = _windows(meta, model, n_layer, rule)
    attention = _attention(meta, model, n_layer, windows)
    states = _state_width(meta, model, rule)
    n_kv = _n_kv_layers(meta, n_layer, rule)
    in_every_layer = bool(states) and not any(recurrent)
    return tuple(
        LayerState(
            k_width=attention[i][0] if i < n_kv and not recurrent[i] else 0,
            v_width=attention[i][1] if i < n_kv and not recurrent[i] else 0,
            window_tokens=windows[i],
            state_width=states if recurrent[i] or in_every_layer else 0,
        )
        for i in range(n_layer)
    )


def _attention(meta: Meta, model: ModelMap, n_layer: int, windows: tuple[int, ...]) -> list[tuple[int, int]]:
    """(K width, V width) of each layer's cells."""
    n_head = meta.get_ints("attention.head_count", model.n_layer, 0)
    n_kv = meta.get_ints("attention.head_count_kv", model.n_layer, max(n_head, default=0))
    head = model.n_embd // max(1, max(n_head, default=1))
    key, value = (meta.get_int(f"attention.{name}_length", head) for name in ("key", "value"))
    key_swa, value_swa = (
        meta.get_int(f"attention.{name}_length_swa", full) for name, full in (("key", key), ("value", value))
    )
    # A compressed (MLA) cache has no V: values are computed from K.
    compressed = meta.get_int("attention.key_length_mla", 0) and meta.get_int("attention.value_length_mla", 0)
    indexer = meta.get_int("attention.indexer.key_length", 0)
    widths = []
    for i in range(n_layer):
        k, v = (key_swa, value_swa) if windows[i] else (key, value)
        widths.append((n_kv[i] * k + indexer, 0 if compressed else n_kv[i] * v))
    return widths


def _windows(meta: Meta, model: ModelMap, n_layer: int, rule: LayerRule) -> tuple[int, ...]:
    width = meta.get_int("attention.sliding_window", rule.window_tokens)
    key = meta.full_key("attention.sliding_window_pattern")
    pattern = meta.values.get(key)
    if isinstance(pattern, tuple):
        flags = [bool(flag) for flag in pattern[:n_layer]]
    else:
        period = pattern if isinstance(pattern, int) else rule.window_period
        full = 0 if rule.full_first else period - 1
        flags = [rule.window_period > 0 and period > 0 and i % period != full for i in range(n_layer)]
    flags += [False] * (n_layer - len(flags))
    return tuple(width if flag else 0 for flag in flags)


def _recurrent(meta: Meta, model: ModelMap, n_layer: int, rule: LayerRule) -> list[bool]:
    if meta.has("attention.recurrent_layers"):
        return [bool(flag) for flag in meta.get_ints("attention.recurrent_layers", model.n_layer)][:n_layer]
    if meta.has("wkv.head_size"):
        return [True] * n_layer
    period = meta.get_int("full_attention_interval", rule.state_period)
    if period:
        return [(i + 1) % period != 0 for i in range(n_layer)]
    if not any(meta.has(key) for key in ("ssm.state_size", "kda.head_dim", "shortconv.l_cache")):
        return [False] * n_layer
    n_head = max(meta.get_ints("attention.head_count", model.n_layer, 0), default=0)
    n_kv = meta.get_ints("attention.head_count_kv", model.n_layer, n_head)
    n_ff = meta.get_ints("feed_forward_length", model.n_layer, 0)
    # Some hybrids have layers that are only a feed-forward block: no heads, no state.
    only_ff = any(n_ff[i] == 0 and n_kv[i] == 0 for i in range(n_layer))
    return [n_kv[i] == 0 and (n_ff[i] == 0 or not only_ff) for i in range(n_layer)]


def _state_width(meta: Meta, model: ModelMap, rule: LayerRule) -> int:
    """F32 numbers a recurrent layer keeps for one sequence: the convolution's history and the state."""
    wkv = meta.get_int("wkv.head_size", 0)
    if wkv:
        return model.n_embd * (meta.get_int("token_shift_count", 2) + wkv)
    history = meta.get_int("shortconv.l_cache", 0)
    if history:
        return model.n_embd * (history - 1)
    n_head = max(meta.get_ints("attention.head_count", model.n_layer, 0), default=0)
    d_conv = meta.get_int("ssm.conv_kernel", 0)
    kda = meta.get_int("kda.head_dim", 0)
    if kda:
        return 3 * (d_conv - 1 if d_conv else 3) * n_head * kda + kda * kda * n_head
    d_inner, d_state = meta.get_int("ssm.inner_size", 0), meta.get_int("ssm.state_size", 0)
    conv = max(0, d_conv - 1) * (d_inner + 2 * meta.get_int("ssm.group_count", 0) * d_state)
    # Linear attention without a convolution keeps one matrix a head.
    linear = meta.get_int("attention.key_length", 0) if rule.state_period and not d_inner else 0
    return conv + d_state * d_inner + linear * linear * n_head


def _n_kv_layers(meta: Meta, n_layer: int, rule: LayerRule) -> int:
    shared = meta.get_int("attention.shared_kv_layers", 0)
    return n_layer - shared if shared else min(n_layer, rule.n_kv_layers or n_layer)
