"""Recordings of the native library, and the traces made from them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guanaco.cache.policy import PolicyShape, Selection
from guanaco.errors import EngineError, UsageError
from guanaco.simulator.recorded import COUNTERS
from guanaco.simulator.recording import About, Served, read_recording, write_recorded
from guanaco.simulator.trace import DECODE, PROMPT, read_trace, write_trace

SHAPE = PolicyShape(n_expert=(8, 6), size_class=(0, 1), n_slots=(4, 3), top_k=(2, 2))
COUNTS = dict(zip(COUNTERS, (5, 4, 1, 1, 0), strict=True))
ABOUT = About("tiny", (1, 3), (100, 50), "herd", SHAPE, False, COUNTS, n_prompt=3)
# A prompt of three tokens of which only the last runs the last layer, then two decoded tokens.
RUN = (
    Served(0, 0, ((0, 1), (1, 2), (3, 0)), (1, 2, 0, 3), 2, frozenset({1}), ((0.9, 0.1),) * 3, is_batch=True),
    Served(0, 1, ((4, 5),), (4, 5), 0, frozenset(), ((0.75, 0.25),)),
    Served(1, 0, ((3, 7),), (3, 7), 0, frozenset({3}), ((0.5, 0.125),)),
    Served(1, 1, ((5, 0),), (5, 0), 0, frozenset({5}), ((0.5, 0.5),)),
    Served(2, 0, ((7, 3),), (7, 3), 0, frozenset({3, 7}), ((0.5, 0.5),)),
    Served(2, 1, ((0, 5),), (0, 5), 0, frozenset({0, 5}), ((0.5, 0.5),)),
)


def raw(served: Iterable[Served]) -> bytes:
    """As the library writes it."""
    blocks = [b"GNRC" + struct.pack("=I", 2)]
    for item in served:
        flat = [e for row in item.rows for e in row]
        experts = [e | ((1 << 31) if e in item.resident else 0) for e in item.experts]
        scores = [] if item.scores is None else [s for row in item.scores for s in row]
        n_used = len(item.rows[0]) if item.rows else 2
        numbers = (
            len(item.rows),
            n_used,
            len(experts),
            item.n_transient,
            int(bool(scores)) | 2 * item.is_batch,
        )
        blocks.append(struct.pack("=7I", item.graph, item.group, *numbers))
        blocks.append(struct.pack(f"={len(flat)}i{len(experts)}I{len(scores)}f", *flat, *experts, *scores))
    return b"".join(blocks)


def written(tmp_path: Path, served: Sequence[Served] = RUN, about: About = ABOUT) -> Path:
    path = tmp_path / "trace.jsonl"
    write_recorded(served, about, path, len(served))
    return path


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(raw(RUN))
    found = list(read_recording(path))
    assert [replace(item, scores=None) for item in found] == [replace(item, scores=None) for item in RUN]
    assert found[0].scores is not None
    assert found[0].scores[0] == pytest.approx((0.9, 0.1))


def test_a_selection_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    whole = raw(RUN)
    for cut in (1, 9, 30, 40):
        path.write_bytes(whole[:-cut])
        assert len(list(read_recording(path))) == len(RUN) - 1
    path.write_bytes(whole[:8])
    assert list(read_recording(path)) == []


@pytest.mark.parametrize("start", [b"", b"GNRC", b"GNRC" + struct.pack("=I", 9), b"what is this?"])
def test_something_else_is_no_recording(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "recording"
    path.write_bytes(start)
    with pytest.raises(EngineError, match="is not a recording"):
        list(read_recording(path))


def test_absurd_sizes_are_damage_not_memory(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(b"GNRC" + struct.pack("=8I", 2, 0, 0, 1 << 30, 8, 8, 0, 0))
    with pytest.raises(EngineError, match="it is damaged"):
        list(read_recording(path))


def test_a_recorded_trace_has_tokens_and_selections(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    summary = write_recorded(RUN, ABOUT, path, len(RUN))
    assert (summary.n_prompt, summary.n_decode, summary.n_selections) == (3, 2, 6)
    assert summary.has_scores
    trace = read_trace(path)
    assert trace.phase == (PROMPT,) * 3 + (DECODE,) * 2
    assert trace.steps == (
        ((0, 1), ()), ((1, 2), ()), ((3, 0), (4, 5)), ((3, 7), (5, 0)), ((7, 3), (0, 5)),
    )  # fmt: skip
    assert trace.expert_bytes == (100, 50)
    assert (trace.n_layer, trace.n_expert, trace.top_k) == (2, 8, 2)
    recorded = trace.recorded
    assert recorded is not None
    assert recorded.shape == SHAPE
    assert recorded.policy == "herd"
    assert recorded.counters == COUNTS
    assert not recorded.has_guesses
    assert recorded.selections == tuple(
        Selection(s.group, s.experts, s.n_transient, s.rows if s.is_batch else ()) for s in RUN
    )
    assert not list(tmp_path.glob("*.partial"))


def test_each_token_says_what_was_resident_and_how_it_scored(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in written(tmp_path).read_text().splitlines()]
    batch = lines[1]
    assert batch == {"batch": 3, "served": [[0, 2, [1, 2, 0, 3], 1], [1, 0, [4, 5]]]}
    assert lines[2]["resident"] == [[0, 1], []]
    assert lines[2]["weights"] == [[0.9, 0.1], []]
    assert lines[4]["resident"] == [[0, 0], [0, 0]]
    assert lines[5] == {
        "phase": 1,
        "layers": [[3, 7], [5, 0]],
        "resident": [[1, 0], [1, 0]],
        "weights": [[0.5, 0.125], [0.5, 0.5]],
    }


def test_weights_are_left_out_where_a_router_shows_none(tmp_path: Path) -> None:
    blind = [replace(item, scores=None) if item.graph == 1 else item for item in RUN]
    path = tmp_path / "trace.jsonl"
    assert not write_recorded(blind, ABOUT, path, len(blind)).has_scores
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert ["weights" in line for line in lines[2:]] == [True, True, True, False, True]


def one(group: int, ids: tuple[int, ...]) -> Served:
    return Served(0, group, (ids,), ids, 0, frozenset(), None)


@pytest.mark.parametrize(
    "graph",
    [
        # The same layer twice; layers out of order; other experts than the row's; one of a prompt only.
        (one(0, (1, 2)), one(0, (3, 2))),
        (one(1, (1, 2)), one(0, (3, 2))),
        (replace(one(0, (1, 2)), experts=(2, 1)),),
        (replace(one(0, (1, 2)), n_transient=1),),
    ],
)
def test_what_one_token_does_not_say_stands_before_it(tmp_path: Path, graph: tuple[Served, ...]) -> None:
    path = written(tmp_path, graph)
    recorded = read_trace(path).recorded
    assert recorded is not None
    assert recorded.selections == tuple(Selection(s.group, s.experts, s.n_transient) for s in graph)
    assert '"served"' in path.read_text()


def test_a_layer_that_ran_none_of_a_batch_is_asked_for_nothing(tmp_path: Path) -> None:
    """As the last one in all but the last batch of a prompt."""
    graph = (RUN[0], Served(0, 1, (), (), 0, frozenset(), None))
    recording = tmp_path / "recording"
    recording.write_bytes(raw(graph))
    path = tmp_path / "trace.jsonl"
    assert write_recorded(read_recording(recording), ABOUT, path, len(graph)).has_scores
    trace = read_trace(path)
    assert trace.recorded is not None
    assert trace.recorded.selections[1] == Selection(1, ())
    assert [ids for _, ids in trace.steps] == [(), (), ()]
    assert all("weights" in line for line in path.read_text().splitlines()[2:])


def test_decoded_tokens_are_not_what_the_cache_was_asked(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path)).decoded().recorded is None


def test_a_trace_of_ours_that_was_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    write_trace(read_trace(written(tmp_path)), path)
    assert read_trace(path).recorded is None


def changed(lines: list[Any], index: int, **fields: Any) -> list[Any]:
    return [{**line, **fields} if i == index else line for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("index", "fields", "reason"),
    [
        (0, {"cache": 3}, "line 1: expected \"cache\": an object"),
        (0, {"cache": {"policy": "lru"}}, "line 1: expected 'slots': a list"),
        (0, {"counters": None}, "a recorded trace without \"counters\""),
        (0, {"counters": {"hits": -1}}, "hits: -1 is not a whole number"),
        (1, {"batch": 9}, "tokens of the last batch are missing"),
        (1, {"batch": "all"}, "batch: 'all' is not a whole number"),
        (1, {"served": 1}, "expected \"served\": a list of selections"),
        (1, {"served": [[0, 0]]}, r"expected a selection \[layer, n_transient, \[experts\]\]"),
        (1, {"served": [[2, 0, [1]]]}, "layer 2, the trace has 2"),
        (1, {"served": [[0, 3, [1]]]}, "contradicts itself"),
        (1, {"served": [[0, 0, [1, 1]]]}, "contradicts itself"),
        (1, {"served": [[1, 0, [6]]]}, "is not below 6"),
        (1, {"served": [[1, 0, [True]]]}, "expert: True is not a whole number"),
    ],
)  # fmt: skip
def test_a_trace_that_contradicts_itself(
    tmp_path: Path, index: int, fields: dict[str, Any], reason: str
) -> None:
    path = written(tmp_path)
    lines = changed([json.loads(line) for line in path.read_text().splitlines()], index, **fields)
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=reason) as caught:
        read_trace(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("slots", [4, 0], "slots \\[4, 0\\]; between 1 and"),
        ("slots", "four", "expected 'slots': a list"),
        ("class", [0, 2], "a class that is not among the 2"),
        ("class", [0], "1 numbers in 'class' for 2 layers"),
        ("n_expert", [8, 6, 4], "3 numbers in 'n_expert' for 2 layers"),
        ("top_k", [2, "2"], "top_k: '2' is not a whole number"),
    ],
)
def test_a_cache_that_contradicts_itself(tmp_path: Path, name: str, value: Any, reason: str) -> None:
    path = written(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["cache"][name] = value
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=reason):
        read_trace(path)


def test_a_batch_says_how_many_tokens_it_was(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = changed([json.loads(line) for line in path.read_text().splitlines()], 1, batch=2)
    path.write_text("\n".join(map(json.dumps, lines)))
    recorded = read_trace(path).recorded
    assert recorded is not None
    assert len(recorded.selections) == len(RUN) + 2  # the third token counts as served by itself


def test_batches_need_a_cache(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    del lines[0]["cache"]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match='"served" in a trace whose header has no "cache"'):
        read_trace(path)


def test_one_batch_after_the_other(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[1], *lines[3:]]))
    with pytest.raises(UsageError, match="but 2 tokens of the one before are missing"):
        read_trace(path)
