"""The handful of errors a user can meet, under one base.

Owns: the error taxonomy, its exit codes, HTTP statuses and the one JSON shape. Imports nothing, logs nothing.
Every message names the thing, the value and the way out.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GuanacoError(Exception):
    """Base of every error shown to a user as one line, never as a traceback."""

    type: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def to_json(self) -> dict[str, Any]:
        """The stable error shape: ``{"error": {"type", "message", ...details}}``."""
        return {"error": {"type": self.type, "message": self.message, **self.details}}


class UsageError(GuanacoError):
    """A flag, variable or request that cannot be honoured as given."""

    type = "usage_error"
    exit_code = 2
    http_status = 400


class ModelError(GuanacoError):
    """A model file that is missing, unreadable, damaged or of an unknown kind."""

    type = "invalid_model"
    exit_code = 3
    http_status = 422


class BudgetError(GuanacoError):
    """A memory budget that cannot work; details carry ``needed_bytes`` and ``budget_bytes``."""

    type = "insufficient_memory"
    exit_code = 4
    http_status = 507


class EngineError(GuanacoError):
    """llama.cpp or the native library is missing, of another version, or failed to load the model."""

    type = "engine_error"
    exit_code = 5
    http_status = 500


class WorkerDiedError(GuanacoError):
    """The worker process ended by itself; the message says how (a signal is never a normal end)."""

    type = "worker_died"
    exit_code = 6
    http_status = 502


class AddressError(GuanacoError):
    """The address to listen on is taken or not ours."""

    type = "address_unavailable"
    exit_code = 7
    http_status = 500
