"""docs/seam.md: the tests it names exist, and the engine settings it relies on are set."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.engine import llama
from tests.support import markdown
from tests.support.specs import demo_settings

ROOT = Path(__file__).parents[2]


def test_every_guard_named_is_a_test() -> None:
    native_tests = {
        name
        for path in (ROOT / "native/tests").glob("test_*.cc")
        for name in re.findall(r"^TEST\((\w+)\)", path.read_text(), re.MULTILINE)
    }
    words = set(markdown.code_words((ROOT / "docs/seam.md").read_text()))
    prefixes = {name.partition("_")[0] for name in native_tests}
    guards = {
        word for word in words if re.fullmatch(r"[a-z]+_[a-z_]+", word) and word.partition("_")[0] in prefixes
    }
    assert len(guards) > 25
    assert guards <= native_tests, sorted(guards - native_tests)


@pytest.mark.parametrize("streaming", [True, False])
def test_weights_stay_where_the_file_maps_them(streaming: bool) -> None:
    settings = demo_settings()
    engine = llama.import_engine()
    params = llama.common_params(replace(settings, streaming=streaming, no_extra_bufts=False), engine)
    assert not params.fit_params
    assert not params.check_tensors
    if streaming:
        assert params.load_mode == engine.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    assert (params.no_extra_bufts, params.no_op_offload, not params.warmup) == (streaming,) * 3
