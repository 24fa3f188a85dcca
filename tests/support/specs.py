"""Small specs for engine tests: the demo model with a made-up resident plan."""

from __future__ import annotations

from dataclasses import replace

from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from guanaco.config import LoadConfig
from guanaco.engine.engine import EngineSpec
from guanaco.engine.llama import WorkerSettings, worker_settings
from guanaco.hardware.facts import Hardware
from guanaco.planner.placement import plan
from guanaco.units import GIB, MIB

MACHINE = Hardware(8 * GIB, 6 * GIB, None, None, n_physical_cores=2, n_logical_cores=2)


def demo_spec(config: LoadConfig | None = None) -> EngineSpec:
    """The demo model, whole in RAM unless ``config`` says otherwise."""
    config = replace(config or LoadConfig(demo_model()), model=demo_model(), cache_ram_bytes=MIB)
    model = read_model(config.model)
    return EngineSpec(model, config, plan(model, MACHINE, config))


def demo_settings(*, cpus: tuple[int, ...] = ()) -> WorkerSettings:
    """What a worker of the embedded model is started with."""
    spec = demo_spec()
    return worker_settings(
        spec.config,
        spec.plan,
        spec.sampling,
        first_file=spec.config.model,
        alias="x",
        api_key="secret",
        preload=None,
        verbose=False,
        cpus=cpus,
    )
