"""Made-up cases for caches: shapes, and selections that repeat enough to be worth caching."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from guanaco.cache.policy import PolicyShape, Selection
from guanaco.simulator.trace import Trace


@dataclass(frozen=True)
class Case:
    shape: PolicyShape
    selections: tuple[Selection, ...]


def uniform_shape(n_groups: int, n_expert: int, n_slots: int, top_k: int = 0) -> PolicyShape:
    return PolicyShape((n_expert,) * n_groups, (0,) * n_groups, (n_slots,), (top_k,) * n_groups)


def shape_of(trace: Trace, n_slots: int) -> PolicyShape:
    return uniform_shape(trace.n_layer, trace.n_expert, n_slots, trace.top_k)


@st.composite
def cases(draw: st.DrawFn, *, with_prompts: bool = True) -> Case:
    """Several layers, sizes of expert and slots, skipped layers, and batches that are prompts in part.

    The routing comes from a seed: hypothesis would draw too few selections to fill a history.
    """
    n_groups = draw(st.integers(1, 5))
    n_classes = draw(st.integers(1, min(2, n_groups)))
    n_expert = draw(st.lists(st.integers(2, 14), min_size=n_groups, max_size=n_groups))
    top_k = [draw(st.integers(1, max(1, n // 2))) for n in n_expert]
    size_class = [g % n_classes for g in range(n_groups)]
    n_slots = []
    for c in range(n_classes):
        groups = [g for g in range(n_groups) if size_class[g] == c]
        least = max(top_k[g] for g in groups)
        n_slots.append(draw(st.integers(least, max(least, sum(n_expert[g] for g in groups)))))
    knows_top_k = draw(st.booleans())
    shape = PolicyShape(
        tuple(n_expert), tuple(size_class), tuple(n_slots), tuple(k if knows_top_k else 0 for k in top_k)
    )
    n_tokens = draw(st.one_of(st.integers(1, 30), st.integers(31, 90), st.just(300 // n_groups + 100)))
    prompts = draw(st.sampled_from((0.0, 0.1, 0.5))) if with_prompts else 0.0
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    return Case(shape, tuple(_selections(rng, shape, top_k, n_tokens, prompts)))


def _selections(
    rng: random.Random, shape: PolicyShape, top_k: list[int], n_tokens: int, prompts: float
) -> Iterator[Selection]:
    topics = [[rng.random() ** 3 for _ in range(n)] for n in shape.n_expert]
    skipped = rng.choice((0.0, 0.0, 0.1))
    for _ in range(n_tokens):
        if rng.random() < 0.02:
            topics = [[rng.random() ** 3 for _ in range(n)] for n in shape.n_expert]
        is_prompt = rng.random() < prompts
        n_rows = rng.choice((0, 1, 3, 20, 20, 300)) if is_prompt else 0
        for group, n in enumerate(shape.n_expert):
            if rng.random() < skipped:
                continue
            most = shape.n_slots[shape.size_class[group]]
            k = rng.randint(1, min(n, most + 1)) if is_prompt else top_k[group]
            liking = topics[group]
            experts = sorted(range(n), key=lambda e: -liking[e] * rng.random())[:k]
            rng.shuffle(experts)
            # A last layer may run fewer of the tokens.
            rows = [
                rng.sample(range(n), top_k[group])
                for _ in range(rng.choice((n_rows, n_rows, min(n_rows, 2))))
            ]
            yield Selection(
                group,
                tuple(experts),
                rng.randint(0, k) if is_prompt else 0,
                tuple(tuple(row) for row in rows),
            )
