"""The counters of a streamed model against the kernel's: bytes read, and what is left in the page cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.memory_contract import library_files

from guanaco.bench.drive import drop_file_cache
from guanaco.bench.one import read_bytes
from guanaco.bench.residency import cached_expert_bytes
from guanaco.config import LoadConfig
from guanaco.engine.engine import Engine, EngineSpec
from guanaco.engine.native import NativeStats
from guanaco.gguf.reader import read_gguf
from guanaco.hardware.detect import detect
from guanaco.model.map import ModelMap, build_model_map
from guanaco.planner.placement import plan
from guanaco.units import GIB, MIB
from tests.support.unchecked import unchecked

N_DECODE = 48
PROBE_TOKENS = 3
START_ALLOWANCE_BYTES = 64 * MIB
PROMPT = [4000, 5000, 6000, 7000]
MODES = {
    "auto": ("io_uring, O_DIRECT", "threads, O_DIRECT"),
    "threads": ("threads, O_DIRECT",),
    "buffered": ("threads, buffered",),
}


@dataclass(frozen=True)
class Loaded:
    engine: Engine
    at_start: NativeStats
    start_bytes: int  # that parent and worker read until the first request could be made

    @property
    def model(self) -> ModelMap:
        return self.engine.spec.model_map

    @property
    def stats(self) -> NativeStats:
        stats = self.engine.stats()
        assert stats is not None
        return stats

    @property
    def worker_read_bytes(self) -> int:
        assert self.engine.pid is not None
        return read_bytes(self.engine.pid)

    def decode(self, n_predict: int) -> None:
        body = {"prompt": PROMPT, "n_predict": n_predict, "temperature": 0, "ignore_eos": True}
        answer = self.engine.client().call("/completion", body)
        assert answer["timings"]["predicted_n"] == n_predict


@contextmanager
def cold_load(path: Path, io: str) -> Iterator[Loaded]:
    """A quarter of the experts in RAM; nothing of the model in the page cache, all of the libraries."""
    drop_file_cache([path])
    for library in library_files():
        library.read_bytes()
    before = read_bytes(os.getpid())
    model = build_model_map(read_gguf(path))
    config = LoadConfig(
        path,
        load_mode="streaming",
        io=io,
        max_experts=model.n_expert // 4,
        memory_bytes=2 * GIB,
        n_ctx=512,
        cache_ram_bytes=0,
        ctx_checkpoints=0,
    )
    with Engine(EngineSpec(model, config, plan(model, detect(), config))) as engine:
        engine.start()
        engine.wait_ready()
        stats = engine.stats()
        assert stats is not None
        assert engine.pid is not None
        yield Loaded(engine, stats, read_bytes(engine.pid) + read_bytes(os.getpid()) - before)


def token_bytes(model: ModelMap) -> int:
    """Expert bytes of one token."""
    return sum(group.top_k * part.slice_bytes for group in model.groups for part in group.parts)


@pytest.fixture(scope="module")
def drive_model(small_model: ModelMap) -> ModelMap:
    """The small model, where reading it shows up in the kernel's counters."""
    path = small_model.files[0].path
    drop_file_cache([path])
    before = read_bytes(os.getpid())
    with path.open("rb") as file:
        file.seek(small_model.files[0].size_bytes // 2)
        file.read(1 << 20)
    if read_bytes(os.getpid()) - before < 1 << 19:
        unchecked(f"reads of {path} do not reach a drive; set TMPDIR to a folder on one")
    return small_model


@pytest.fixture(scope="module", params=MODES)
def loaded(drive_model: ModelMap, request: pytest.FixtureRequest) -> Iterator[Loaded]:
    with cold_load(drive_model.files[0].path, request.param) as running:
        assert running.at_start.io_mode in MODES[request.param]
        yield running


def test_a_start_reads_little_more_than_the_dense_weights(loaded: Loaded) -> None:
    model = loaded.model
    limit = model.dense_bytes + START_ALLOWANCE_BYTES + PROBE_TOKENS * token_bytes(model)
    assert limit < model.files[0].size_bytes, "a load of the whole file would be noticed"
    assert model.dense_bytes <= loaded.start_bytes <= limit
    assert loaded.at_start.misses <= PROBE_TOKENS * sum(group.top_k for group in model.groups)


def test_bytes_read_are_what_the_kernel_counts(loaded: Loaded) -> None:
    loaded.decode(2)
    before, io_before = loaded.stats, loaded.worker_read_bytes
    loaded.decode(N_DECODE)
    after, io_after = loaded.stats, loaded.worker_read_bytes
    counted, misses = after.bytes_read - before.bytes_read, after.misses - before.misses
    assert misses > N_DECODE, "enough was read for two per cent to mean something"
    assert counted == pytest.approx(io_after - io_before, rel=0.02)
    # Whole slices, read once: each miss costs the bytes of one expert and the rims of its blocks. So does
    # each guess, or less when it was given up.
    parts = loaded.model.groups[0].parts
    slices = sum(part.slice_bytes for part in parts)
    guesses = -(-(after.pilot_slices - before.pilot_slices) // len(parts))
    assert misses * slices <= counted <= (misses + guesses) * (slices + len(parts) * 2 * 4096)
    assert after.unmanaged == 0


def test_experts_do_not_stay_in_the_page_cache(loaded: Loaded) -> None:
    loaded.decode(N_DECODE)
    assert loaded.stats.misses > loaded.at_start.misses
    assert cached_expert_bytes(loaded.model) == 0
