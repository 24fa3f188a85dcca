"""The fuzz target's own checks, run once on each of its seeds and on their prefixes, without the fuzzer."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NAMES = ["moe", "grove", "by-layer", "apart", "every-type", "tensors", "shards"]


@pytest.fixture(scope="module")
def target() -> Any:
    """The module with a stand-in where atheris is not installed; nothing of it is called here."""
    with pytest.MonkeyPatch.context() as patch:
        if "atheris" not in sys.modules:
            stand_in = ModuleType("atheris")
            stand_in.instrument_imports = _plain_imports  # type: ignore[attr-defined]
            patch.setitem(sys.modules, "atheris", stand_in)
        yield import_module("tests.fuzz.fuzz_gguf")


@contextmanager
def _plain_imports(**_: object) -> Any:
    yield


def test_dictionary_is_in_the_fuzzers_syntax(target: Any) -> None:
    lines = target.words().splitlines()
    assert len(lines) > 10
    assert all(re.fullmatch(r'"(\\x[0-9a-f]{2})+"', line) for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_read_and_their_prefixes_refused(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = target.seeds()[name]
    refused: list[str] = []
    monkeypatch.setattr(target, "_check_message", lambda error, folder: refused.append(error.message))
    target.read_once(data, tmp_path)
    assert refused == []
    assert set(target.seeds()) == set(NAMES)
    for length in range(0, len(data), 7):
        target.read_once(data[:length], tmp_path)
    assert len(refused) > 2
    assert list(tmp_path.iterdir()) == []
