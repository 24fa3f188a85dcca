"""Made-up routing with the statistics of real models, of any length, and an honest prediction of it.

Owns the generator and its presets. A hidden state (slow topic, quicker context, the token itself) is read
by every layer's router and drifts a little from layer to layer. The prediction for a layer is that layer's
own router applied before the drift: what a real look-ahead could know, no more. Needs numpy; says so where
it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guanaco.errors import UsageError
from guanaco.simulator.trace import DECODE, Trace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_STATE = 64
_VOCABULARY = 4000
_TANH_GAIN, _NOISE = 1.6, 0.25


@dataclass(frozen=True)
class Preset:
    """Fitted to one model's published use of its experts."""

    name: str
    n_expert: int
    top_k: int
    n_layer: int
    bias_weight: float  # of an expert's popularity that no token changes
    topic_weight: float
    context_weight: float
    token_weight: float
    context_memory: float  # AR(1) coefficients, a token
    topic_memory: float
    drift: float  # from layer to layer
    zipf: float  # exponent of the token frequencies


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("qwen3-30b-like", 128, 8, 48, 0.774, 0.91, 0.978, 1.0, 0.516, 0.987, 0.151, 0.894),
        Preset("kimi-like", 256, 8, 26, 0.569, 0.946, 1.764, 1.0, 0.731, 0.973, 0.272, 1.03),
        Preset("olmoe-like", 64, 8, 16, 0.259, 1.264, 1.503, 1.0, 0.603, 0.993, 0.291, 1.36),
    )
}


@dataclass(frozen=True)
class Generated:
    """A trace and, for each token and layer, the ids predicted for the *next* layer, most likely first.

    ``next_layer`` is int16 [token][layer][rank]; -1 in the last layer, after which nothing is predicted.
    """

    trace: Trace
    next_layer: npt.NDArray[np.int16]


def generate(
    preset: str, n_tokens: int, seed: int, *, top_k: int | None = None, n_layer: int | None = None
) -> Trace:
    """A trace of ``n_tokens`` decode tokens; the same arguments give the same trace."""
    return generate_predicted(preset, n_tokens, seed, top_k=top_k, n_layer=n_layer).trace


def generate_predicted(
    preset: str,
    n_tokens: int,
    seed: int,
    *,
    top_k: int | None = None,
    n_layer: int | None = None,
    n_ranks: int = 16,
) -> Generated:
    """As ``generate``, with ``n_ranks`` predicted ids a layer; ``top_k`` and ``n_layer`` fit a model."""
    np = _numpy()
    chosen = _preset(preset)
    k, layers = top_k or chosen.top_k, n_layer or chosen.n_layer
    ranks = min(n_ranks, chosen.n_expert)
    if n_tokens < 1:
        raise UsageError(f"a trace of {n_tokens} tokens; at least one")
    if not 1 <= k <= chosen.n_expert or layers < 1:
        raise UsageError(
            f"top-{k} and {layers} layers do not fit preset {preset} of {chosen.n_expert} experts"
        )
    rng = np.random.default_rng(seed)
    shape = (layers, chosen.n_expert)
    routers = rng.standard_normal((*shape, _STATE)) * _STATE**-0.5
    bias = chosen.bias_weight * rng.standard_normal(shape)
    turns = rng.standard_normal((layers, _STATE, _STATE)) * _STATE**-0.5
    state = _token_states(np, rng, chosen, n_tokens)
    ids = np.empty((n_tokens, layers, k), dtype=np.int16)
    predicted = np.full((n_tokens, layers, ranks), -1, dtype=np.int16)
    for layer in range(layers):
        ids[:, layer] = _best(np, _product(np, state, routers[layer]) + bias[layer], k)
        if layer + 1 < layers:
            predicted[:, layer] = _best(np, _product(np, state, routers[layer + 1]) + bias[layer + 1], ranks)
        state = _drifted(np, rng, state, turns[layer], chosen.drift)
    trace = Trace(
        name=f"{preset}, {n_tokens} tokens, seed {seed}",
        n_layer=layers,
        n_expert=chosen.n_expert,
        top_k=k,
        steps=tuple(tuple(tuple(layer) for layer in step) for step in ids.tolist()),
        phase=(DECODE,) * n_tokens,
    )
    return Generated(trace, predicted)


def _preset(name: str) -> Preset:
    try:
        return PRESETS[name]
    except KeyError:
        raise UsageError(f"{name!r} is not a preset; one of {', '.join(PRESETS)}") from None


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise UsageError(
            "generating a trace needs numpy, which is not installed; pip install 'guanaco-llm[bench]'"
        ) from None
    return numpy


def _token_states(np: Any, rng: Any, preset: Preset, n_tokens: int) -> Any:
    """One state a token: topic and context are AR(1) processes, the token is drawn by its frequency."""
    embeddings = rng.standard_normal((_VOCABULARY, _STATE))
    frequency = np.arange(1, _VOCABULARY + 1) ** -preset.zipf
    tokens = rng.choice(_VOCABULARY, n_tokens, p=frequency / frequency.sum())
    topic = _remembering(np, rng, preset.topic_memory, n_tokens)
    context = _remembering(np, rng, preset.context_memory, n_tokens)
    weights = (preset.topic_weight, preset.context_weight, preset.token_weight)
    parts = (topic, context, embeddings[tokens])
    total = sum(weight**0.5 * part for weight, part in zip(weights, parts, strict=True))
    return total / sum(weights) ** 0.5


def _remembering(np: Any, rng: Any, memory: float, n_tokens: int) -> Any:
    noise = rng.standard_normal((n_tokens + 1, _STATE))
    out = np.empty((n_tokens, _STATE))
    value = noise[0]
    for i in range(n_tokens):
        value = memory * value + (1 - memory**2) ** 0.5 * noise[i + 1]
        out[i] = value
    return out


def _product(np: Any, state: Any, rows: Any) -> Any:
    # Not a BLAS product: its threads spin, and its sums depend on how many there are.
    return np.einsum("td,ed->te", state, rows, optimize=False)


def _best(np: Any, logits: Any, n: int) -> Any:
    return np.argsort(-logits, axis=1, kind="stable")[:, :n]


def _drifted(np: Any, rng: Any, state: Any, turn: Any, drift: float) -> Any:
    """What a layer adds: partly a function of the state, partly not, as large as the state itself."""
    added = _TANH_GAIN * np.tanh(_product(np, state, turn)) + _NOISE * rng.standard_normal(state.shape)
    added *= np.sqrt((state**2).mean(axis=1, keepdims=True) / (added**2).mean(axis=1, keepdims=True))
    return (1 - drift**2) ** 0.5 * state + drift * added
