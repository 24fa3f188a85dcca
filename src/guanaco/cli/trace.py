"""``guanaco trace``: answers one prompt and writes down which experts each token used, and what was resident.

Owns the flags and the order: record, end the worker, turn the recording into a trace. Leaves recording to
the native library and the format to ``simulator``. Unless told otherwise it streams, reads nothing ahead and
starts cold, so that ``guanaco simulate --as-recorded`` comes to the engine's own counts.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from guanaco.cache.policy import PolicyShape
from guanaco.cli import log
from guanaco.cli.chat import Question
from guanaco.cli.loading import Loadable, prepare
from guanaco.cli.options import setting_options
from guanaco.cli.run import check_text, log_summary, read_prompt, split_words, write_out, write_reasoning
from guanaco.cli.session import Session, open_session, resolve_flags
from guanaco.cli.settings import Resolved, load_config, model_path, sampling_config
from guanaco.config import LoadConfig
from guanaco.engine.native import NativeStats
from guanaco.errors import EngineError, UsageError
from guanaco.simulator.recorded import COUNTERS
from guanaco.simulator.recording import About, Written, read_recording, write_recorded

_GROUPS = ("model", "load", "sampling")


@click.command("trace", options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="MODEL [PROMPT]")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The trace."
)
@setting_options(*_GROUPS)
@click.option("-no-cnv", "--no-conversation", "raw", is_flag=True, help="Continue PROMPT as it is, no chat.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("-v", "--verbose", is_flag=True, help="Show the engine's log too.")
def trace_command(
    words: tuple[str, ...], output: Path, raw: bool, as_json: bool, verbose: bool, **given: Any
) -> None:
    """Answer PROMPT with MODEL and record its routing, for guanaco simulate.

    Without PROMPT it is read from standard input.
    """
    log.setup(verbose)
    resolved = resolve_flags(_GROUPS, given)
    model, prompt = split_words(words, has_flag=given.get("m") is not None)
    config = _config(load_config(model_path(model, given, resolved), resolved), resolved)
    sampling = sampling_config(resolved)
    prompt = read_prompt() if prompt is None else prompt
    check_text(prompt)
    if "\n" in str(output.absolute()):
        raise UsageError(f"-o: {str(output)!r} holds a line break; choose another name")
    loadable = prepare(config)
    if loadable.plan.mode != "streaming":
        raise UsageError(f"{config.model} has no experts whose use could be recorded")
    with _recording_beside(output) as recording:
        with open_session(loadable, sampling, verbose=verbose, record_path=recording) as session:
            before = _stats(session)
            question = Question(({"role": "user", "content": prompt},), raw)
            if as_json:
                answer = session.ask(question)
            else:
                answer = session.ask_streaming(question, write_out, write_reasoning)
                write_out("\n")
            log_summary(session)
            after = _stats(session)
        about = _about(loadable, after, n_prompt=before.tokens + answer.prompt_n)
        written = write_recorded(read_recording(recording), about, output, after.prefetch_calls)
    log.logger.info("%s", _done_line(output, written))
    if as_json:
        write_out(json.dumps(_shape(output, written, after)) + "\n")


def _config(config: LoadConfig, resolved: Resolved) -> LoadConfig:
    if config.embeddings:
        raise UsageError("--embeddings gives no answer whose routing could be recorded; leave it out")
    if config.load_mode == "mmap":
        raise UsageError("routing is recorded where experts are streamed; leave --load-mode mmap out")
    if config.n_parallel != 1:
        raise UsageError(f"one request at a time is recorded, not {config.n_parallel}; leave -np out")
    is_given = resolved.values.__contains__
    return replace(
        config,
        load_mode="streaming",
        pilot=config.pilot if is_given("load.pilot") else "off",
        imatrix=config.imatrix if is_given("load.imatrix") else False,
    )


@contextmanager
def _recording_beside(output: Path) -> Iterator[Path]:
    """Where the trace goes there is room for its raw form too; not in shared memory, which counts as ours."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent)
    except OSError as problem:
        raise UsageError(f"cannot write {output}: {problem.strerror}") from None
    with folder as name:
        yield Path(name).resolve() / "recording"


def _stats(session: Session) -> NativeStats:
    stats = session.engine.stats()
    if stats is None:
        raise EngineError("the native library wrote no counters, so nothing was recorded")
    return stats


def _about(loadable: Loadable, stats: NativeStats, n_prompt: int) -> About:
    model, plan = loadable.model, loadable.plan
    planned = [(g, index) for g, index in zip(model.groups, plan.group_class, strict=True) if index >= 0]
    groups = [group for group, _ in planned]
    return About(
        name=model.name,
        layer=tuple(group.layer for group in groups),
        expert_bytes=tuple(group.expert_bytes for group in groups),
        policy=loadable.config.policy,
        shape=PolicyShape(
            n_expert=tuple(group.n_expert for group in groups),
            size_class=tuple(index for _, index in planned),
            n_slots=tuple(size_class.slots for size_class in plan.classes),
            top_k=tuple(group.top_k for group in groups),
        ),
        has_guesses=stats.pilot_slices > 0 or stats.preloaded > 0,
        counters={name: getattr(stats, name) for name in COUNTERS},
        n_prompt=n_prompt,
    )


def _done_line(output: Path, written: Written) -> str:
    scores = "with the router's scores" if written.has_scores else "without scores: this router shows none"
    tokens = f"{written.n_prompt} prompt and {written.n_decode} decoded tokens"
    return f"[guanaco] trace: {output}, {tokens}, {scores}"


def _shape(output: Path, written: Written, stats: NativeStats) -> dict[str, Any]:
    return {
        "trace": str(output),
        "prompt_n": written.n_prompt,
        "decode_n": written.n_decode,
        "selections": written.n_selections,
        "weights": written.has_scores,
        "counters": {name: getattr(stats, name) for name in COUNTERS},
    }
