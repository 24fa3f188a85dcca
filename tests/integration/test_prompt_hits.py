"""Hits after a long prompt, on files with one and with two quantisations."""

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
from guanaco.model.map import ModelMap
from guanaco.units import GIB

N_PROMPT, N_BEFORE, N_AFTER = 4096, 128, 32
N_ROUNDS, N_STEP = 2, 5000  # tokens of the trace


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


def rates(spec: RunSpec, model: ModelMap, *, reads: bool) -> list[float]:
    """Hits of the tokens that follow a place in the trace, once what came before was read, or left out."""
    found = []
    with Engine(replace(engine_spec(spec, WAYS["slots"], model), warmup=False)) as engine:
        engine.start()
        engine.wait_ready()
        engine.control("replay_on", 1)
        decoding = Decoding(engine)
        for start in range(0, N_ROUNDS * N_STEP, N_STEP):
            engine.control("replay_position", start)
            decoding.read(64)
            decoding.hit_rate(N_BEFORE)  # until decoding has what it uses
            engine.control("replay_position", start + N_STEP - (N_PROMPT if reads else 64))
            decoding.read(N_PROMPT if reads else 64)
            found.append(decoding.hit_rate(N_AFTER))
        stats = engine.stats()
    assert stats is not None
    assert not stats.replay_exhausted
    assert stats.unmanaged == 0
    return found


@pytest.mark.parametrize("second_type", [None, "Q8_0"])
def test_hits_after_a_prompt_of_4096_tokens(tmp_path: Path, second_type: str | None) -> None:
    """What a change of topic costs, a long prompt costs too; what it throws out beside that is little."""
    path = tmp_path / "model.gguf"
    shape = ["--layers", "16", "--experts", "64", "--top-k", "4", "--vocab", "300", "--size", "40MB"]
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
        replay=str(replay_file(f"olmoe-like:{N_ROUNDS * N_STEP + 100}", model, tmp_path)),
        replay_start=0,
        seed=1,
    )
    after, without = rates(spec, model, reads=True), rates(spec, model, reads=False)
    assert sum(after) >= sum(without) - 0.03 * N_ROUNDS, f"{after}, and {without} without the prompt"
