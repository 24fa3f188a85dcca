"""A model from the command line: planned, started, and ended whatever happens.

Owns the order of these steps and what is logged at each, for the commands that load a model for themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guanaco.cli import log
from guanaco.cli.activity import ActivityReporter
from guanaco.cli.chat import Answer, Question, ask, ask_streaming
from guanaco.cli.loading import Loadable
from guanaco.cli.progress import ProgressLine
from guanaco.cli.settings import Resolved, resolve
from guanaco.cli.summary import RunFacts
from guanaco.cli.table import settings_for
from guanaco.cli.warm import Prior, prior_of, remember_use
from guanaco.config import SamplingConfig
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.engine.native import NativeStats


def resolve_flags(groups: tuple[str, ...], given: Mapping[str, Any]) -> Resolved:
    """A command's flags and the environment; what there is to warn about is logged."""
    resolved = resolve(settings_for(groups), given, os.environ)
    for warning in resolved.warnings:
        log.logger.warning("guanaco: warning: %s", warning)
    return resolved


def announce(loadable: Loadable) -> None:
    """What was read and what is planned, before anything is loaded."""
    plan = loadable.plan
    for line in (*log.model_lines(loadable.model), *log.plan_lines(plan), *log.card_lines(loadable.config)):
        log.logger.info("%s", line)


class Session:
    """A loaded model and what it was asked."""

    def __init__(self, engine: Engine, prior: Prior) -> None:
        self.engine = engine
        self._prior = prior
        self._before = engine.stats()
        self._answers: list[Answer] = []

    def ask(self, question: Question) -> Answer:
        return self._keep(ask(self.engine.client(), question))

    def ask_streaming(
        self, question: Question, write: Callable[[str], None], write_reasoning: Callable[[str], None]
    ) -> Answer:
        return self._keep(ask_streaming(self.engine.client(), question, write, write_reasoning))

    def facts(self) -> RunFacts:
        """Everything measured so far."""
        return RunFacts(
            plan=self.engine.spec.plan,
            policy=self.engine.spec.config.policy,
            pilot=self.engine.spec.config.pilot,
            prior=self._prior.sources,
            load_s=self.engine.load_s,
            peak_bytes=self.engine.peak_bytes(),
            before=self._before,
            after=self.engine.stats(),
            answers=tuple(self._answers),
            draft_sources=self.engine.spec.config.draft_sources,
            drafting=self.engine.drafting(),
        )

    def _keep(self, answer: Answer) -> Answer:
        self._answers.append(answer)
        return answer


@contextmanager
def open_session(
    loadable: Loadable,
    sampling: SamplingConfig,
    *,
    verbose: bool,
    record_path: Path | None = None,
) -> Iterator[Session]:
    """Load the model and yield it; the worker is gone when the context is left."""
    announce(loadable)
    prior = prior_of(loadable)
    recording = {} if record_path is None else {"record_path": record_path}
    spec = EngineSpec(
        loadable.model, loadable.config, loadable.plan, sampling, verbose, prior.use, native_extra=recording
    )
    with Engine(spec) as engine:
        engine.start()
        with ProgressLine(spec.alias, sys.stderr) as progress:
            engine.wait_ready(progress)
        log_stats(engine, log.io_line)
        try:
            with ActivityReporter(engine.stats, lambda stats: log_cache(stats, loadable)):
                yield Session(engine, prior)
        finally:
            log_end(engine, loadable, prior)


def log_stats(engine: Engine, render: Callable[[NativeStats], str]) -> None:
    """One line about the counters, when there are any."""
    stats = engine.stats()
    if stats is not None:
        log.logger.info("%s", render(stats))


def log_cache(stats: NativeStats, loadable: Loadable) -> None:
    for line in log.cache_lines(stats, loadable.model):
        log.logger.info("%s", line)


def log_end(engine: Engine, loadable: Loadable, prior: Prior) -> None:
    """The last line, and what is remembered for the next time."""
    log_stats(engine, lambda stats: log.final_line(stats, prior.sources))
    drafting = engine.drafting()
    if drafting is not None:
        log.logger.info("%s", log.drafting_line(engine.spec.config.draft_sources, drafting))
    remember_use(loadable, engine)
