"""Routing traces: which experts each token used in each layer.

Owns the ``Trace`` value, the readers of the three formats it comes in, the writer of our own format and of
the compact file that the native library replays. Leaves statistics to ``usage`` and made-up traces to
``generate``. Refuses a trace that contradicts itself, naming file, line and value.

Formats, told apart by their first line:
  - ``# route_trace``: comment lines with the model's shape, then rows
    ``turn,phase,step,layer,slot,expert,...`` (phase 0 = prompt, 1 = decode);
  - JSON lines ``{"tok": n, "layers": [[ids], ...]}`` without a header: all decode, shape taken from the data;
  - our own: a header line ``{"guanaco_trace": 1, ...}``, then a line ``{"phase": p, "layers": [[ids], ...]}``
    for each token. It may say more of a token: ``resident`` and ``weights``, parallel to ``layers``: what was
    in memory when it was selected, and the router's score of it. What else is recorded: see ``recorded``.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from guanaco.errors import UsageError
from guanaco.files import replacing
from guanaco.simulator.recorded import Recorded, RecordedReader, is_batch

PROMPT, DECODE = 0, 1
REPLAY_MAGIC = b"GNRP"
_REPLAY_PLAIN, _REPLAY_PREDICTED = 1, 2
FORMAT_VERSION = 1
# A hostile header must not make us allocate: larger than any model, small enough for a list.
_MAX_LAYERS, _MAX_EXPERTS = 4096, 32_767

Step = tuple[tuple[int, ...], ...]  # layer -> ids, best first where the source has an order


@dataclass(frozen=True)
class Trace:
    """``steps[token][layer]`` are the ids used; an empty layer was not run or not recorded for that token."""

    name: str
    n_layer: int
    n_expert: int
    top_k: int
    steps: tuple[Step, ...] = field(repr=False)
    phase: tuple[int, ...] = field(repr=False)  # of each token
    expert_bytes: tuple[int, ...] | None = field(default=None, repr=False)  # of each layer; None: unknown
    recorded: Recorded | None = field(default=None, repr=False)  # by a running engine

    @property
    def n_tokens(self) -> int:
        return len(self.steps)

    def decoded(self) -> Trace:
        """The decode tokens only."""
        kept = [i for i, phase in enumerate(self.phase) if phase == DECODE]
        steps = tuple(self.steps[i] for i in kept)
        return replace(self, steps=steps, phase=(DECODE,) * len(kept), recorded=None)

    def first_incomplete_token(self) -> int | None:
        """The first token with fewer ids than ``top_k`` in some layer; None when all are whole."""
        for index, step in enumerate(self.steps):
            if any(len(ids) != self.top_k for ids in step):
                return index
        return None


def read_trace(path: Path) -> Trace:
    """Read a trace in any of the formats above."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return parse_trace(path, file)
    except OSError as error:
        raise UsageError(f"cannot read the trace {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a routing trace: it is not text") from None


def parse_trace(path: Path, file: TextIO) -> Trace:
    """Read a trace from an open, seekable file; ``path`` is for messages and the name."""
    first = file.readline()
    file.seek(0)
    return _read_route_csv(path, file) if first.startswith("#") else _read_json_lines(path, file)


def write_trace(trace: Trace, path: Path) -> None:
    """Write our own format, through a temporary name."""
    header = {
        "guanaco_trace": FORMAT_VERSION,
        "name": trace.name,
        "n_layer": trace.n_layer,
        "n_expert": trace.n_expert,
        "top_k": trace.top_k,
        "expert_bytes": list(trace.expert_bytes) if trace.expert_bytes else None,
    }
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(json.dumps(header) + "\n")
        for phase, step in zip(trace.phase, trace.steps, strict=True):
            file.write(json.dumps({"phase": phase, "layers": step}, separators=(",", ":")) + "\n")


