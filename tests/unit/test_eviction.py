"""The cheapest set of models that is enough."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guanaco.node.eviction import Candidate, cheapest_set


def _fits(sizes: dict[str, int], room: int):  # type: ignore[no-untyped-def]
    return lambda model, others: sizes[model] + sum(sizes[other] for other in others) <= room


def test_one_large_model_rather_than_two_small_ones_that_cost_more() -> None:
    sizes = {"new": 5, "a": 3, "b": 3, "c": 5}
    candidates = [Candidate("a", 3, 0), Candidate("b", 3, 0), Candidate("c", 5, 0)]
    assert cheapest_set("new", ["a", "b", "c"], candidates, _fits(sizes, 11)) == frozenset("c")


def test_among_equals_the_longest_unused() -> None:
    sizes = {"new": 3, "a": 3, "b": 3}
    candidates = [Candidate("a", 3, 50.0), Candidate("b", 3, 20.0)]
    assert cheapest_set("new", ["a", "b"], candidates, _fits(sizes, 6)) == frozenset("b")


def test_none_when_all_are_not_enough() -> None:
    sizes = {"new": 9, "a": 3, "kept": 5}
    assert cheapest_set("new", ["a", "kept"], [Candidate("a", 3, 0)], _fits(sizes, 10)) is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=16), st.integers(1, 40), st.integers(1, 9))
def test_always_enough_and_never_one_too_many(held: list[int], spare: int, new: int) -> None:
    sizes = {f"m{index}": size for index, size in enumerate(held)} | {"new": new}
    names = [name for name in sizes if name != "new"]
    candidates = [Candidate(name, sizes[name], float(index)) for index, name in enumerate(names)]
    fits = _fits(sizes, spare)
    chosen = cheapest_set("new", names, candidates, fits)
    assert (chosen is None) == (new > spare)
    if chosen is not None:
        assert fits("new", frozenset(names) - chosen)
        assert not any(fits("new", frozenset(names) - (chosen - {name})) for name in chosen)
