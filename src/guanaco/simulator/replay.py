"""Replays a routing trace through the native library's cache: the engine's own policies, without experts.

Owns the thin typed face of ``guanaco_sim_*`` and how a trace and a budget become slots. Leaves tables to
``report``, finding the library to its caller. Refuses budgets that one layer's selection does not fit.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType

from guanaco.cache.policies.belady import Belady
from guanaco.cache.policy import PolicyShape, Selection
from guanaco.cache.reference import Served
from guanaco.errors import EngineError, UsageError
from guanaco.simulator.recorded import Recorded
from guanaco.simulator.trace import Trace

BELADY = "belady"
_ERROR_BYTES = 512
_GROUP_SHIFT, _EXPERT_MASK = 16, 0xFFFF
_NO_EXPERT = -1
_DOES_NOT_FIT = -1
_WORD = ctypes.c_uint32
_WORDS = ctypes.POINTER(_WORD)


@dataclass(frozen=True)
class Counts:
    """What a replay came to. None: of no meaning for the optimum, which is no policy."""

    hits: int
    misses: int
    evictions: int
    serve_ns: int | None = None  # spent in the cache and its policy
    evict_hot: int | None = None  # of experts used more than most
    evict_reread: int | None = None  # taken back soon


class NativeCache:
    """One cache of the native library. Close it, or use it as a context."""

    def __init__(self, library: Path, policy: str, shape: PolicyShape) -> None:
        self._library = _open(library)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._sim = self._library.guanaco_sim_create(
            policy.encode(),
            shape.n_groups,
            _words(shape.n_expert),
            _words(shape.size_class),
            _words(shape.top_k),
            len(shape.n_slots),
            _words(shape.n_slots),
            error,
            _ERROR_BYTES,
        )
        if not self._sim:
            raise UsageError(f"policy {policy!r}: {error.value.decode(errors='replace')}")

    def __enter__(self) -> NativeCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._sim:
            self._library.guanaco_sim_destroy(self._sim)
            self._sim = None

    def serve(self, selection: Selection) -> Served | None:
        """Serves one selection; None, with nothing changed, when it does not fit the slots."""
        n = len(selection.experts)
        experts = (ctypes.c_int32 * n)(*selection.experts)
        victims, n_victims = (_WORD * n)(), _WORD(0)
        n_used = len(selection.rows[0]) if selection.rows else 0
        ids = [expert for row in selection.rows for expert in row]
        misses: int = self._library.guanaco_sim_serve(
            self._sim,
            selection.group,
            experts,
            n,
            selection.n_transient,
            (ctypes.c_int32 * len(ids))(*ids),
            len(selection.rows),
            n_used,
            victims,
            ctypes.byref(n_victims),
        )
        if misses == _DOES_NOT_FIT:
            return None
        return _served(selection, misses, victims[: n_victims.value])

    def pass_through(self, selection: Selection) -> Served:
        """Serves a selection that does not fit, in waves; the slots it takes are empty afterwards."""
        n = len(selection.experts)
        victims, n_victims = (_WORD * n)(), _WORD(0)
        misses: int = self._library.guanaco_sim_pass(
            self._sim,
            selection.group,
            (ctypes.c_int32 * n)(*selection.experts),
            n,
            victims,
            ctypes.byref(n_victims),
        )
        return _served(selection, misses, victims[: n_victims.value])

    def replay(self, trace: Trace) -> Counts:
        """Serves a whole trace in one call; its top-k and layers are those of the shape."""
        ids = array("h")
        for step in trace.steps:
            for layer in step:
                ids.extend(layer)
                ids.extend([_NO_EXPERT] * (trace.top_k - len(layer)))
        numbers = (ctypes.c_int16 * len(ids)).from_buffer(ids)
        counters = (ctypes.c_uint64 * 4)()
        if self._library.guanaco_sim_replay(self._sim, numbers, trace.n_tokens, counters) < 0:
            raise _too_many(trace.name)
        hits, misses, evictions, serve_ns = counters
        return Counts(hits, misses, evictions, serve_ns, *self.evictions())

    def prior(self, group: int, use: Sequence[float]) -> None:
        """Before the first selection: uses a token to expect of each of the group's experts."""
        number = ctypes.c_double
        set_prior = self._library.guanaco_sim_prior
        set_prior.argtypes = [ctypes.c_void_p, _WORD, ctypes.POINTER(number), _WORD]
        if set_prior(self._sim, group, (number * len(use))(*use), len(use)) != 0:
            raise ValueError(f"a prior of layer {group} that does not fit its experts")

    def evictions(self) -> tuple[int, int]:
        """Of hot experts, and of those read again soon; since the start."""
        hot, reread = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.guanaco_sim_evictions(self._sim, ctypes.byref(hot), ctypes.byref(reread))
        return hot.value, reread.value


