"""Eight sequences at once: a streamed server answers as one that holds the model whole, in the same batches.

llama.cpp's arithmetic may depend on what else is in a batch, so both get the same batches: all prompts of a
round come in one request, which starts them together, and every answer has the same length.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from guanaco.model.map import ModelMap
from tests.support.cli import Served, served

N_CLIENTS, N_UBATCH = 8, 64
N_ROUNDS = int(os.environ.get("GUANACO_ROUNDS", "20"))


def rounds(model: ModelMap) -> list[dict[str, Any]]:
    """Prompts from one token to more than a batch; later ones go on with earlier ones."""
    rng = random.Random(11)
    vocabulary = range(3, model.n_vocab)
    prompts: list[list[int]] = [[] for _ in range(N_CLIENTS)]
    bodies = []
    for number in range(N_ROUNDS):
        for prompt in prompts:
            if rng.random() < 0.5 or len(prompt) > 100:
                prompt.clear()
            prompt += [rng.choice(vocabulary) for _ in range(rng.choice((1, 5, 20, 70)))]
        bodies.append(
            {
                "prompt": [list(prompt) for prompt in prompts],
                "max_tokens": 4 + number % 5,
                "temperature": 0,
                "ignore_eos": True,
            }
        )
    return bodies


def answers(server: Served, bodies: list[dict[str, Any]]) -> list[list[str]]:
    texts = []
    for body in bodies:
        response = server.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        choices = sorted(response.json()["choices"], key=lambda choice: choice["index"])
        texts.append([choice["text"] for choice in choices])
    return texts


SAME = ("-c", "4096", "-np", str(N_CLIENTS), "-b", str(N_UBATCH), "-ub", str(N_UBATCH), "-cram", "0")


@pytest.fixture(scope="module")
def expected(small_model: ModelMap) -> list[list[str]]:
    """Of the whole model in memory, with the kernels that streamed experts are computed with."""
    words = (str(small_model.files[0].path), "--load-mode", "mmap", "--memory", "720MiB", *SAME)
    with served(*words) as resident:
        (plan,) = [line for line in resident.lines if "plan: resident" in line]
        assert "faster copies" not in plan, "there is no room for repacked weights"
        return answers(resident, rounds(small_model))


@pytest.mark.parametrize("share", [16, 4])
def test_answers_are_those_of_the_whole_model(
    small_model: ModelMap, expected: list[list[str]], share: int
) -> None:
    words = (str(small_model.files[0].path), "--load-mode", "streaming", "--memory", "4GiB", *SAME)
    with served(*words, "--guanaco-max-experts", str(small_model.n_expert // share)) as streamed:
        found = answers(streamed, rounds(small_model))
        assert streamed.metric("guanaco_expert_unmanaged_total") == 0
        assert streamed.metric("guanaco_expert_misses_total") > 0
    assert len({text for texts in expected for text in texts}) > N_ROUNDS, "the answers differ"
    assert found == expected
