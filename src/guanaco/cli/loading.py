"""From a configuration to an accepted plan: headers, machine, the engine's own sizes, planner."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from guanaco.config import LoadConfig
from guanaco.engine.estimate import engine_report
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.budget import refuse_hopeless_context
from guanaco.planner.contexts import report_request
from guanaco.planner.placement import plan, refuse_drafts
from guanaco.planner.plan import Plan


@dataclass(frozen=True)
class Loadable:
    """A model with an accepted plan."""

    model: ModelMap
    config: LoadConfig
    plan: Plan


def read_model(path: Path) -> ModelMap:
    """Raises ModelError."""
    return build_model_map(read_gguf(path))


def prepare(
    config: LoadConfig, *, model: ModelMap | None = None, hardware: Hardware | None = None
) -> Loadable:
    """Raises ModelError, UsageError, EngineError, or BudgetError with the smallest budget that works."""
    model = model or read_model(config.model)
    hardware = hardware or detect(config.model)
    refuse_drafts(model, config)
    draft = None if config.draft_model is None else read_model(config.draft_model)
    if draft is not None:  # the engine wants the first shard, whichever is named
        config = replace(config, draft_model=draft.files[0].path)
    refuse_hopeless_context(model, hardware, config)
    report = engine_report(
        model,
        report_request(model, hardware, config, draft),
        environment=os.environ,
        cache_dir=cache_directory(os.environ),
    )
    return Loadable(model, config, plan(model, hardware, config, report, draft))


def cache_directory(environment: Mapping[str, str]) -> Path | None:
    """Where answers that may be computed again are kept; None without a home."""
    base = environment.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "guanaco"
    home = environment.get("HOME")
    return Path(home) / ".cache" / "guanaco" if home else None
