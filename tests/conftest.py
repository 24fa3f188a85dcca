"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# A check repeats itself: the same commit gives the same examples. Locally every run looks elsewhere.
settings.register_profile("check", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("check")
# A test must not start with what another one used; those about it switch it on again.
os.environ.setdefault("GUANACO_IMATRIX", "0")
