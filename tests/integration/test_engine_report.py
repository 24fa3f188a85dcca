"""The engine's own report of a context's size: against our formulas, and without touching tensor data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.config import LoadConfig
from guanaco.engine import estimate
from guanaco.engine.dryrun import DryRun, parse_sizes, report_from_json, report_to_json
from guanaco.engine.estimate import engine_report
from guanaco.errors import EngineError, ModelError
from guanaco.gguf.reader import read_gguf
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.memory import context_bytes, repack_bytes
from guanaco.planner.report import EngineReport, ReportRequest
from guanaco.units import MIB
from tests.support.tiny_models import ARCHS, build, spec_named

DEMO = Path(__file__).parents[2] / "src/guanaco/data/guanaco-demo-q8_0.gguf"
_REQUEST = ReportRequest(
    contexts=((768, 64), (769, 64), (2048, 512), (4096, 16)),
    n_batch=2048,
    n_parallel=1,
    n_threads=2,
    cache_type_k="f16",
    cache_type_v="f16",
    flash_attn="auto",
    embeddings=False,
)
# The log gives hundredths of a MiB for each cache.
_ROUNDING_BYTES = 4 * MIB // 100


def _model(path: Path) -> ModelMap:
    return build_model_map(read_gguf(path))


def _ask(model: ModelMap, request: ReportRequest = _REQUEST, cache_dir: Path | None = None) -> EngineReport:
    return engine_report(model, request, environment=os.environ, cache_dir=cache_dir)


def test_a_path_that_the_engine_cannot_open_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff.gguf")
    odd.symlink_to(DEMO)
    with pytest.raises(ModelError, match="the path is not UTF-8"):
        _ask(_model(odd))


@pytest.mark.parametrize("name", [spec.name for spec in ARCHS])
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_formulas_agree_with_the_engine(tmp_path: Path, name: str, n_parallel: int) -> None:
    model = _model(build(spec_named(name), tmp_path))
    config = LoadConfig(model=model.files[0].path, n_parallel=n_parallel)
    for row in _ask(model, replace(_REQUEST, n_parallel=n_parallel)).contexts:
        ours = context_bytes(model, config, row.n_ctx, row.n_ubatch)
        for field in ("kv_bytes", "window_bytes", "state_bytes"):
            assert getattr(ours, field) == pytest.approx(getattr(row, field), abs=_ROUNDING_BYTES), field
        assert ours.compute_bytes >= row.compute_bytes
        assert ours.output_bytes + _ROUNDING_BYTES >= row.output_bytes


@pytest.mark.parametrize(
    "settings",
    [{"cache_type_k": "q8_0", "cache_type_v": "q4_0"}, {"flash_attn": "off"}, {"embeddings": True}],
)
def test_settings_reach_the_engine(settings: dict[str, str | bool]) -> None:
    model = _model(DEMO)
    plain, changed = _ask(model), _ask(model, replace(_REQUEST, **settings))  # type: ignore[arg-type]
    assert changed.contexts != plain.contexts
    config = LoadConfig(model=DEMO, **settings)  # type: ignore[arg-type]
    for row in changed.contexts:
        ours = context_bytes(model, config, row.n_ctx, row.n_ubatch)
        assert ours.kv_bytes == pytest.approx(row.kv_bytes, abs=_ROUNDING_BYTES)
        assert ours.compute_bytes >= row.compute_bytes


def test_repacked_weights_are_what_the_engine_copies(tmp_path: Path) -> None:
    script = (
        "import sys; from guanaco.engine import capi; log = []\n"
        "llama = capi.Llama(capi.library_path(), lambda level, text: log.append(text))\n"
        "params = llama.model_params(); params.load_mode = 1\n"
        "assert llama.load_model(sys.argv[1].encode(), params); print(''.join(log))"
    )
    path = build(spec_named("qwen3moe"), tmp_path, quant="Q4_0")
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    found = re.findall(r"_REPACK model buffer size = +(\d+\.\d+) MiB", done.stdout)
    model = _model(path)
    copied_bytes = sum(float(mib) * MIB for mib in found)
    planned_bytes = repack_bytes(model, frozenset(_ask(model).repack_types))
    assert copied_bytes == pytest.approx(planned_bytes, abs=_ROUNDING_BYTES)
    assert planned_bytes <= repack_bytes(model)


def test_no_tensor_data_is_read() -> None:
    """By the process's own counters, against a run that only starts and imports the same modules."""
    script = (
        "import sys; from pathlib import Path; from guanaco.engine import dryrun, capi; import json\n"
        "def read(): return int(Path('/proc/self/io').read_text().split()[1])\n"
        "capi.Llama(capi.library_path(), lambda level, text: None); before = read()\n"
        "dryrun.answer(dryrun.DryRun.from_json(sys.argv[1])); print(read() - before)"
    )
    model = _model(DEMO)
    question = DryRun(str(DEMO), _REQUEST).to_json()
    done = subprocess.run(
        [sys.executable, "-c", script, question], capture_output=True, text=True, check=True, timeout=60
    )
    header_bytes, read_bytes = model.files[0].header_bytes, int(done.stdout)
    assert header_bytes <= read_bytes + 4096
    assert read_bytes < header_bytes + 256 * 1024 < model.files[0].size_bytes


