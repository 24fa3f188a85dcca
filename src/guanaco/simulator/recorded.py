"""What else a trace recorded from a running engine says: its cache, and every selection that was asked of it.

Owns the value and the reading of its part of the trace format. Leaves tokens to ``trace``, writing to
``recording``, replaying to ``replay``. Refuses numbers that contradict each other.

In the header: ``"cache"``: policy, slots of each class, and class, experts and top-k of each layer (a layer
is one group of experts that are read together); ``"layer"``: the model's layer numbers; ``"counters"``: what
the engine counted. A token was served layer by layer, unless a line
``{"batch": n, "served": [[layer, n_transient, [experts]], ...]}`` comes before it: then that is what the
cache was asked for the next n tokens together. A fourth number, 1, says that it learned from each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from guanaco.cache.policy import PolicyShape, Selection
from guanaco.errors import UsageError

Fail = Callable[[str], UsageError]
COUNTERS = ("hits", "misses", "evictions", "evict_hot", "evict_reread")
_MOST_SLOTS = 1 << 24


@dataclass(frozen=True)
class Recorded:
    """``selections`` in the order they were served; with early reads the cache was asked for more."""

    policy: str
    shape: PolicyShape
    selections: tuple[Selection, ...] = field(repr=False)
    counters: dict[str, int]  # as the engine counted: ``COUNTERS``
    has_guesses: bool  # experts were read early, so a replay cannot come to the same counts


def is_batch(value: dict[str, object]) -> bool:
    return "served" in value


class RecordedReader:
    """Takes the lines of a trace one after the other; ``finish`` is None for one that was not recorded."""

    def __init__(self, header: dict[str, object], fail: Fail) -> None:
        self._header = header
        self._shape = _shape(header, fail) if "cache" in header else None
        self._selections: list[Selection] = []
        self._batch_tokens = 0
        self._batch_rows: list[Sequence[tuple[int, ...]]] = []  # of the batch being read, by token
        self._learned: list[int] = []  # its selections that need them

    def token(self, layers: Sequence[tuple[int, ...]]) -> None:
        if self._batch_tokens:
            self._batch_tokens -= 1
            self._batch_rows.append(layers)
            if not self._batch_tokens:
                self._add_rows()
        elif self._shape is not None:
            self._selections += [Selection(group, ids) for group, ids in enumerate(layers) if ids]

    def batch(self, value: dict[str, object], fail: Fail) -> None:
        if self._shape is None:
            raise fail('"served" in a trace whose header has no "cache"')
        if self._batch_tokens:
            raise fail(f"a batch begins, but {self._batch_tokens} tokens of the one before are missing")
        self._batch_tokens = _count(value.get("batch"), "batch", fail)
        served = value["served"]
        if not isinstance(served, list):
            raise fail('expected "served": a list of selections')
        self._batch_rows, self._learned = [], []
        for item in served:
            selection, learned = self._selection(item, fail)
            if learned:
                self._learned.append(len(self._selections))
            self._selections.append(selection)

    def _add_rows(self) -> None:
        for index in self._learned:
            selection = self._selections[index]
            rows = tuple(layers[selection.group] for layers in self._batch_rows if layers[selection.group])
            self._selections[index] = replace(selection, rows=rows)

    def finish(self, fail: Fail) -> Recorded | None:
        if self._shape is None:
            return None
        if self._batch_tokens:
            raise fail(f"{self._batch_tokens} tokens of the last batch are missing")
        counters = self._header.get("counters")
        if not isinstance(counters, dict):
            raise fail('a recorded trace without "counters" in its header')
        cache = self._header["cache"]
        assert isinstance(cache, dict)  # noqa: S101 - _shape has looked
        return Recorded(
            policy=str(cache.get("policy")),
            shape=self._shape,
            selections=tuple(self._selections),
            has_guesses=bool(cache.get("guesses", False)),
            counters={name: _count(counters.get(name), name, fail) for name in COUNTERS},
        )

    def _selection(self, item: object, fail: Fail) -> tuple[Selection, bool]:
        """The selection, and whether its tokens taught the policy each by itself."""
        assert self._shape is not None  # noqa: S101
        if not isinstance(item, list) or len(item) not in (3, 4) or not isinstance(item[2], list):
            raise fail("expected a selection [layer, n_transient, [experts]]")
        learned = item[3:] == [1]
        if item[3:] and not learned:
            raise fail(f"a selection whose fourth number is {item[3]!r}, not 1")
        group, n_transient = _count(item[0], "layer", fail), _count(item[1], "n_transient", fail)
        experts = tuple(_count(expert, "expert", fail) for expert in item[2])
        if group >= self._shape.n_groups:
            raise fail(f"layer {group}, the trace has {self._shape.n_groups}")
        if n_transient > len(experts) or len(set(experts)) != len(experts):
            raise fail(f"a selection of layer {group} that contradicts itself")
        if any(expert >= self._shape.n_expert[group] for expert in experts):
            raise fail(f"an expert of layer {group} is not below {self._shape.n_expert[group]}")
        return Selection(group, experts, n_transient), learned


def _shape(header: dict[str, object], fail: Fail) -> PolicyShape:
    cache, n_layer = header["cache"], _count(header.get("n_layer"), "n_layer", fail)
    if not isinstance(cache, dict):
        raise fail('expected "cache": an object')
    lists = {
        name: tuple(_count(n, name, fail) for n in _list(cache.get(name), name, fail))
        for name in ("slots", "class", "n_expert", "top_k")
    }
    for name in ("class", "n_expert", "top_k"):
        if len(lists[name]) != n_layer:
            raise fail(f"{len(lists[name])} numbers in {name!r} for {n_layer} layers")
    if any(number >= len(lists["slots"]) for number in lists["class"]):
        raise fail(f'a class that is not among the {len(lists["slots"])} of "slots"')
    if any(not 1 <= number <= _MOST_SLOTS for number in lists["slots"]):
        raise fail(f"slots {list(lists['slots'])}; between 1 and {_MOST_SLOTS}")
    return PolicyShape(lists["n_expert"], lists["class"], lists["slots"], lists["top_k"])


def _list(value: object, name: str, fail: Fail) -> list[object]:
    if not isinstance(value, list):
        raise fail(f"expected {name!r}: a list of whole numbers")
    return value


def _count(value: object, name: str, fail: Fail) -> int:
    if type(value) is not int or value < 0:
        raise fail(f"{name}: {value!r} is not a whole number from 0 up")
    return value
