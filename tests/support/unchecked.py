"""What to do when a machine cannot check a promise: skip with the reason, but never in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def unchecked(reason: str) -> NoReturn:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"this promise must be checked in CI: {reason}")
    pytest.skip(reason)
