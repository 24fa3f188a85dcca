"""The native policies and their Python references agree, hit for hit and victim for victim.

``GUANACO_EXAMPLES`` sets how many random cases are tried; ``make policies`` tries 10,000.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guanaco.cache.policies.belady import Belady
from guanaco.cache.policy import PolicyShape, Selection
from guanaco.cache.reference import Cache
from guanaco.cache.registry import POLICIES, make_policy
from guanaco.engine.native import library_path
from guanaco.simulator.replay import NativeCache, selections
from guanaco.simulator.trace import read_trace
from tests.support.routing import Case, cases, shape_of

TRACES = Path(__file__).parents[1] / "data" / "traces"
QWEN, KIMI = TRACES / "qwen3-30b-a3b.route.csv", TRACES / "kimi-linear-48b.jsonl"
N_EXAMPLES = int(os.environ.get("GUANACO_EXAMPLES", "300"))


def both_serve(
    name: str, shape: PolicyShape, served: tuple[Selection, ...], prior: Sequence[Sequence[float]] = ()
) -> Cache:
    """Every selection through both; the Python cache, with its counters."""
    reference = Cache(shape, make_policy(name, shape))
    with NativeCache(library_path(), name, shape) as native:
        for group, use in enumerate(prior):
            reference.policy.prior(group, use)
            native.prior(group, use)
        for index, selection in enumerate(served):
            expected = reference.serve(selection)
            assert native.serve(selection) == expected, f"{name}, selection {index}: {selection}"
            if expected is None:  # in waves
                expected = reference.pass_through(selection)
                assert native.pass_through(selection) == expected, f"{name}, selection {index}: {selection}"
    return reference


@settings(max_examples=N_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_native_and_python_agree_on_random_traces(case: Case) -> None:
    for name in POLICIES:
        both_serve(name, case.shape, case.selections)


@settings(max_examples=max(50, N_EXAMPLES // 4), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), seed=st.integers(0, 2**32 - 1))
def test_native_and_python_agree_with_a_prior(case: Case, seed: int) -> None:
    rng = random.Random(seed)
    prior = [[rng.choice((0.0, rng.random() ** 3, 1.0)) for _ in range(n)] for n in case.shape.n_expert]
    for name in POLICIES:
        both_serve(name, case.shape, case.selections, prior)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("path", [QWEN, KIMI], ids=["qwen3", "kimi"])
def test_native_and_python_agree_on_real_traces(path: Path, name: str) -> None:
    trace = read_trace(path).decoded()
    n_slots = trace.n_layer * trace.n_expert // 16
    shape = shape_of(trace, n_slots)
    reference = both_serve(name, shape, tuple(selections(trace)))
    with NativeCache(library_path(), name, shape) as native:
        counts = native.replay(trace)
    assert (counts.hits, counts.misses, counts.evictions) == (
        reference.hits,
        reference.misses,
        reference.evictions,
    )
    assert reference.misses - reference.evictions == n_slots  # full at the end
    assert counts.serve_ns is not None
    assert counts.serve_ns > 0


@settings(max_examples=max(50, N_EXAMPLES // 10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(with_prompts=False))
def test_nothing_beats_the_optimum(case: Case) -> None:
    best = Belady(case.shape, case.selections).replay()
    assert best is not None
    n_accesses = sum(len(selection.experts) for selection in case.selections)
    distinct = {(s.group, e) for s in case.selections for e in s.experts}
    assert best.hits + best.misses == n_accesses
    assert best.misses >= len(distinct)
    for name in POLICIES:
        cache = Cache(case.shape, make_policy(name, case.shape))
        for selection in case.selections:
            assert cache.serve(selection) is not None
        assert cache.hits + cache.misses == n_accesses
        assert cache.misses >= best.misses, name


@settings(max_examples=max(50, N_EXAMPLES // 10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_a_cache_holds_what_it_served_and_no_more_than_its_slots(case: Case) -> None:
    for name in POLICIES:
        cache = Cache(case.shape, make_policy(name, case.shape))
        resident: set[tuple[int, int]] = set()
        for selection in case.selections:
            wanted = {(selection.group, expert) for expert in selection.experts}
            served = cache.serve(selection)
            if served is None:
                assert len(wanted) > case.shape.n_slots[case.shape.size_class[selection.group]]
                passed = cache.pass_through(selection)
                resident -= set(passed.victims)
                assert passed.misses == len(wanted - resident)
                continue
            assert served.misses == len(wanted - resident)
            assert set(served.victims) <= resident - wanted
            resident = (resident - set(served.victims)) | wanted
            assert all(cache.is_resident(*key) for key in resident)
            for size_class, n_slots in enumerate(case.shape.n_slots):
                assert sum(case.shape.size_class[group] == size_class for group, _ in resident) <= n_slots
