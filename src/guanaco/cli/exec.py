"""``guanaco exec``: bring your own engine. Preloads the expert store into any llama.cpp program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

import click

from guanaco.cli import log
from guanaco.cli.activity import ActivityReporter
from guanaco.cli.loading import Loadable, prepare
from guanaco.cli.options import setting_options
from guanaco.cli.session import announce, log_cache, resolve_flags
from guanaco.cli.settings import load_config, model_path
from guanaco.engine import native
from guanaco.engine.exits import describe_exit
from guanaco.engine.launch import RunFiles, worker_environment
from guanaco.engine.native import NativeStats, StatsFile
from guanaco.engine.spin import spin_count
from guanaco.engine.tether import die_with_parent
from guanaco.errors import EngineError, UsageError, WorkerDiedError

_GROUPS = ("model", "load")
# They load copies of the weights, which no expert store can stand in for.
_REFUSED_WORDS = {
    "--no-mmap": "weights must stay mapped",
    "--mlock": "it would lock the whole file in memory",
    "--check-tensors": "it would read the whole file",
}


@click.command("exec", context_settings={"ignore_unknown_options": True})
@setting_options(*_GROUPS)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(command: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND (after --), any llama.cpp program with a shared libggml-base, with experts streamed.

    Name the same model twice: guanaco exec --model M.gguf --memory 8GiB -- llama-server -m M.gguf --no-repack
    --no-warmup. The budget is planned for our engine's sizes; give the program the same context and batch.
    """
    log.setup(verbose=True)
    resolved = resolve_flags(_GROUPS, given)
    # The program has a batch size of its own.
    config = replace(load_config(model_path(None, given, resolved), resolved), grow_ubatch=False)
    for word in command[1:]:
        if word in _REFUSED_WORDS:
            raise UsageError(f"{word} cannot be used with exec: {_REFUSED_WORDS[word]}; leave it out")
    if config.load_mode == "mmap":
        raise UsageError("exec streams experts; with --load-mode mmap run the program by itself")
    loadable = prepare(replace(config, load_mode="streaming"))
    if not loadable.model.is_moe:
        raise UsageError(f"{config.model} has no experts to stream; run the program by itself")
    announce(loadable)
    ended = _run(command, loadable)
    problem = _streaming_problem(command[0], ended.stats)
    if ended.stats is not None and ended.stats.state != "idle":
        log.logger.info("%s", log.final_line(ended.stats, ()))
    if problem is not None and ended.code == 0:
        raise problem
    if problem is not None:
        log.logger.warning("guanaco: warning: %s", problem.message)  # its own end says more
    if ended.code < 0 and -ended.code not in ended.signals:
        raise WorkerDiedError(describe_exit(ended.code, None, who=command[0]), return_code=ended.code)
    if ended.code != 0:
        raise click.exceptions.Exit(ended.code if ended.code > 0 else 128 - ended.code)


@dataclass(frozen=True)
class _Ended:
    code: int  # negative: a signal
    signals: frozenset[int]  # that we were sent meanwhile
    stats: NativeStats | None


def _streaming_problem(program: str, stats: NativeStats | None) -> EngineError | None:
    """Why nothing, or not everything, was streamed."""
    if stats is None or stats.state == "idle":
        return EngineError(
            f"{program} never mapped the model through the preloaded library: it is linked statically, "
            "or it did not load this file; use a build with a shared libggml-base and the same path"
        )
    if stats.graphs > 0 and stats.groups_bound != stats.groups_expected:
        return EngineError(
            f"only {stats.groups_bound} of {stats.groups_expected} groups of experts were streamed; "
            "run the program with --no-repack and all layers on the processor",
            groups_bound=stats.groups_bound,
            groups_expected=stats.groups_expected,
        )
    return None


def _run(command: tuple[str, ...], loadable: Loadable) -> _Ended:
    """The program's whole life."""
    library = native.library_path()
    files = RunFiles()
    try:
        with files.writing():
            stats_file = StatsFile(files.stats)
        text = native.plan_text(
            loadable.model,
            loadable.plan,
            loadable.config.io,
            files.stats,
            engine="llama.cpp",
            policy=loadable.config.policy,
            pilot=loadable.config.pilot,
            pilot_mass=loadable.config.pilot_mass,
            batch_threads=loadable.config.n_threads_batch,
        )
        with files.writing():
            files.plan.write_text(text)
            library = files.preloadable(library)
        environment = worker_environment(
            os.environ,
            library=library,
            plan_file=files.plan,
            verbose=True,
            spin_count=spin_count(is_bound=False),
        )
        signals = _Signals()
        try:
            process = subprocess.Popen(
                command, env=environment, preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM)
            )
        except OSError as problem:
            raise UsageError(f"{command[0]} cannot be started: {problem.strerror}") from None
        signals.forward_to(process)
        with ActivityReporter(stats_file.read, lambda stats: log_cache(stats, loadable)):
            code = process.wait()
        return _Ended(code, frozenset(signals.received), stats_file.read())
    finally:
        files.remove()


class _Signals:
    """The program decides what a signal means; we end when it does."""

    def __init__(self) -> None:
        self.received: set[int] = set()
        self._early: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        """What came before is sent now."""
        self._process = process
        while self._early:
            process.send_signal(self._early.pop())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received.add(number)
        if self._process is None:
            self._early.append(number)
        elif number != signal.SIGINT or not sys.stdin.isatty():
            self._process.send_signal(number)  # Ctrl-C reached the whole foreground group already
