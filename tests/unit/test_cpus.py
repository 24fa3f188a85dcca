"""Which processors the engine's threads are bound to."""

from __future__ import annotations

import pytest

from guanaco.engine.cpus import one_each


def test_as_many_threads_as_processors_have_one_each() -> None:
    assert one_each((4, 4), {6, 0, 2, 1}, {"HOME": "/"}, 512) == (0, 1, 2, 6)


@pytest.mark.parametrize(
    ("thread_counts", "allowed"),
    [((3, 3), {0, 1, 2, 3}), ((4, 3), {0, 1, 2, 3}), ((5, 5), {0, 1, 2, 3}), ((1, 1), {3})],
    ids=["fewer", "fewer for prompts", "more", "one"],
)
def test_else_the_kernel_chooses(thread_counts: tuple[int, ...], allowed: set[int]) -> None:
    assert one_each(thread_counts, allowed, {}, 512) == ()


def test_a_processor_whose_number_the_engine_does_not_know() -> None:
    assert one_each((2, 2), {0, 512}, {}, 512) == ()
    assert one_each((2, 2), {0, 511}, {}, 512) == (0, 511)


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_who_binds_threads_himself_is_left_alone(name: str) -> None:
    assert one_each((2, 2), {0, 1}, {name: "false"}, 512) == ()
