"""What clients ask in each workload, and the figures made of their answers."""

from __future__ import annotations

import pytest

from guanaco.bench.clients import Answer, Counters
from guanaco.bench.load import figures, percentile
from guanaco.bench.workload import NAMES, Prompts, Request, make
from guanaco.errors import UsageError


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_as_asked_for(name: str) -> None:
    load = make(name, 3, 5, 160)
    assert all(len(requests) == 5 for requests in load.clients)
    assert len(load.clients) == (1 if name == "agent" else 3)
    assert max(request.n_new for requests in load.clients for request in requests) <= 160
    assert load.n_ctx >= 160 // 16


def test_an_agent_alone_has_nobody_beside_it() -> None:
    assert make("agent", 1).side is None
    assert make("agent", 2).side == Request(1, 1, pause_s=0.5)


def test_the_usual_agent_reads_a_long_prompt_between_two_short_answers() -> None:
    first, long, *turns = make("agent").clients[0]
    assert (first.n_answer, long.n_new, long.goes_on) == (64, 4096, False)
    assert all(turn.goes_on for turn in turns)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'chats' is unknown; choose from chat, agent, batch"):
        make("chats")


def test_a_conversation_goes_on_with_its_own_tokens() -> None:
    prompts = Prompts(1, 5000)
    first = prompts.next(Request(10, 1))
    second = prompts.next(Request(5, 1, goes_on=True))
    third = prompts.next(Request(7, 1))
    assert second[:10] == first
    assert len(second) == 15
    assert len(third) == 7
    assert all(1000 <= token < 5000 for token in (*second, *third))
    assert Prompts(1, 5000).next(Request(10, 1)) == first
    assert Prompts(2, 5000).next(Request(10, 1)) != first


def test_the_context_holds_the_longest_conversation() -> None:
    load = make("chat", 1, 3, 100)
    assert load.n_ctx == 100 + 2 * (25 + 48) + 48


def test_percentiles_are_of_the_values() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 95) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 95) == 95.0


def _answer(client: int, index: int, n_prompt: int, **counters: Counters) -> Answer:
    zero = Counters()
    return Answer(
        client,
        index,
        n_prompt,
        n_answer=10,
        first_token_s=float(n_prompt) / 10,
        whole_s=float(n_prompt) / 10 + 1,
        asked=counters.get("asked", zero),
        first=counters.get("first", zero),
        ended=counters.get("ended", zero),
    )


def test_figures_of_clients_and_of_the_one_beside_them() -> None:
    long = _answer(
        0,
        1,
        100,
        asked=Counters(0, 100, 50, 1_000),
        first=Counters(10, 200, 60, 3_000),
        ended=Counters(20, 300, 140, 4_000),
    )
    short = _answer(0, 0, 10)
    beside = _answer(-1, 0, 1, asked=Counters(3), ended=Counters(5))
    made = figures([long, short, beside], 5.0, 25.0)
    assert made["requests"] == 2
    assert made["requests_per_s"] == pytest.approx(0.4)
    assert made["prompt_tps"] == pytest.approx(110 / 5)
    assert made["decode_tps"] == pytest.approx(20 / 5)
    assert made["longest_prompt_n"] == 100
    # 2,000 bytes read for 100 selected experts of 25 bytes.
    assert made["longest_read_per_touched"] == pytest.approx(0.8)
    assert made["decode_hit_rates"] == [None, pytest.approx(0.8)], "in the order they were asked"
    assert (made["side_requests"], made["side_most_batches"], made["side_most_s"]) == (
        1,
        2,
        pytest.approx(1.1),
    )
