"""The reference policies and cache by hand, and the optimum against every possible choice."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guanaco.cache.attention import RoutingAttention
from guanaco.cache.policies.belady import Belady
from guanaco.cache.policies.cycle import Cycle
from guanaco.cache.policies.herd import Herd, pin_budgets
from guanaco.cache.policies.lru import Lru
from guanaco.cache.policies.recall import Recall
from guanaco.cache.policy import Policy, PolicyShape, Selection
from guanaco.cache.reference import Cache, Served
from guanaco.cache.registry import POLICIES, make_policy
from guanaco.errors import UsageError
from tests.support.routing import uniform_shape


def serve(policy: str, n_slots: int, rows: Iterable[Sequence[int]], n_expert: int = 8) -> list[Served | None]:
    """One layer, one selection a token."""
    shape = uniform_shape(1, n_expert, n_slots)
    cache = Cache(shape, make_policy(policy, shape))
    return [cache.serve(Selection(0, tuple(row))) for row in rows]


def victims(policy: str, n_slots: int, rows: Iterable[Sequence[int]]) -> list[list[int]]:
    return [[e for _, e in served.victims] for served in serve(policy, n_slots, rows) if served]


def test_a_policy_cannot_be_shown_the_future() -> None:
    """Every argument is a number, pins, how much was used before the start, or what was just picked."""
    seen = set()
    for name, method in inspect.getmembers(Policy, inspect.isfunction):
        if not name.startswith("_"):
            hints = get_type_hints(method)
            seen |= {hints[parameter] for parameter in list(inspect.signature(method).parameters)[1:]}
    assert seen == {Selection, int, bool, Sequence[int], Sequence[float]}
    assert get_type_hints(Selection) == {
        "group": int,
        "experts": tuple[int, ...],
        "n_transient": int,
        "rows": tuple[tuple[int, ...], ...],
    }
    for make in POLICIES.values():
        assert list(inspect.signature(make).parameters) == ["shape"]
    assert "belady" not in POLICIES


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="'arc' is not a policy; one of lru, lfu, cycle, recall, herd"):
        make_policy("arc", uniform_shape(1, 2, 2))


def test_lru_evicts_what_was_not_used_for_longest() -> None:
    assert victims("lru", 3, [(0,), (1,), (2,), (0,), (3,), (4,)]) == [[], [], [], [], [1], [2]]


def test_recency_follows_the_order_within_a_selection() -> None:
    assert victims("lru", 3, [(2, 0, 1), (3,), (4,), (5,)]) == [[], [2], [0], [1]]


def test_lfu_evicts_the_rarest_and_remembers_counts() -> None:
    # 1 leaves after two uses; back again it is worth three, as 0 is, and more recent.
    rows = [(0,), (0,), (0,), (1,), (1,), (2,), (1,), (3,), (2,)]
    assert victims("lfu", 2, rows) == [[], [], [], [], [], [1], [2], [0], [3]]


def test_lfu_breaks_ties_by_recency() -> None:
    assert victims("lfu", 2, [(0,), (1,), (2,)])[-1] == [0]


def test_cycle_prefers_the_layer_just_served_among_equals() -> None:
    """Two layers, all experts used once: what layer 1 holds is needed sooner than what layer 0 holds."""
    shape = uniform_shape(2, 4, 3)
    cache = Cache(shape, Cycle(shape))
    for group, expert in ((0, 0), (1, 0), (0, 1)):
        cache.serve(Selection(group, (expert,)))
    # Rates of (0, 0): decayed once by the second selection of its layer; distances: layer 0 is a ring away.
    served = cache.serve(Selection(1, (1,)))
    assert served == Served(1, ((1, 0),))


def test_cycle_value_by_hand() -> None:
    shape = uniform_shape(4, 4, 4)
    policy = Cycle(shape)
    for token in range(3):
        for group in range(4):
            policy.selected(Selection(group, (0,) if token == 0 or group != 2 else (1,)))
    # Expert 0 of layer 2: used once, then twice not. Served last: layer 3, so layer 2 is 2 of 4 ahead.
    quick, slow = 0.5 * 0.5**2, 0.03 * 0.97**2
    expected = 2 / 4 + 1 / (0.25 * quick + 0.75 * slow + 1e-5)
    assert policy.worth(2, 0) == pytest.approx(-expected, rel=1e-12)
    assert policy.worth(2, 1) > policy.worth(2, 0) > policy.worth(2, 3)


def test_recall_expects_what_a_token_like_this_one_used_next() -> None:
    """Two kinds of token in turn: the first layer tells which kind it is, so the second is known."""
    shape = uniform_shape(2, 4, 8, top_k=1)
    policy = Recall(shape)
    for token in range(20):
        policy.selected(Selection(0, (token % 2,)))
        policy.selected(Selection(1, (2 + token % 2,)))
    policy.selected(Selection(0, (0,)))
    assert policy.worth(1, 2) > policy.worth(1, 3)
    # The layer that was served: after a token like this one comes the other kind.
    assert policy.worth(0, 1) > policy.worth(0, 2)
    plain = Cycle(shape)
    for token in range(20):
        plain.selected(Selection(0, (token % 2,)))
        plain.selected(Selection(1, (2 + token % 2,)))
    plain.selected(Selection(0, (0,)))
    assert plain.worth(1, 2) < plain.worth(1, 3)  # the rates alone expect what came last


def votes(attention: RoutingAttention, group: int) -> list[float]:
    return [attention.vote(group, expert) for expert in range(4)]


def test_votes_by_hand() -> None:
    shape = uniform_shape(2, 4, 8, top_k=2)
    attention = RoutingAttention(shape)
    tokens = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((2, 3), (0, 1))]
    for token, layers in enumerate(tokens):
        for group, experts in enumerate(layers):
            attention.learn(Selection(group, experts), token)
    attention.learn(Selection(0, (0, 1)), 3)
    # Resemblance: each layer fades what is there and adds shared / 2; a token carries it on to the next one.
    after_1 = {0: 0.9 * (1 / 2) + 1 / 2}
    after_2 = {0: 0.0, 1: 0.9 * (0.9 * 0.6 * after_1[0] + 1 / 2) + 1 / 2}
    after_2[0] = 0.9 * (0.9 * 0.0 + 0 / 2) + 0 / 2
    now = {0: 1.0, 1: 0.9 * 0.6 * after_2[0] + 1 / 2, 2: 0.9 * 0.6 * after_2[1] + 0.0}
    top = max(now.values())
    powers = {u: math.exp(1.3 * (value - top)) for u, value in now.items()}
    alpha = {u: power / sum(powers.values()) for u, power in powers.items()}
    weight = {0: alpha[0], 1: alpha[1] + 0.4 * alpha[0]}
    weight[2] = alpha[2] + 0.4 * weight[1]
    w0, w1, w2 = (weight[u] / sum(weight.values()) for u in range(3))
    assert votes(attention, 1) == pytest.approx([w2, w1 + w2, w0, w0 + w1])
    # Layer 0 is served: the tokens after count, the current one (0, 1) after token 2 among them.
    assert votes(attention, 0) == pytest.approx([w0 + w2, w2, w0 + w1, w1])


def test_a_first_token_has_no_votes_and_a_long_history_is_bounded() -> None:
    attention = RoutingAttention(uniform_shape(1, 4, 4, top_k=1))
    attention.learn(Selection(0, (1,)), 0)
    assert votes(attention, 0) == [0.0] * 4
    for token in range(1, 257):
        attention.learn(Selection(0, (0,)), token)
    assert attention.vote(0, 1) == 0.0  # token 0 is forgotten
    assert attention.vote(0, 0) == pytest.approx(1.0)


def test_pin_budgets_are_proportional_and_use_every_slot() -> None:
    shape = PolicyShape((10, 10, 10, 4), (0, 0, 0, 1), (10, 9), (0,) * 4)
    assert pin_budgets(shape, [3, 3, 6, 1]) == [3, 2, 5, 4]  # 2.5, 2.5, 5; the last has 4 experts only
    assert pin_budgets(shape, [0, 0, 0, 0]) == [0, 0, 0, 0]


def test_herd_pins_after_200_calls_for_good() -> None:
    shape = uniform_shape(1, 8, 3)
    policy = Herd(shape)
    cache = Cache(shape, policy)
    for call in range(199):
        cache.serve(Selection(0, (call % 2,)))
    assert policy.pins == [set()]
    cache.serve(Selection(0, (2,)))
    assert policy.pins == [{0, 1, 2}]
    served = [cache.serve(Selection(0, (expert,))) for expert in (3, 4, 5)]
    # The budget is full: the coldest of the pinned leaves for the first newcomer, then newcomers leave.
    assert served == [Served(1, ((0, 2),)), Served(1, ((0, 3),)), Served(1, ((0, 4),))]
    assert policy.worth(0, 2) > policy.worth(0, 5)  # still pinned, though not in memory


def test_herd_fills_its_budget_later_when_it_saw_too_few() -> None:
    shape = uniform_shape(1, 8, 3)
    policy = Herd(shape)
    for _ in range(200):
        policy.selected(Selection(0, (0,)))
    assert policy.pins == [{0}]
    for expert in (1, 2, 3):
        policy.selected(Selection(0, (expert,)))
    assert policy.pins == [{0, 1, 2}]


def test_more_experts_than_slots_change_nothing() -> None:
    served = serve("lru", 2, [(0, 1), (0, 1, 2), (0, 1)])
    assert served == [Served(2, ()), None, Served(0, ())]


@pytest.mark.parametrize("name", POLICIES)
def test_a_prompts_experts_leave_first_and_teach_nothing(name: str) -> None:
    shape = uniform_shape(1, 12, 4)
    cache = Cache(shape, make_policy(name, shape))
    cache.serve(Selection(0, (0, 1)))
    cache.serve(Selection(0, (2, 3), n_transient=2))
    assert cache.serve(Selection(0, (4,))) == Served(1, ((0, 3),))
    assert cache.serve(Selection(0, (5,))) == Served(1, ((0, 2),))


def test_a_prompts_expert_that_decoding_uses_stays() -> None:
    shape = uniform_shape(1, 12, 4)
    cache = Cache(shape, Lru(shape))
    cache.serve(Selection(0, (0, 1)))
    cache.serve(Selection(0, (2, 3), n_transient=2))
    cache.serve(Selection(0, (3,)))
    assert cache.serve(Selection(0, (4, 5))) == Served(2, ((0, 2), (0, 0)))


def test_a_prompt_never_evicts_what_it_uses_itself() -> None:
    shape = uniform_shape(1, 12, 3)
    cache = Cache(shape, Lru(shape))
    cache.serve(Selection(0, (0, 1, 2), n_transient=3))
    assert cache.serve(Selection(0, (2, 3, 4), n_transient=2)) == Served(2, ((0, 1), (0, 0)))


def test_an_emptied_slot_is_no_victim() -> None:
    policy = Lru(uniform_shape(1, 4, 2))
    policy.selected(Selection(0, (0, 1)))
    policy.placed(0, 0, 0, False)
    policy.placed(0, 1, 1, False)
    policy.emptied(0, 0)
    assert policy.victim(0, [0, 0]) == 1
    assert policy.victim(0, [0, 1]) is None


def test_naming_a_victim_twice_names_the_same_one_and_a_new_one_takes_part() -> None:
    policy = Lru(uniform_shape(1, 4, 2))
    policy.selected(Selection(0, (0, 1)))
    policy.placed(0, 1, 1, False)
    assert [policy.victim(0, [0, 0]), policy.victim(0, [0, 0])] == [1, 1]
    policy.placed(0, 0, 0, False)
    assert policy.victim(0, [0, 0]) == 0


def fewest_misses(n_slots: int, rows: Sequence[frozenset[int]]) -> int:
    """By trying every choice of what to keep."""
    best = {frozenset[int](): 0}
    for row in rows:
        after: dict[frozenset[int], int] = {}
        for held, misses in best.items():
            others = held - row
            n_kept = min(len(others), n_slots - len(row))
            for kept in combinations(sorted(others), n_kept):
                now = row | frozenset(kept)
                cost = misses + len(row - held)
                after[now] = min(after.get(now, cost), cost)
        best = after
    return min(best.values())


@settings(max_examples=200, deadline=None)
@given(
    n_slots=st.integers(2, 5),
    rows=st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=2), min_size=1, max_size=14),
)
def test_belady_is_the_optimum(n_slots: int, rows: list[frozenset[int]]) -> None:
    future = [Selection(0, tuple(sorted(row))) for row in rows]
    best = Belady(uniform_shape(1, 7, n_slots), future).replay()
    assert best is not None
    assert best.misses == fewest_misses(n_slots, rows)
    assert best.evictions == max(0, best.misses - n_slots)


def test_belady_refuses_what_does_not_fit() -> None:
    assert Belady(uniform_shape(1, 4, 1), [Selection(0, (0, 1))]).replay() is None
