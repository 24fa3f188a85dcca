"""The ``guanaco`` command: finds the subcommand, and turns every end into one line and an exit code.

Owns error output, signals and the exit code. Leaves each command to its own file, imported when it is asked
for: ``guanaco run`` must not pay for the HTTP server. Shows no traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import click

from guanaco import __version__
from guanaco.cli.options import refuse_glued_flags
from guanaco.errors import GuanacoError, UsageError

_COMMANDS = ("run", "serve", "plan", "inspect", "demo", "simulate", "trace", "bench", "exec")
_LATER = ("doctor", "top", "pull")
_OUTPUT_CLOSED = 128 + signal.SIGPIPE


class Terminated(SystemExit):
    """A request to end, by signal; asyncio lets it through as it does every SystemExit."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(128 + signal_number)


class LazyGroup(click.Group):
    """Imports ``guanaco.cli.<name>`` for ``<name>_command`` only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if importlib.util.find_spec(f"guanaco.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _LATER:
            raise UsageError(f"the command {cmd_name!r} is not in this version")
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(f"guanaco.cli.{cmd_name}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not command.context_settings.get("ignore_unknown_options"):
            refuse_glued_flags(command, words)
        return name, command, words


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="guanaco")
def cli() -> None:
    """Run mixture-of-experts models larger than memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _open_standard_streams()
    # A script starts its background commands deaf to Ctrl-C; a model must not outlive one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    try:
        code = _invoke(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated as end:
        return int(str(end.code))
    except BrokenPipeError:
        _drop_stdout()
        return _OUTPUT_CLOSED
    except OSError as problem:
        _drop_stdout()
        return _fail(GuanacoError(f"the answer cannot be written: {problem.strerror}"), ())
    return code


def _invoke(words: list[str]) -> int:
    try:
        with cli.make_context("guanaco", words) as context:
            cli.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as problem:
        return _fail(UsageError(_one_line(problem.format_message())), words)
    except GuanacoError as problem:
        return _fail(problem, words)
    except OSError as problem:
        if problem.filename is None:  # standard output
            raise
        return _fail(GuanacoError(f"{problem.filename}: {problem.strerror}"), words)
    except Exception as problem:  # noqa: BLE001 - the last resort: one line instead of a traceback
        return _fail(GuanacoError(f"unexpected {type(problem).__name__}: {problem}; please report it"), words)
    return 0


def _fail(problem: GuanacoError, words: Sequence[str]) -> int:
    if "--json" in words:
        sys.stdout.write(json.dumps(problem.to_json(), default=str) + "\n")
        sys.stdout.flush()
    try:
        sys.stderr.write(f"guanaco: error: {_one_line(problem.message)}\n")
        sys.stderr.flush()
    except OSError:
        pass
    return problem.exit_code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _open_standard_streams() -> None:
    """A closed one would give its number to a pipe of ours; text that a terminal cannot show is replaced."""
    null = os.open(os.devnull, os.O_RDWR)
    while null < 2:
        null = os.dup(null)
    if null > 2:
        os.close(null)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # as arguments; whoever uses the text checks it


def _drop_stdout() -> None:
    """Nobody reads it: keep the interpreter from complaining when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
