"""One measured run: ``python -m guanaco.bench.one JSON PARENT_PID``, started inside its memory cgroup.

Owns: load, one prompt, one decode, and the counters around each. Prints one JSON object. Interleaving,
limits and caches are the caller's. Ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from guanaco.bench.residency import cached_expert_bytes
from guanaco.bench.tokens import plain_tokens
from guanaco.bench.ways import OUR_SPIN, WAYS, Way
from guanaco.config import LoadConfig
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.engine.native import NativeStats
from guanaco.engine.tether import die_with_parent
from guanaco.errors import EngineError, GuanacoError
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.budget import usable_bytes
from guanaco.planner.placement import plan as make_plan
from guanaco.planner.plan import Plan
from guanaco.planner.slots import expert_classes, group_classes

PILOT_FIGURES = ("slices", "guessed", "right", "selected", "useful", "wasted", "wasted_bytes")
# Ends with the process that started it, however that ends.
_BUSY_LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


@dataclass(frozen=True)
class RunSpec:
    """What one run does; travels as JSON."""

    model: str
    way: str
    memory_bytes: int
    max_experts: int
    n_prompt: int
    n_decode: int
    n_ctx: int
    n_threads: int | None
    n_ubatch: int
    replay: str | None
    replay_start: int
    seed: int
    drive_limit_bytes_per_s: int | None = None  # set around the run, not by it
    n_parallel: int = 1  # sequences that share n_ctx
    busy: int = 0  # processes that do nothing but compute while tokens are decoded


def plan_for(spec: RunSpec, way: Way, model: ModelMap) -> tuple[LoadConfig, Plan]:
    """The configuration and plan of this way: the same sizes for every way, streaming or not."""
    if way.all_in_slots:
        spec = replace(
            spec, max_experts=model.n_expert, memory_bytes=usable_bytes(detect()) or spec.memory_bytes
        )
    config = LoadConfig(
        model=Path(spec.model),
        memory_bytes=spec.memory_bytes,
        load_mode="streaming" if way.is_streaming else "auto" if way.guanaco_decides else "mmap",
        io=way.io,
        policy=way.policy,
        pilot=way.pilot,
        max_experts=spec.max_experts if way.is_streaming else -1,
        n_ctx=spec.n_ctx,
        n_parallel=spec.n_parallel,
        n_ubatch=spec.n_ubatch,
        n_threads=spec.n_threads,
        cache_ram_bytes=0,
        ctx_checkpoints=0,
    )
    plan = make_plan(model, detect(), config, None)
    if not way.is_streaming and not way.guanaco_decides:
        # Nothing is streamed, but the replay still finds the expert products by these groups.
        plan = replace(
            plan,
            no_extra_bufts=not way.engine_defaults,
            cache_ram_bytes=0,
            ctx_checkpoints=0,
            classes=tuple(replace(item.layout, slots=1) for item in expert_classes(model)),
            group_class=group_classes(model),
        )
    return config, plan


def read_bytes(pid: int) -> int:
    """Bytes the process made the drive read so far (``/proc/PID/io``)."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise EngineError(f"/proc/{pid}/io has no read_bytes")


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Busy processes on the same cores, for the length of a ``with`` block."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY_LOOP, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def engine_spec(spec: RunSpec, way: Way, model: ModelMap) -> EngineSpec:
    """What this way starts."""
    config, plan = plan_for(spec, way, model)
    extra: dict[str, Any] = {"overlap": way.overlap} if way.is_streaming else {}
    if spec.replay is not None:
        if model.gguf.metadata.get("guanaco.synthetic") is not True:
            raise EngineError(
                f"{spec.model} is not marked synthetic; routing is replayed on synthetic models only"
            )
        extra["replay_path"] = Path(spec.replay)
    if not way.is_streaming and (spec.replay is not None or not way.engine_defaults):
        extra["manage"] = False
    environment = {} if way.spin_count == OUR_SPIN else {"GOMP_SPINCOUNT": way.spin_count}
    return EngineSpec(
        model,
        config,
        plan,
        warmup=way.engine_defaults,
        bind_threads=way.spin_count == OUR_SPIN,
        native_extra=extra,
        environment=environment,
    )


def measure(spec: RunSpec) -> dict[str, Any]:
    """Loads, answers one prompt, decodes, and reports speeds and counters of each phase."""
    way = WAYS[spec.way]
    started = engine_spec(spec, way, build_model_map(read_gguf(Path(spec.model))))
    with Engine(started) as engine:
        engine.start()
        engine.wait_ready()
        return _measure_loaded(engine, spec, way, started.plan)


