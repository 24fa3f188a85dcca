"""A long prompt leaves in its slots what decoding uses, on files with one and with two quantisations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import make_model

from guanaco.bench.one import RunSpec, engine_spec
from guanaco.bench.replay import replay_file
from guanaco.bench.ways import WAYS
from guanaco.cli.loading import read_model
from guanaco.engine.engine import Engine
from guanaco.units import GIB

N_PROMPT, N_BEFORE, N_AFTER, N_ROUNDS = 4096, 64, 32, 3


class Decoding:
    """One conversation after another, their routing replayed from a trace that goes on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._text: list[int] = []

    def read(self, n_tokens: int) -> None:
        """A new prompt, and one token."""
        self._text = [3 + (7 * len(self._text) + i) % 200 for i in range(n_tokens)]
        self._answer(1)

    def hit_rate(self, n_tokens: int) -> float:
        """Of tokens that are decoded one by one."""
        before = self._engine.stats()
        self._text.append(5)
        self._answer(n_tokens)
        after = self._engine.stats()
        assert before is not None
        assert after is not None
        assert after.graphs - before.graphs >= n_tokens, "one by one"
        return (after.hits - before.hits) / (after.accesses - before.accesses)

    def _answer(self, n_tokens: int) -> None:
        body = {
            "prompt": self._text, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True,
            "cache_prompt": True, "id_slot": 0, "return_tokens": True,
        }  # fmt: skip
        self._text += self._engine.client().call("/completion", body)["tokens"]


@pytest.mark.parametrize("second_type", [None, "Q8_0"])
def test_hits_after_a_prompt_of_4096_tokens(tmp_path: Path, second_type: str | None) -> None:
    path = tmp_path / "model.gguf"
    shape = ["--layers", "8", "--experts", "64", "--top-k", "4", "--vocab", "300", "--size", "40MB"]
    second = [] if second_type is None else ["--second-type", second_type]
    assert make_model.main([*shape, *second, "--out", str(path)]) == 0
    model = read_model(path)
    assert len({group.slice_key for group in model.groups}) == (1 if second_type is None else 2)
    spec = RunSpec(
        model=str(path),
        way="slots",
        memory_bytes=1 * GIB,
        max_experts=16,
        n_prompt=N_PROMPT,
        n_decode=N_AFTER,
        n_ctx=N_PROMPT + 256,
        n_threads=2,
        n_ubatch=512,
        replay=str(replay_file(f"olmoe-like:{N_ROUNDS * 5000}", model, tmp_path)),
        replay_start=0,
        seed=1,
    )
    with Engine(replace(engine_spec(spec, WAYS["slots"], model), warmup=False)) as engine:
        engine.start()
        engine.wait_ready()
        engine.control("replay_on", 1)
        decoding = Decoding(engine)
        before, after = [], []
        for _ in range(N_ROUNDS):
            decoding.read(64)
            decoding.hit_rate(2 * N_BEFORE)  # until decoding has what it uses
            before.append(decoding.hit_rate(N_BEFORE))
            decoding.read(N_PROMPT)
            after.append(decoding.hit_rate(N_AFTER))
        stats = engine.stats()
    assert stats is not None
    assert not stats.replay_exhausted
    assert stats.unmanaged == 0
    fall = (sum(before) - sum(after)) / N_ROUNDS
    assert fall <= 0.05, f"{before} before, {after} after"
