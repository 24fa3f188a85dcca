"""One measured workload: ``python -m guanaco.cli.under_load JSON PARENT_PID``, inside its memory cgroup.

Owns the server and its clients for the length of the workload. Prints one JSON object. Order, limits and
caches are the caller's. Ends with its parent, however that ends.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from guanaco.bench import clients, load, workload
from guanaco.bench.one import answer_parent, engine_spec
from guanaco.bench.ways import WAYS
from guanaco.config import ServeConfig
from guanaco.engine.engine import Engine
from guanaco.errors import EngineError, GuanacoError
from guanaco.gguf.reader import read_gguf
from guanaco.model.map import ModelMap, build_model_map
from guanaco.server.serving import ModelServer, address_of, bind


def measure(spec: load.LoadSpec) -> dict[str, Any]:
    """Serves the model, sends it the workload and reports what the clients saw."""
    model = build_model_map(read_gguf(Path(spec.model)))
    started = engine_spec(spec, WAYS[spec.way], model)
    where = ServeConfig(port=0)
    listener = bind(where)
    load_of = workload.make(spec.workload, spec.n_clients, spec.n_requests, spec.n_long)
    results: list[dict[str, Any]] = []
    problems: list[GuanacoError] = []

    def drive(engine: Engine) -> None:
        try:
            if spec.replay is not None:
                engine.control("replay_position", spec.replay_start)
                engine.control("replay_strands", spec.n_parallel)
                engine.control("replay_on", 1)
            counters = lambda: counters_of(engine)  # noqa: E731
            answers, wall_s = clients.run(load_of, address_of(listener), model.n_vocab, counters, spec.seed)
            results.append(load.figures(answers, wall_s, expert_mean_bytes(model, engine)))
            results[0].update(_totals(engine))
        except GuanacoError as problem:
            problems.append(problem)
        finally:
            server.end()

    def on_ready(engine: Engine) -> None:
        threading.Thread(target=drive, args=(engine,), daemon=True).start()

    server = ModelServer(started, listener, where, on_progress=lambda _: None, on_ready=on_ready)
    server.run()
    for problem in problems:
        raise problem
    if not results:
        raise EngineError("the server ended before the workload")
    return {
        "way": spec.way,
        "load_s": server.engine.load_s,
        "planned_bytes": started.plan.parts.total_bytes,
        "n_ubatch": started.plan.n_ubatch,
        **results[0],
    }


def counters_of(engine: Engine) -> clients.Counters:
    stats = engine.stats()
    if stats is None:
        return clients.Counters()
    return clients.Counters(stats.graphs, stats.accesses, stats.hits, stats.bytes_read)


def expert_mean_bytes(model: ModelMap, engine: Engine) -> float:
    """Of one expert of one layer; 0 without streaming."""
    n_experts = sum(group.n_expert for group in model.groups)
    return model.expert_bytes / n_experts if engine.spec.is_streaming and n_experts else 0.0


def _totals(engine: Engine) -> dict[str, Any]:
    stats = engine.stats()
    if stats is None or not engine.spec.is_streaming:
        return {"hit_rate": None, "slots": None, "io": None, "unmanaged": None, "counted_bytes": None}
    return {
        "hit_rate": stats.hits / max(1, stats.accesses),
        "slots": stats.slots,
        "io": stats.io_mode,
        "unmanaged": stats.unmanaged,
        "counted_bytes": stats.bytes_read,
    }


if __name__ == "__main__":
    sys.exit(answer_parent(sys.argv[1:], lambda fields: measure(load.LoadSpec(**fields))))
