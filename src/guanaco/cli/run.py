"""``guanaco run``: one answer, or a conversation on a terminal. Text to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from guanaco.cli import log
from guanaco.cli.chat import Question
from guanaco.cli.loading import prepare
from guanaco.cli.options import setting_options
from guanaco.cli.session import Session, open_session, resolve_flags
from guanaco.cli.settings import load_config, model_path, sampling_config
from guanaco.cli.summary import run_json, summary_lines
from guanaco.errors import UsageError
from guanaco.planner.render import plan_json

_GROUPS = ("model", "load", "sampling")
_LEAVE = ("/bye", "/exit", "/quit")


@click.command("run", options_metavar="[OPTIONS]")
@click.argument("words", nargs=-1, metavar="MODEL [PROMPT]")
@setting_options(*_GROUPS)
@click.option("-no-cnv", "--no-conversation", "raw", is_flag=True, help="Continue PROMPT as it is, no chat.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, tokens, timings, memory.")
@click.option("-v", "--verbose", is_flag=True, help="Show the engine's log too.")
def run_command(words: tuple[str, ...], raw: bool, as_json: bool, verbose: bool, **given: Any) -> None:
    """Answer PROMPT with MODEL, a GGUF file or the first of its shards.

    Without PROMPT it is read from standard input; on a terminal a conversation starts.
    """
    log.setup(verbose)
    resolved = resolve_flags(_GROUPS, given)
    model, prompt = split_words(words, has_flag=given.get("m") is not None)
    config = load_config(model_path(model, given, resolved), resolved)
    if config.embeddings:
        raise UsageError("--embeddings gives no answers to show; use it with guanaco serve")
    sampling = sampling_config(resolved)
    is_conversation = prompt is None and not as_json and sys.stdin.isatty()
    if prompt is None and not is_conversation:
        prompt = read_prompt()
    if prompt is not None:
        check_text(prompt)
    with open_session(prepare(config), sampling, verbose=verbose) as session:
        if prompt is None:
            _converse(session)
        else:
            _answer_once(session, Question(({"role": "user", "content": prompt},), raw), as_json)


def _answer_once(session: Session, question: Question, as_json: bool) -> None:
    if as_json:
        session.ask(question)
        facts = session.facts()
        write_out(json.dumps(run_json(facts, plan_json(facts.plan))) + "\n")
    else:
        session.ask_streaming(question, write_out, write_reasoning)
        write_out("\n")
    log_summary(session)


def log_summary(session: Session) -> None:
    for line in summary_lines(session.facts()):
        log.logger.info("%s", line)


def write_out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def write_reasoning(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _converse(session: Session, read: Callable[[str], str] = input) -> None:
    """Questions until the end of input; a refused one is not remembered."""
    messages: list[dict[str, str]] = []
    log.logger.info("[guanaco] ask something; end with Ctrl-D or /bye")
    while True:
        try:
            line = read("> ").strip()
        except EOFError:
            write_out("\n")
            break
        if line in _LEAVE:
            break
        if not line:
            continue
        asked = [*messages, {"role": "user", "content": line}]
        try:
            check_text(line)
            answer = session.ask_streaming(Question(tuple(asked)), write_out, write_reasoning)
        except UsageError as problem:
            log.logger.error("guanaco: error: %s", problem.message)
            continue
        write_out("\n")
        messages = [*asked, {"role": "assistant", "content": answer.text}]
    if messages:
        log_summary(session)


def split_words(words: tuple[str, ...], *, has_flag: bool) -> tuple[str | None, str | None]:
    """MODEL and PROMPT; with -m the only word is the prompt."""
    allowed = 1 if has_flag else 2
    if len(words) > allowed:
        raise UsageError(f"unexpected word {words[allowed]!r}; put a prompt of several words in quotes")
    if has_flag:
        return None, next(iter(words), None)
    return next(iter(words), None), next(iter(words[1:]), None)


def check_text(prompt: str) -> None:
    """Bytes that are no text arrive as lone surrogates; refuse them before the model is loaded."""
    try:
        prompt.encode()
    except UnicodeEncodeError as problem:
        raise UsageError(
            f"the prompt is not UTF-8 text (character {problem.start + 1}); convert it first, e.g. with iconv"
        ) from None


def read_prompt() -> str:
    prompt = "" if sys.stdin is None else sys.stdin.read().strip()
    if not prompt:
        raise UsageError("there is no prompt; give one after the model or on standard input")
    return prompt
