"""``guanaco demo``: the embedded model, streamed with at most 30 % of its experts in RAM."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import click

from guanaco.cli import log
from guanaco.cli.chat import Question
from guanaco.cli.loading import Loadable, prepare, read_model
from guanaco.cli.options import setting_options
from guanaco.cli.run import log_summary, write_out
from guanaco.cli.session import open_session, resolve_flags
from guanaco.cli.settings import load_config, sampling_config
from guanaco.cli.summary import run_json
from guanaco.config import LoadConfig, SamplingConfig
from guanaco.errors import EngineError
from guanaco.planner.render import plan_json
from guanaco.units import MIB

_GROUPS = ("load", "sampling")
_QUESTION = "Tell me a story about a guanaco and a lantern."
_MOST_RESIDENT = 0.30
_MEMORY_BYTES = 256 * MIB


@click.command("demo")
@click.argument("question", default=_QUESTION)
@setting_options(*_GROUPS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, tokens, timings, memory.")
@click.option("-v", "--verbose", is_flag=True, help="Show the engine's log too.")
def demo_command(question: str, as_json: bool, verbose: bool, **given: Any) -> None:
    """Ask the small model that comes with Guanaco a QUESTION.

    It knows stories about animals, the weather, sums, recipes, capitals and short Python functions.
    """
    log.setup(verbose)
    resolved = resolve_flags(_GROUPS, given)
    loadable = prepare_demo(load_config(demo_model(), resolved))
    sampling = demo_sampling(sampling_config(resolved))
    with open_session(loadable, sampling, verbose=verbose) as session:
        asked = Question(({"role": "user", "content": question},))
        if as_json:
            session.ask(asked)
            facts = session.facts()
            write_out(json.dumps(run_json(facts, plan_json(facts.plan))) + "\n")
        else:
            session.ask_streaming(asked, write_out, write_out)
            write_out("\n")
        log_summary(session)


def demo_model() -> Path:
    """The embedded model's file."""
    path = Path(str(resources.files("guanaco") / "data" / "guanaco-demo-q8_0.gguf"))
    if not path.is_file():
        raise EngineError(f"the embedded model {path} is missing; install guanaco-llm again")
    return path


def prepare_demo(config: LoadConfig) -> Loadable:
    """Streaming, with as many experts as 30 % allows, unless the user decided otherwise."""
    model = read_model(config.model)
    if config.load_mode == "auto":
        config = replace(config, load_mode="streaming")
    if config.load_mode == "streaming" and config.max_experts == -1:
        config = replace(config, max_experts=int(_MOST_RESIDENT * model.n_expert))
    if config.memory_bytes is None:
        config = replace(config, memory_bytes=_MEMORY_BYTES)
    return prepare(config, model=model)


def demo_sampling(sampling: SamplingConfig) -> SamplingConfig:
    """Greedy unless asked: the same answer for everybody."""
    return sampling if sampling.temperature is not None else replace(sampling, temperature=0.0)
