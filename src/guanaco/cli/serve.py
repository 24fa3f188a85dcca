"""``guanaco serve``: one model behind an OpenAI-compatible address."""

from __future__ import annotations

import sys
from typing import Any

import click

from guanaco.cli import log
from guanaco.cli.activity import ActivityReporter
from guanaco.cli.loading import prepare
from guanaco.cli.options import setting_options
from guanaco.cli.progress import ProgressLine
from guanaco.cli.session import announce, log_cache, log_end, log_stats, resolve_flags
from guanaco.cli.settings import load_config, model_path, sampling_config, serve_config
from guanaco.cli.warm import prior_of
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.errors import UsageError

_GROUPS = ("model", "load", "sampling", "serve")


@click.command("serve")
@click.argument("model", required=False)
@setting_options(*_GROUPS)
@click.option("-v", "--verbose", is_flag=True, help="Show the engine's log too.")
def serve_command(model: str | None, verbose: bool, **given: Any) -> None:
    """Serve MODEL, a GGUF file or the first of its shards, to OpenAI clients."""
    log.setup(verbose)
    resolved = resolve_flags(_GROUPS, given)
    path = model_path(model, given, resolved)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: serving several models is not in this version; name one file")
    where = serve_config(resolved)
    sampling = sampling_config(resolved)
    loadable = prepare(load_config(path, resolved))
    announce(loadable)
    prior = prior_of(loadable)
    spec = EngineSpec(loadable.model, loadable.config, loadable.plan, sampling, verbose, prior.use)

    from guanaco.server.serving import ModelServer, address_of, bind

    listener = bind(where)
    log.logger.info("[guanaco] listening on %s, loading %s", address_of(listener), spec.alias)
    progress = ProgressLine(spec.alias, sys.stderr)

    def on_ready(engine: Engine) -> None:
        progress.close()
        log_stats(engine, log.io_line)
        log.logger.info("[guanaco] ready after %.1f s", engine.load_s or 0.0)

    server = ModelServer(spec, listener, where, on_progress=progress, on_ready=on_ready)
    try:
        with progress, ActivityReporter(server.engine.stats, lambda stats: log_cache(stats, loadable)):
            server.run()
    finally:
        log_end(server.engine, loadable, prior)
