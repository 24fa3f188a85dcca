"""Two ways loaded at once that take turns of a second or two: for a model that is whole in memory.

A fresh process for every run, as in ``compare``, leaves half a minute between the runs of a pair, in which a
virtual machine's speed changes by a tenth. One who waits here sleeps. Owns the order of turns and loads.
Needs memory for the model once each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from guanaco.bench.one import RunSpec, engine_spec
from guanaco.bench.tokens import FIRST_PLAIN_TOKEN
from guanaco.bench.ways import Way
from guanaco.engine.engine import Engine
from guanaco.model.map import ModelMap

_TURNS_A_LOAD = 20  # then everything is loaded anew: where a process lies in memory matters too
REST_S = 0.1  # by then the other one's threads sleep


def loads(runs: int) -> list[range]:
    """The turns of each load."""
    return [range(start, min(start + _TURNS_A_LOAD, runs)) for start in range(0, runs, _TURNS_A_LOAD)]


def order_of(number: int, ways: Sequence[Way]) -> list[Way]:
    """A B, then B A: what changes slowly strikes all alike."""
    return list(ways) if number % 2 == 0 else list(reversed(ways))


def take_turns(
    base: RunSpec,
    ways: Sequence[Way],
    model: ModelMap,
    *,
    runs: int,
    on_row: Callable[[dict[str, Any]], None],
) -> None:
    """``runs`` turns of each way, each turn's row given to ``on_row``."""
    for number, turns in enumerate(loads(runs)):
        # All are planned before any takes memory.
        specs = {way.name: engine_spec(replace(base, way=way.name), way, model) for way in ways}
        with ExitStack() as stack:
            engines = {}
            for way in order_of(number, ways):
                engines[way.name] = stack.enter_context(Engine(specs[way.name]))
                engines[way.name].start()
                engines[way.name].wait_ready()
            for way in order_of(number, ways):
                _turn(engines[way.name], base, -1)
            for turn in turns:
                for way in order_of(turn, ways):
                    timings = _turn(engines[way.name], base, turn)
                    on_row({"budget": "whole", "way": way.name, "run": turn, **timings, **_NOT_LOOKED_AT})


_NOT_LOOKED_AT = {
    "hit_rate": None,
    "bytes_per_token": 0,
    "cgroup_peak_bytes": None,
    "memory_limit_bytes": None,
    "read_ahead_kib": None,
}


def _turn(engine: Engine, base: RunSpec, turn: int) -> dict[str, Any]:
    """A prompt that is not in the cache, and what is decoded after it."""
    first = FIRST_PLAIN_TOKEN + turn + 1
    body = {"temperature": 0, "cache_prompt": False, "ignore_eos": True, "id_slot": 0}
    prompt = list(range(first, first + base.n_prompt))
    timings = engine.client().call("/completion", {**body, "prompt": prompt, "n_predict": base.n_decode})[
        "timings"
    ]
    time.sleep(REST_S)
    return {
        "prompt_tps": timings["prompt_per_second"],
        "prompt_n": timings["prompt_n"],
        "decode_tps": timings["predicted_per_second"],
        "decode_n": timings["predicted_n"],
    }
