"""Which slot a request is answered in: prompts of many batches keep nobody waiting who need not wait."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco.server.slot_choice import Choice, Slot, choose, digest_of, similarity

N_BATCH = 512
FRESH = digest_of(b"")


def _text(seed: int, nbytes: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def _slots(count: int, busy: tuple[int, ...] = (), reading: tuple[int, ...] = ()) -> list[Slot]:
    return [Slot(is_taken=i in busy or i in reading, is_reading=i in reading) for i in range(count)]


def test_a_long_prompt_takes_the_last_slot_which_the_engine_serves_last() -> None:
    assert choose(FRESH, 4096, _slots(4), N_BATCH) == Choice(3, is_long=True)
    assert choose(FRESH, 4096, _slots(4, busy=(3,)), N_BATCH) == Choice(2, is_long=True)


def test_a_short_one_goes_before_the_long_one_that_is_read() -> None:
    assert choose(FRESH, 1, _slots(4, reading=(3,)), N_BATCH) == Choice(0, is_long=False)
    assert choose(FRESH, 1, _slots(4, busy=(0,), reading=(2,)), N_BATCH) == Choice(1, is_long=False)
    assert choose(FRESH, 1, _slots(4, busy=(0, 1), reading=(2,)), N_BATCH) == Choice(3, is_long=False), (
        "behind it rather than not at all"
    )


def test_one_long_prompt_is_read_at_a_time() -> None:
    assert choose(FRESH, N_BATCH + 1, _slots(4, reading=(3,)), N_BATCH) is None
    assert choose(FRESH, N_BATCH, _slots(4, reading=(3,)), N_BATCH) is not None


def test_nobody_gets_a_slot_that_is_taken() -> None:
    assert choose(FRESH, 1, _slots(2, busy=(0, 1)), N_BATCH) is None


def test_who_goes_on_with_a_conversation_finds_it() -> None:
    slots = _slots(4)
    before = _text(1, 20_000)
    slots[2].digest = digest_of(before)
    more = digest_of(before + _text(2, 1_000))
    # 5,000 tokens, nearly all of them read already: not long.
    assert choose(more, 5_000, slots, N_BATCH) == Choice(2, is_long=False)
    slots[2].is_taken = True
    assert choose(more, 5_000, slots, N_BATCH) == Choice(3, is_long=True), "taken: it is read anew"
    assert choose(digest_of(_text(3, 20_000)), 5_000, _slots(4), N_BATCH) == Choice(3, is_long=True)


def test_a_long_prompt_stays_before_others_only_where_most_of_it_was_read() -> None:
    slots = _slots(4)
    before = _text(1, 4_096)
    slots[0].digest = digest_of(before)
    third = digest_of(before + _text(2, 8_192))
    assert choose(third, 3_000, slots, N_BATCH) == Choice(3, is_long=True)
    most = digest_of(before + _text(2, 2_048))
    assert choose(most, 3_000, slots, N_BATCH) == Choice(0, is_long=True)
    assert choose(third, 600, slots, N_BATCH) == Choice(0, is_long=False), "a short rest stays anyway"


def test_short_ones_leave_the_last_slot_and_what_was_used_last() -> None:
    slots = _slots(3)
    for used, index in enumerate((1, 0), start=1):
        slots[index].used = used
    assert choose(FRESH, 1, slots, N_BATCH) == Choice(1, is_long=False)


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (b"", b"", 0.0),
        (b"a" * 1024, b"a" * 512, 0.5),
        (b"a" * 512, b"a" * 1024, 1.0),
        (b"b" * 512, b"a" * 512, 0),
    ],
)
def test_similarity_is_the_share_that_begins_alike(one: bytes, other: bytes, share: float) -> None:
    assert similarity(digest_of(one), digest_of(other)) == share


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_similarity_counts_the_same_first_blocks(one: list[int], other: list[int]) -> None:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    content = [b"".join(bytes([piece]) * 256 for piece in pieces) for pieces in (one, other)]
    assert similarity(*map(digest_of, content)) == same / max(1, len(one))


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 9)), min_size=2, max_size=6),
    st.integers(0, 2000),
)
def test_only_free_slots_are_chosen(states: list[tuple[bool, bool, int]], n_tokens: int) -> None:
    slots = [Slot(taken, reading and taken, b"", used) for taken, reading, used in states]
    choice = choose(FRESH, n_tokens, slots, N_BATCH)
    if choice is not None:
        assert not slots[choice.index].is_taken
        assert choice.is_long == (n_tokens > N_BATCH)
    elif n_tokens <= N_BATCH:
        assert all(slot.is_taken for slot in slots)
