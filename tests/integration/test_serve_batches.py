"""Eight sequences at once: a streamed server answers as one that holds the model whole, under the same schedule.

llama.cpp's arithmetic may depend on what else is in a batch, so both get the same batches: all prompts of a
round come in one request, which starts them together, and every answer has the same length.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from guanaco.model.map import ModelMap
from tests.support.cli import Served, served

N_CLIENTS, N_ROUNDS, N_UBATCH = 8, 20, 64


def rounds(model: ModelMap) -> list[dict[str, Any]]:
    """Prompts from one token to more than a batch; later ones go on with earlier ones."""
    rng = random.Random(11)
    vocabulary = range(3, model.n_vocab)
    prompts: list[list[int]] = [[] for _ in range(N_CLIENTS)]
    bodies = []
    for number in range(N_ROUNDS):
        for prompt in prompts:
            if rng.random() < 0.5 or len(prompt) > 150:
                prompt.clear()
            prompt += [rng.choice(vocabulary) for _ in range(rng.choice((1, 7, 40, 90)))]
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


@pytest.mark.parametrize("memory", ["smallest", "more"])
def test_answers_are_those_of_a_server_with_the_whole_model(small_model: ModelMap, memory: str) -> None:
    path = str(small_model.files[0].path)
    same = ("-c", "4096", "-np", str(N_CLIENTS), "-b", str(N_UBATCH), "-ub", str(N_UBATCH), "-cram", "0")
    bodies = rounds(small_model)
    with served(path, "--load-mode", "mmap", "--memory", "4GiB", *same) as resident:
        expected = answers(resident, bodies)
    experts = small_model.n_expert_used if memory == "smallest" else small_model.n_expert // 4
    words = ("--load-mode", "streaming", "--memory", "4GiB", "--guanaco-max-experts", str(experts))
    with served(path, *words, *same) as streamed:
        found = answers(streamed, bodies)
        assert streamed.metric("guanaco_expert_unmanaged_total") == 0
        assert streamed.metric("guanaco_expert_misses_total") > 0
    assert len({text for texts in expected for text in texts}) > N_ROUNDS, (
        "the answers differ from each other"
    )
    assert found == expected
