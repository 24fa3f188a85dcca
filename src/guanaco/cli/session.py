"""A model from the command line: planned, started, and ended whatever happens.

Owns the order of these steps and what is logged at each, for the commands that load a model for themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from guanaco.cli import log
from guanaco.cli.activity import ActivityReporter
from guanaco.cli.chat import Answer, Question, ask, ask_streaming
from guanaco.cli.loading import Loadable
from guanaco.cli.progress import ProgressLine
from guanaco.cli.settings import Resolved, resolve
from guanaco.cli.summary import RunFacts
from guanaco.cli.table import settings_for
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

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
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
            load_s=self.engine.load_s,
            peak_bytes=self.engine.peak_bytes(),
            before=self._before,
            after=self.engine.stats(),
            answers=tuple(self._answers),
        )

    def _keep(self, answer: Answer) -> Answer:
        self._answers.append(answer)
        return answer


@contextmanager
def open_session(loadable: Loadable, sampling: SamplingConfig, *, verbose: bool) -> Iterator[Session]:
    """Load the model and yield it; the worker is gone when the context is left."""
    announce(loadable)
    spec = EngineSpec(loadable.model, loadable.config, loadable.plan, sampling, verbose)
    with Engine(spec) as engine:
        engine.start()
        with ProgressLine(spec.alias, sys.stderr) as progress:
            engine.wait_ready(progress)
        log_stats(engine, log.io_line)
        try:
            with ActivityReporter(engine.stats, lambda stats: log_cache(stats, loadable)):
                yield Session(engine)
        finally:
            log_stats(engine, log.final_line)


def log_stats(engine: Engine, render: Callable[[NativeStats], str]) -> None:
    """One line about the counters, when there are any."""
    stats = engine.stats()
    if stats is not None:
        log.logger.info("%s", render(stats))


def log_cache(stats: NativeStats, loadable: Loadable) -> None:
    log.logger.info("%s", log.cache_line(stats, loadable.model))
