"""One synthetic model of about 300 MB for the tests that need sizes to mean something."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import make_model
from benchmarks.make_model import STANDARDS, narrowed

from guanaco.bench.drive import drop_file_cache
from guanaco.gguf.reader import read_gguf
from guanaco.model.map import ModelMap, build_model_map

SMALL = replace(STANDARDS["qwen"], n_layer=12, n_expert=64, top_k=4, n_vocab=32_000)
SMALL_BYTES = 300_000_000


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelMap]:
    """On the drive and not in the page cache; gone after the last test."""
    folder = tmp_path_factory.mktemp("small-model")
    path = folder / "small.gguf"
    for _ in make_model.write(narrowed(SMALL, SMALL_BYTES), path):
        pass
    _flush(path)
    yield build_model_map(read_gguf(path))
    shutil.rmtree(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)  # only clean pages can be dropped
    finally:
        os.close(descriptor)
    drop_file_cache([path])
