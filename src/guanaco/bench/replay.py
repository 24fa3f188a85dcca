"""The routing that a benchmark replays: a recorded trace, or a made-up one with its honest prediction.

Owns: turning what the user names into the file the native library reads. Refuses a trace whose shape is not
the model's.
"""

from __future__ import annotations

from pathlib import Path

from guanaco.errors import UsageError
from guanaco.model.map import ModelMap
from guanaco.simulator.generate import PRESETS, generate_predicted
from guanaco.simulator.trace import REPLAY_MAGIC, Trace, read_trace, write_replay

GENERATED_TOKENS = 1800  # long enough that no run ends before it, never looped
_SEED = 7


def replay_file(name: str, model: ModelMap, directory: Path) -> Path:
    """The file for ``name``: a ready one, a trace in any known format, or ``PRESET[:TOKENS[:SEED]]``."""
    preset, _, rest = name.partition(":")
    target = directory / "replay"
    if preset in PRESETS:
        tokens, _, seed = rest.partition(":")
        n_tokens, n_seed = _number(name, tokens, GENERATED_TOKENS), _number(name, seed, _SEED)
        _write_generated(preset, n_tokens, n_seed, model, target)
        return target
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"--replay: {name} is neither a trace file nor a preset; presets: {', '.join(PRESETS)} "
            "(PRESET[:TOKENS[:SEED]])"
        )
    with path.open("rb") as file:
        if file.read(len(REPLAY_MAGIC)) == REPLAY_MAGIC:
            return path.resolve()
    trace = read_trace(path).decoded()
    _check_shape(trace, model)
    write_replay(trace, target)
    return target


def moe_layers(model: ModelMap) -> int:
    """Layers that route in a plain decode."""
    return len({group.layer for group in model.groups if not group.is_mtp})


def _write_generated(preset: str, n_tokens: int, seed: int, model: ModelMap, target: Path) -> None:
    n_layer = moe_layers(model)
    made = generate_predicted(preset, n_tokens, seed, top_k=model.n_expert_used, n_layer=n_layer)
    _check_shape(made.trace, model)
    n_ranks = made.next_layer.shape[2]
    nothing = [-1] * n_ranks
    # What layer l predicts is filed under the layer it is for.
    predictions = [[nothing, *step[:-1]] for step in made.next_layer.tolist()]
    write_replay(made.trace, target, predictions)


def _check_shape(trace: Trace, model: ModelMap) -> None:
    has = (trace.n_layer, trace.n_expert, trace.top_k)
    wants = (moe_layers(model), model.n_expert, model.n_expert_used)
    # A file without a header knows only the experts it saw.
    if has[0] != wants[0] or has[1] > wants[1] or has[2] != wants[2]:
        raise UsageError(
            f"--replay: {trace.name} has {has[0]} MoE layers, {has[1]} experts and top-{has[2]}; "
            f"{model.name} has {wants[0]}, {wants[1]} and top-{wants[2]}"
        )


def _number(name: str, text: str, default: int) -> int:
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"--replay: {text!r} in {name!r} is not a whole number; PRESET[:TOKENS[:SEED]]"
        ) from None
