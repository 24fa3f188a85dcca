"""Why an engine's process ended, in words. Owns the reading of exit codes and of its last log lines. Pure.

A signal is never a normal end, and SIGKILL always names its usual sender.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence


def describe_exit(
    return_code: int, new_oom_kills: int | None, last_lines: Sequence[str] = (), *, who: str = "the worker"
) -> str:
    """One sentence for an end nobody asked for. ``return_code`` as in ``subprocess``: -N is signal N.

    ``new_oom_kills``: how often the kernel killed for memory in our cgroup meanwhile; None when unknown.
    """
    if return_code >= 0:
        text = f"{who} exited by itself with code {return_code}"
    else:
        text = f"{who} was killed by {_signal_name(-return_code)}"
    if return_code == -signal.SIGKILL:
        if new_oom_kills:
            text += (
                "; the kernel's out-of-memory killer has struck in this memory cgroup: "
                "use a smaller --memory or raise the limit"
            )
        else:
            text += (
                "; the kernel's out-of-memory killer is a possible cause (see the kernel log): "
                "use a smaller --memory, or find who else sent the signal"
            )
    if last_lines and return_code != -signal.SIGKILL:
        text += f"; its last words: {last_lines[-1]}"
    return text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def errors_of(lines: Sequence[str]) -> list[str]:
    """The error messages among engine log lines (``0.00.012.345 E name: text``), else the last line."""
    errors = []
    for line in lines:
        stamp, _, rest = line.partition(" ")
        if rest.startswith("E ") and stamp.replace(".", "").isdigit():
            errors.append(rest[2:].split(": ", 1)[-1].strip())
    return errors or list(lines[-1:])