def _measure_loaded(engine: Engine, spec: RunSpec, way: Way, plan: Plan) -> dict[str, Any]:
    pid = engine.pid
    if pid is None:
        raise EngineError("the worker is gone before the first request")
    loaded_bytes = read_bytes(pid) + read_bytes(os.getpid())
    if spec.replay is not None:
        engine.control("replay_position", spec.replay_start)
        engine.control("replay_on", 1)
    rng = random.Random(spec.seed)
    vocabulary = plain_tokens(engine.spec.model_map.n_vocab)
    prompt = [rng.choice(vocabulary) for _ in range(spec.n_prompt)]
    client = engine.client()
    body = {"temperature": 0, "cache_prompt": True, "ignore_eos": True, "id_slot": 0}
    of_prompt, bytes_of_prompt = engine.stats(), read_bytes(pid)
    first = client.call("/completion", {**body, "prompt": prompt, "n_predict": 1})
    prompt_figures = _prompt(engine, of_prompt, read_bytes(pid) - bytes_of_prompt)
    if way.all_in_slots:
        first = _prompt_again(engine, spec, body, prompt)
        _fill_slots(engine, spec, body, prompt)
    before, bytes_before, at = engine.stats(), read_bytes(pid), time.monotonic()
    more = {**body, "prompt": [*prompt, prompt[0]], "n_predict": spec.n_decode}
    with neighbours(spec.busy):
        second = client.call("/completion", more)
    wall_s = time.monotonic() - at
    after, bytes_after = engine.stats(), read_bytes(pid)
    if after is not None and after.replay_exhausted:
        raise EngineError("the trace is shorter than the run; generate a longer one")
    n_decoded = int(second["timings"]["predicted_n"])
    return {
        "way": way.name,
        "load_s": engine.load_s,
        "prompt_tps": first["timings"]["prompt_per_second"],
        "prompt_n": first["timings"]["prompt_n"],
        **prompt_figures,
        "decode_tps": second["timings"]["predicted_per_second"],
        "decode_n": n_decoded,
        "decode_wall_s": wall_s,
        "tokens": second.get("tokens", []),
        "content": second["content"],
        "bytes_per_token": (bytes_after - bytes_before) / max(1, n_decoded),
        "load_read_bytes": loaded_bytes,
        "cached_expert_bytes": cached_expert_bytes(engine.spec.model_map),
        "planned_bytes": plan.parts.total_bytes,
        "n_ubatch": plan.n_ubatch,
        **_streaming(before, after, bytes_after - bytes_before),
    }


def _prompt(engine: Engine, before: NativeStats | None, nbytes: int) -> dict[str, Any]:
    """What a prompt read, and that over the bytes of what each batch selected of each layer."""
    after, model = engine.stats(), engine.spec.model_map
    if before is None or after is None or after.slots == 0 or after.accesses == before.accesses:
        return {"prompt_bytes": nbytes, "prompt_read_per_touched": None}
    touched_bytes = (
        (after.accesses - before.accesses)
        * model.expert_bytes
        / sum(group.n_expert for group in model.groups)
    )
    return {
        "prompt_bytes": nbytes,
        "prompt_read_per_touched": (after.bytes_read - before.bytes_read) / touched_bytes,
    }


def _prompt_again(engine: Engine, spec: RunSpec, body: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """The prompt that counts, when its experts are all in slots."""
    if spec.replay is not None:
        engine.control("replay_position", spec.replay_start)
    again = {**body, "cache_prompt": False, "prompt": prompt, "n_predict": 1}
    answer: dict[str, Any] = engine.client().call("/completion", again)
    return answer


def _fill_slots(engine: Engine, spec: RunSpec, body: dict[str, Any], prompt: list[int]) -> None:
    """The decode that counts, once before it counts: its experts are then all in slots."""
    if spec.replay is not None:
        engine.control("replay_position", spec.replay_start + spec.n_prompt)
    engine.client().call("/completion", {**body, "prompt": [*prompt, prompt[0]], "n_predict": spec.n_decode})
    if spec.replay is not None:
        engine.control("replay_position", spec.replay_start + spec.n_prompt)


def _streaming(before: NativeStats | None, after: NativeStats | None, io_bytes: int) -> dict[str, Any]:
    if before is None or after is None or after.slots == 0:
        return {"hit_rate": None, "io": None, "unmanaged": None, "counted_bytes": None, "io_bytes": io_bytes}
    accesses = after.accesses - before.accesses
    return {
        "hit_rate": (after.hits - before.hits) / accesses if accesses else None,
        "io": after.io_mode,
        "slots": after.slots,
        "unmanaged": after.unmanaged,
        "counted_bytes": after.bytes_read - before.bytes_read,
        "io_bytes": io_bytes,
        "wait_s": after.wait_s - before.wait_s,
        **{
            f"pilot_{name}": getattr(after, f"pilot_{name}") - getattr(before, f"pilot_{name}")
            for name in PILOT_FIGURES
        },
    }


def answer_parent(arguments: list[str], measure_one: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Prints what is measured for ``JSON PARENT_PID``, or what went wrong; the exit code."""
    try:
        die_with_parent(int(arguments[1]))
        print(json.dumps(measure_one(json.loads(arguments[0]))))
    except GuanacoError as problem:
        print(json.dumps(problem.to_json()))
        return problem.exit_code
    return 0


def to_json(spec: RunSpec) -> str:
    return json.dumps(asdict(spec))


if __name__ == "__main__":
    sys.exit(answer_parent(sys.argv[1:], lambda fields: measure(RunSpec(**fields))))
