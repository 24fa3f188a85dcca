"""What happens to a node, and what it does about it, as values.

Owns the two vocabularies between the owner loop and the scheduler. Requests and models are named by
strings that the node gives out; times are seconds of one clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """A client asks a model of the registry for something."""

    request: str
    model: str
    at_s: float


@dataclass(frozen=True)
class Left:
    """The client of a request that waits or runs went away."""

    request: str
    at_s: float


@dataclass(frozen=True)
class Finished:
    """A forwarded request has ended, however that was."""

    request: str
    at_s: float


@dataclass(frozen=True)
class Loaded:
    model: str
    at_s: float


@dataclass(frozen=True)
class LoadFailed:
    """Its worker is gone and its memory is back."""

    model: str
    reason: str
    at_s: float


@dataclass(frozen=True)
class Ended:
    """The worker of a loaded model is gone, by our wish or by itself, and its memory is really back."""

    model: str
    at_s: float


@dataclass(frozen=True)
class LoadAsked:
    """Somebody wants the model to be ready before there is a request."""

    model: str
    at_s: float


@dataclass(frozen=True)
class UnloadAsked:
    """Somebody wants the model gone; what runs is run to its end."""

    model: str
    at_s: float


@dataclass(frozen=True)
class Ticked:
    at_s: float


Event = Asked | Left | Finished | Loaded | LoadFailed | Ended | LoadAsked | UnloadAsked | Ticked


@dataclass(frozen=True)
class Load:
    """Start a worker for the model. Answered by Loaded or LoadFailed."""

    model: str


@dataclass(frozen=True)
class Unload:
    """Stop the model's worker, which is idle. Answered by Ended."""

    model: str


@dataclass(frozen=True)
class Forward:
    """Send the request to the model's worker. Answered by Finished."""

    request: str
    model: str


@dataclass(frozen=True)
class Cancel:
    """Nobody waits for a running request any more. Still answered by Finished."""

    request: str
    model: str


@dataclass(frozen=True)
class Refuse:
    """Tell the client no. ``retry_after_s``: when it is worth another try; None: it is not."""

    request: str
    status: int
    reason: str
    retry_after_s: int | None = None


Effect = Load | Unload | Forward | Cancel | Refuse