def write_replay(
    trace: Trace, path: Path, predictions: Sequence[Sequence[Sequence[int]]] | None = None
) -> None:
    """Write what the native library replays: a header, then int16 ids[token][layer][slot], little endian.

    ``predictions[token][layer]`` are the ids predicted for that layer before it ran, best first, -1 for none,
    as many for every layer; they follow the ids.
    """
    incomplete = trace.first_incomplete_token()
    if incomplete is not None:
        raise UsageError(
            f"trace {trace.name}: token {incomplete} does not have {trace.top_k} experts in every layer, "
            "so it cannot be replayed; replay its decode tokens only"
        )
    if not trace.steps:
        raise UsageError(f"trace {trace.name} has no tokens to replay")
    shape = (trace.n_layer, trace.n_expert, trace.top_k, trace.n_tokens)
    with replacing(path) as partial, partial.open("wb") as file:
        version = _REPLAY_PLAIN if predictions is None else _REPLAY_PREDICTED
        file.write(REPLAY_MAGIC + struct.pack("<5I", version, *shape))
        _little_endian(e for step in trace.steps for layer in step for e in layer).tofile(file)
        if predictions is not None:
            file.write(struct.pack("<I", len(predictions[0][0])))
            _little_endian(int(e) for step in predictions for layer in step for e in layer).tofile(file)


def _little_endian(ids: Iterable[int]) -> array[int]:
    values = array("h", ids)
    if struct.pack("=h", 1) != struct.pack("<h", 1):
        values.byteswap()
    return values


def _fail(path: Path, line: int, what: str) -> UsageError:
    return UsageError(f"{path}, line {line}: {what}")


def _check_shape(path: Path, line: int, n_layer: int, n_expert: int, top_k: int) -> None:
    if not 1 <= n_layer <= _MAX_LAYERS:
        raise _fail(path, line, f"{n_layer} layers; between 1 and {_MAX_LAYERS}")
    if not 1 <= n_expert <= _MAX_EXPERTS:
        raise _fail(path, line, f"{n_expert} experts; between 1 and {_MAX_EXPERTS}")
    if not 1 <= top_k <= n_expert:
        raise _fail(path, line, f"{top_k} experts used of {n_expert}")


def _check_ids(path: Path, line: int, ids: tuple[int, ...], n_expert: int, top_k: int) -> None:
    if len(ids) > top_k:
        raise _fail(path, line, f"{len(ids)} experts in one layer, the trace says {top_k}")
    if len(set(ids)) != len(ids):
        raise _fail(path, line, f"an expert twice in one layer: {list(ids)}")
    if any(not 0 <= e < n_expert for e in ids):
        raise _fail(path, line, f"experts {list(ids)} are not all below {n_expert}")


def _read_route_csv(path: Path, file: TextIO) -> Trace:
    shape: dict[str, int] = {}
    name, layer_bytes = path.stem, {}
    tokens: dict[tuple[int, int], list[dict[int, int]]] = {}  # (turn, step) -> layer -> slot -> expert
    phases: dict[tuple[int, int], int] = {}
    for line, text in enumerate(file, start=1):
        if text.startswith("#"):
            fields = dict(re.findall(r"(\w+)=(\S+)", text))
            try:
                shape |= {
                    k: int(v) for k, v in fields.items() if k in ("n_layer", "n_expert", "n_expert_used")
                }
                if "layer" in fields and "expert_bytes" in fields:
                    layer_bytes[int(fields["layer"])] = int(fields["expert_bytes"])
            except ValueError:
                raise _fail(path, line, f"not a number in {text.strip()!r}") from None
            name = fields.get("model", name)
            continue
        if text.startswith("turn,") or not text.strip():
            continue
        if len(shape) < 3:
            raise _fail(path, line, "rows before a '#' line with n_layer, n_expert and n_expert_used")
        if not tokens:
            _check_shape(path, line, shape["n_layer"], shape["n_expert"], shape["n_expert_used"])
        try:
            turn, phase, step, layer, slot, expert = map(int, text.split(",")[:6])
        except ValueError:
            raise _fail(
                path, line, f"expected turn,phase,step,layer,slot,expert, not {text.strip()!r}"
            ) from None
        if not 0 <= layer < shape["n_layer"]:
            raise _fail(path, line, f"layer {layer}, the trace says {shape['n_layer']} layers")
        if phases.setdefault((turn, step), phase) != phase or phase not in (PROMPT, DECODE):
            raise _fail(path, line, f"phase {phase} of step {step}; 0 = prompt, 1 = decode, one a step")
        if (turn, step) not in tokens:
            tokens[turn, step] = [{} for _ in range(shape["n_layer"])]
        slots = tokens[turn, step][layer]
        if slot in slots:
            raise _fail(path, line, f"slot {slot} of layer {layer} twice in step {step}")
        slots[slot] = expert
        _check_ids(path, line, tuple(slots.values()), shape["n_expert"], shape["n_expert_used"])
    if not tokens:
        raise UsageError(f"{path} holds no tokens")
    order = sorted(tokens)
    n_layer = shape["n_layer"]
    known = all(layer in layer_bytes for layer in range(n_layer))
    return Trace(
        name=name,
        n_layer=n_layer,
        n_expert=shape["n_expert"],
        top_k=shape["n_expert_used"],
        steps=tuple(tuple(tuple(e for _, e in sorted(layer.items())) for layer in tokens[k]) for k in order),
        phase=tuple(phases[key] for key in order),
        expert_bytes=tuple(layer_bytes[layer] for layer in range(n_layer)) if known else None,
    )