def shape_for(trace: Trace, share: Fraction, *, by_bytes: bool = False) -> PolicyShape:
    """Slots for ``share`` of the experts, rounded down: one pool, or one for each size of expert."""
    if by_bytes and trace.expert_bytes is None:
        raise UsageError(
            f"--by-bytes: {trace.name} does not say how large its experts are; leave the flag out"
        )
    sizes = trace.expert_bytes if by_bytes and trace.expert_bytes is not None else (0,) * trace.n_layer
    classes = sorted(set(sizes), reverse=True)
    layers = Counter(sizes)
    slots = tuple(math.floor(share * layers[size] * trace.n_expert) for size in classes)
    for size, n_slots in zip(classes, slots, strict=True):
        if n_slots < trace.top_k:
            least = math.ceil(Fraction(10_000 * trace.top_k, layers[size] * trace.n_expert)) / 100
            pool = f"{layers[size] * trace.n_expert} experts" + (f" of {size} bytes" if by_bytes else "")
            raise UsageError(
                f"--budgets: {float(100 * share):g}% is {n_slots} of the {pool} of {trace.name}, "
                f"and one layer of a token uses {trace.top_k}; at least {least:g}%"
            )
    return PolicyShape(
        n_expert=(trace.n_expert,) * trace.n_layer,
        size_class=tuple(classes.index(size) for size in sizes),
        n_slots=slots,
        top_k=(trace.top_k,) * trace.n_layer,
    )


def selections(trace: Trace) -> Iterator[Selection]:
    """The trace in the order it was routed; a layer without ids was not run."""
    for step in trace.steps:
        for group, experts in enumerate(step):
            if experts:
                yield Selection(group, experts)


def replay(library: Path, policy: str, trace: Trace, shape: PolicyShape) -> Counts:
    """One policy over one trace with the slots of ``shape``, which hold every selection."""
    if policy == BELADY:
        return _optimum(trace.name, shape, list(selections(trace)))
    with NativeCache(library, policy, shape) as cache:
        return cache.replay(trace)


def replay_recorded(library: Path, policy: str, recorded: Recorded, name: str) -> Counts:
    """One policy over what a running engine asked of its cache, prompts included, with that cache's slots."""
    if policy == BELADY:
        return _optimum(name, recorded.shape, recorded.selections)
    hits = misses = evictions = 0
    with NativeCache(library, policy, recorded.shape) as cache:
        for selection in recorded.selections:
            served = cache.serve(selection) or cache.pass_through(selection)
            hits += len(selection.experts) - served.misses
            misses += served.misses
            evictions += len(served.victims)
        hot, reread = cache.evictions()
    return Counts(hits, misses, evictions, evict_hot=hot, evict_reread=reread)


def _served(selection: Selection, misses: int, keys: Sequence[int]) -> Served:
    if misses < 0:
        raise ValueError(f"{selection} does not fit the shape of the cache")
    return Served(misses, tuple((key >> _GROUP_SHIFT, key & _EXPERT_MASK) for key in keys))


def _optimum(name: str, shape: PolicyShape, served: Sequence[Selection]) -> Counts:
    best = Belady(shape, served).replay()
    if best is None:
        raise _too_many(name)
    return Counts(best.hits, best.misses, best.evictions)


def _too_many(name: str) -> UsageError:
    return UsageError(f"{name} selects more experts at once than there are slots")


def _open(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        create, destroy = library.guanaco_sim_create, library.guanaco_sim_destroy
        serve, whole = library.guanaco_sim_serve, library.guanaco_sim_replay
        passes = library.guanaco_sim_pass
        evictions = library.guanaco_sim_evictions
    except (OSError, AttributeError) as problem:
        raise EngineError(
            f"the native library {path} cannot simulate ({problem}); install guanaco-llm again"
        ) from None
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    number = ctypes.POINTER(ctypes.c_uint64)
    create.restype, destroy.restype, evictions.restype = handle, None, None
    serve.restype = whole.restype = passes.restype = ctypes.c_int
    create.argtypes = [text, _WORD, _WORDS, _WORDS, _WORDS, _WORD, _WORDS, text, ctypes.c_ulong]
    destroy.argtypes = [handle]
    numbers = ctypes.POINTER(ctypes.c_int32)
    serve.argtypes = [handle, _WORD, numbers, _WORD, _WORD, numbers, _WORD, _WORD, _WORDS, _WORDS]
    passes.argtypes = [handle, _WORD, numbers, _WORD, _WORDS, _WORDS]
    whole.argtypes = [handle, ctypes.POINTER(ctypes.c_int16), _WORD, number]
    evictions.argtypes = [handle, number, number]
    return library


def _words(values: Iterable[int]) -> ctypes.Array[ctypes.c_uint32]:
    listed = list(values)
    return (_WORD * len(listed))(*listed)