def test_an_answer_is_remembered_by_file_engine_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(DEMO)
    first = _ask(model, cache_dir=tmp_path / "reports")
    (kept,) = (tmp_path / "reports").iterdir()
    asked: list[DryRun] = []

    def answer(question: DryRun, *_: object) -> EngineReport:
        asked.append(question)
        return first

    monkeypatch.setattr(estimate, "_ask", answer)
    assert _ask(model, cache_dir=tmp_path / "reports") == first
    assert asked == []
    _ask(model, replace(_REQUEST, n_parallel=2), cache_dir=tmp_path / "reports")
    assert len(asked) == 1
    kept.write_text("{ broken")
    assert _ask(model, cache_dir=tmp_path / "reports") == first
    assert len(asked) == 2
    assert report_from_json(kept.read_text()) == first
    assert {path.suffix for path in kept.parent.iterdir()} == {".json"}


def test_a_cache_that_cannot_be_written_is_only_slower() -> None:
    assert _ask(_model(DEMO), cache_dir=Path("/proc/no-such-place")).contexts


def test_a_model_the_engine_refuses_is_one_clear_error(tmp_path: Path) -> None:
    model = _model(DEMO)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(DEMO.read_bytes().replace(b"blk.2.attn_norm", b"blk.2.attn_nerm"))
    file = replace(model.files[0], path=damaged)
    with pytest.raises(EngineError, match=r"damaged\.gguf: llama\.cpp cannot load the model: .*attn_norm"):
        _ask(replace(model, gguf=replace(model.gguf, files=(file,))))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("echo assertion failed >&2; kill -ABRT $$", "ended by SIGABRT while it sized .*: assertion failed"),
        ("echo nothing useful", "gave no answer"),
        ("exec sleep 30", "did not size .* within 1 s"),
    ],
)
def test_an_engine_that_dies_or_hangs_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, words: str
) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{ending}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(EngineError, match=words):
        engine_report(_model(DEMO), _REQUEST, environment=os.environ, timeout_s=1)


def test_a_report_survives_its_journey() -> None:
    report = _ask(_model(DEMO))
    assert report_from_json(report_to_json(report)) == report
    assert report.find(2048, 512) in report.contexts
    assert report.find(2048, 511) is None
    question = DryRun("model", _REQUEST)
    assert DryRun.from_json(question.to_json()) == question


def test_windows_are_told_from_full_caches_in_the_log() -> None:
    row = parse_sizes(
        [
            "llama_context:        CPU  output buffer size =     0.50 MiB",
            "llama_kv_cache_iswa: creating non-SWA KV cache, size = 4096 cells",
            "llama_kv_cache:        CPU KV buffer size =     0.00 MiB",
            "llama_kv_cache: size =   96.00 MiB (  4096 cells,  12 layers,  1/1 seqs), K (f16): 48.0",
            "llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells",
            "llama_kv_cache: size =   18.00 MiB (   768 cells,  12 layers,  1/1 seqs), K (f16): 9.0",
            "llama_memory_recurrent:        CPU RS buffer size =     4.25 MiB",
            "sched_reserve:        CPU compute buffer size =   300.00 MiB",
        ],
        4096,
        512,
    )
    assert row.window_bytes == pytest.approx(18 * MIB, abs=MIB // 100)
    assert row.kv_bytes == pytest.approx(114 * MIB, abs=MIB // 50)
    assert row.state_bytes == pytest.approx(4.25 * MIB, abs=MIB // 100)
    assert row.compute_bytes >= 300 * MIB
    with pytest.raises(EngineError, match="no buffer sizes"):
        parse_sizes(["llama_context: something else"], 4096, 512)