def _objects(path: Path, file: Iterable[str]) -> Iterator[tuple[int, dict[str, object]]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise _fail(path, line, f"not a routing trace: expected a JSON object, not {text.strip()[:60]!r}")
        yield line, value


def _step_of(path: Path, line: int, value: dict[str, object]) -> Step:
    layers = value.get("layers")
    if not isinstance(layers, list) or not all(isinstance(ids, list) for ids in layers):
        raise _fail(path, line, 'expected "layers": a list of lists of expert ids')
    if not all(type(e) is int for ids in layers for e in ids):
        raise _fail(path, line, "an expert id that is not a whole number")
    return tuple(tuple(ids) for ids in layers)


def _read_json_lines(path: Path, file: TextIO) -> Trace:
    objects = _objects(path, file)
    header: dict[str, object] = {}
    recorded: RecordedReader | None = None
    found: list[tuple[int, int, Step]] = []  # line, phase, step
    for line, value in objects:
        fail = partial(_fail, path, line)
        if "guanaco_trace" in value and not found and not header:
            header = value
            if value["guanaco_trace"] != FORMAT_VERSION:
                raise _fail(path, line, f"trace format {value['guanaco_trace']}; this version reads 1")
            recorded = RecordedReader(header, fail)
            continue
        if recorded is not None and is_batch(value):
            recorded.batch(value, fail)
            continue
        phase = value.get("phase", DECODE)
        if phase not in (PROMPT, DECODE):
            raise _fail(path, line, f"phase {phase!r}; 0 = prompt, 1 = decode")
        step = _step_of(path, line, value)
        found.append((line, int(phase), step))
        if recorded is not None:
            recorded.token(step)
    if not found:
        raise UsageError(f"{path} holds no tokens")
    n_layer, n_expert, top_k = _shape_of(path, header, found)
    _check_shape(path, 1, n_layer, n_expert, top_k)
    for line, _, step in found:
        if len(step) != n_layer:
            raise _fail(path, line, f"{len(step)} layers, the trace has {n_layer}")
        for ids in step:
            _check_ids(path, line, ids, n_expert, top_k)
    return Trace(
        name=str(header.get("name", path.stem)),
        n_layer=n_layer,
        n_expert=n_expert,
        top_k=top_k,
        steps=tuple(step for _, _, step in found),
        phase=tuple(phase for _, phase, _ in found),
        expert_bytes=_layer_bytes(path, header, n_layer),
        recorded=None if recorded is None else recorded.finish(partial(_fail, path, found[-1][0])),
    )


def _shape_of(
    path: Path, header: dict[str, object], found: list[tuple[int, int, Step]]
) -> tuple[int, int, int]:
    if header:
        shape = [header.get(key) for key in ("n_layer", "n_expert", "top_k")]
        if not all(type(value) is int for value in shape):
            raise _fail(path, 1, "expected whole numbers n_layer, n_expert and top_k in the header")
        return shape[0], shape[1], shape[2]  # type: ignore[return-value]
    steps = [step for _, _, step in found]
    # A file without a header does not say how many experts there are: one more than the largest id used.
    n_expert = 1 + max((e for step in steps for ids in step for e in ids), default=0)
    return len(steps[0]), n_expert, max((len(ids) for step in steps for ids in step), default=0)


def _layer_bytes(path: Path, header: dict[str, object], n_layer: int) -> tuple[int, ...] | None:
    value = header.get("expert_bytes")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != n_layer or not all(type(n) is int for n in value):
        raise _fail(path, 1, f"expert_bytes: expected {n_layer} whole numbers")
    return tuple(value)
