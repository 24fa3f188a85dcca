"""``guanaco simulate``: the table, the rows, and what it says to nonsense."""

from __future__ import annotations

import csv
import json
import os
from fractions import Fraction
from pathlib import Path

import pytest

from guanaco.cache.policies.belady import Belady
from guanaco.cache.policy import Selection
from guanaco.cache.registry import POLICIES
from guanaco.cli import main as entry
from guanaco.cli.simulate import parse_policies, parse_shares
from guanaco.engine.native import library_path
from guanaco.errors import EngineError, UsageError
from guanaco.simulator.replay import NativeCache, replay, selections, shape_for
from guanaco.simulator.trace import DECODE, PROMPT, Trace, read_trace, write_trace
from tests.support.routing import uniform_shape

TRACES = Path(__file__).parents[1] / "data" / "traces"
QWEN, KIMI = TRACES / "qwen3-30b-a3b.route.csv", TRACES / "kimi-linear-48b.jsonl"


def small(phase: int = DECODE, expert_bytes: tuple[int, ...] | None = None) -> Trace:
    steps = tuple(((token % 4, 4), (token % 3, 5)) for token in range(12))
    return Trace("small", 2, 8, 2, steps, (phase,) * len(steps), expert_bytes)


def saved(tmp_path: Path, trace: Trace) -> str:
    path = tmp_path / "small.trace"
    write_trace(trace, path)
    return str(path)


def simulate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = entry.main(["simulate", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_rows_and_csv_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path, small())
    table = tmp_path / "rows.csv"
    code, out, err = simulate(capsys, path, "--budgets", "25%,62.5", "--csv", str(table), "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [(row["budget"], row["policy"]) for row in rows] == [
        (budget, policy) for budget in (25, 62.5) for policy in (*POLICIES, "belady")
    ]
    for row in rows:
        assert row["trace"] == path
        assert row["hits"] + row["misses"] == 48
        assert row["hit_rate"] == pytest.approx(row["hits"] / 48)
        for name in ("us_per_layer", "evict_hot", "evict_reread"):
            assert (row[name] is None) == (row["policy"] == "belady")
        assert row["slots"] == {25: 4, 62.5: 10}[row["budget"]]
    # 10 slots for the 9 experts used: each misses once.
    assert {row["misses"] for row in rows if row["budget"] == 62.5} == {4 + 1 + 3 + 1}
    written = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["policy"], int(row["hits"])) for row in written] == [(r["policy"], r["hits"]) for r in rows]
    assert list(written[0]) == list(rows[0])


def test_table_shows_hit_rates_in_percent(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = simulate(capsys, str(KIMI), "--budgets", "6.25%", "--policies", "lru,belady")
    assert code == 0
    heading, names, values, cost = out.splitlines()
    assert heading == f"{KIMI}: 300 tokens, 26 layers x 256 experts, top-8"
    assert names.split() == ["resident", "slots", "lru", "belady"]
    assert values.split()[:3] == ["6.25", "%", "416"]
    assert [float(value) for value in values.split()[3:]] == pytest.approx([41.8, 64.2], abs=1)
    assert cost.split()[-1] == "-"


def test_the_library_counts_what_the_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    trace = read_trace(QWEN).decoded()
    shape = shape_for(trace, Fraction(1, 8))
    assert shape.n_slots == (768,)
    _, out, _ = simulate(capsys, str(QWEN), "--budgets", "12.5%", "--policies", "recall", "--json")
    (row,) = json.loads(out)["rows"]
    hits = 0
    with NativeCache(library_path(), "recall", shape) as cache:
        for selection in selections(trace):
            served = cache.serve(selection)
            assert served is not None
            hits += len(selection.experts) - served.misses
    assert row["hits"] == hits


def test_prompt_tokens_are_replayed_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """The prompt of this trace lacks rows for its last layer: it is served layer by layer."""
    words = (str(QWEN), "--budgets", "12.5%", "--policies", "lru,belady", "--json")
    n_all = sum(len(ids) for step in read_trace(QWEN).steps for ids in step)
    _, out, _ = simulate(capsys, *words, "--phase", "all")
    rows = json.loads(out)["rows"]
    assert [row["hits"] + row["misses"] for row in rows] == [n_all] * 2
    _, out, _ = simulate(capsys, *words)
    assert json.loads(out)["rows"][0]["hits"] < rows[0]["hits"] < rows[1]["hits"]


def test_by_bytes_makes_a_pool_for_each_size() -> None:
    trace = read_trace(QWEN).decoded()
    shape = shape_for(trace, Fraction(1, 8), by_bytes=True)
    large = [layer for layer, size in enumerate(trace.expert_bytes or ()) if size == 3_059_712]
    assert [g for g, c in enumerate(shape.size_class) if c == 0] == large
    assert shape.n_slots == (len(large) * 16, (48 - len(large)) * 16)
    best = replay(library_path(), "belady", trace, shape)
    assert replay(library_path(), "cycle", trace, shape).hits < best.hits
    assert best.evictions == best.misses - sum(shape.n_slots)


def test_generated_traces_need_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--generated", "olmoe-like", "--tokens", "40", "--seed", "3", "--budgets", "25%", "--json")
    code, out, _ = simulate(capsys, *words)
    assert code == 0
    rows = json.loads(out)["rows"]
    assert {row["trace"] for row in rows} == {"olmoe-like, 40 tokens, seed 3"}
    assert {row["hits"] + row["misses"] for row in rows} == {40 * 16 * 8}
    assert json.loads(simulate(capsys, *words)[1])["rows"][0]["hits"] == rows[0]["hits"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no trace: name a trace file, or a preset with --generated"),
        (("TRACE", "--budgets", "0%"), "'0%' is not a share like 12.5%"),
        (("TRACE", "--budgets", "12.5%,"), "'' is not a share like 12.5%"),
        (("TRACE", "--budgets", "101%"), "'101%' is not a share like 12.5%"),
        (("TRACE", "--budgets", "nan"), "'nan' is not a share like 12.5%"),
        (("TRACE", "--budgets", "5%"), "5% is 0 of the 16 experts of small, and one layer of a token uses 2"),
        (("TRACE", "--policies", "lru,arc"), "'arc' is not a policy; all, or of lru, lfu"),
        (("TRACE", "--policies", ""), "'' is not a policy"),
        (("TRACE", "--phase", "prompt"), "prompt"),
        (("TRACE", "--by-bytes"), "--by-bytes: small does not say how large its experts are"),
        (("--generated", "gpt"), "'gpt' is not a preset; one of qwen3-30b-like"),
        (("missing.csv",), "cannot read the trace missing.csv"),
        (
            ("TRACE", "--budgets", "50%", "--csv", "/proc/nowhere/x.csv"),
            "/proc/nowhere/x.csv.partial: No such file",
        ),
    ],
)
def test_nonsense_is_one_line_and_an_exit_code(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = saved(tmp_path, small())
    code, out, err = simulate(capsys, *(path if word == "TRACE" else word for word in words))
    assert (code != 0, out) == (True, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_trace_without_decode_tokens_or_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path, small(phase=PROMPT))
    assert "has no decode tokens; add --phase all" in simulate(capsys, path)[2]
    assert simulate(capsys, path, "--phase", "all", "--budgets", "50%")[0] == 0
    path = saved(tmp_path, Trace("none", 2, 8, 2, (((), ()),), (DECODE,)))
    assert "holds tokens but no experts" in simulate(capsys, path)[2]


def test_of_the_usual_budgets_those_that_cannot_be_are_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = saved(tmp_path, small())
    code, out, err = simulate(capsys, path, "--policies", "lru", "--json")
    assert code == 0
    assert [row["budget"] for row in json.loads(out)["rows"]] == [12.5, 25, 50]
    assert [line.split(" is ")[0] for line in err.splitlines()] == [
        "guanaco: left out: --budgets: 3%",
        "guanaco: left out: --budgets: 6.25%",
    ]
    assert simulate(capsys, path, "--budgets", "3%,50%")[0] == 2


def test_a_table_is_written_to_a_device_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path, small())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert simulate(capsys, path, "--budgets", "50%", "--policies", "lru", "--csv", str(pipe))[0] == 0
    assert os.read(reader, 4096).startswith(b"trace,budget,slots,policy,")
    os.close(reader)
    assert pipe.is_fifo()


def test_the_least_budget_named_works(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = simulate(capsys, str(KIMI), "--budgets", "0.01%")
    least = err.rpartition("at least ")[2].strip()
    assert simulate(capsys, str(KIMI), "--budgets", least, "--policies", "lru")[0] == 0


def test_shares_are_exact() -> None:
    assert parse_shares("3%, 6.25 %,29") == [Fraction(3, 100), Fraction(1, 16), Fraction(29, 100)]
    assert parse_shares("25%,25%") == [Fraction(1, 4)]
    assert shape_for(small(), Fraction(1)).n_slots == (16,)


def test_policies_keep_their_order() -> None:
    assert parse_policies("all") == [*POLICIES, "belady"]
    assert parse_policies("belady, lru,belady") == ["belady", "lru"]


def test_a_library_that_cannot_simulate(tmp_path: Path) -> None:
    broken = tmp_path / "libguanaco.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(EngineError, match="cannot simulate"):
        NativeCache(broken, "lru", uniform_shape(1, 2, 2))


def test_the_library_refuses_an_unknown_policy_with_its_reason() -> None:
    with pytest.raises(UsageError, match="'arc'"):
        NativeCache(library_path(), "arc", uniform_shape(1, 2, 2))


def test_belady_of_the_whole_trace_misses_each_expert_once() -> None:
    trace = small()
    best = Belady(shape_for(trace, Fraction(1)), list(selections(trace))).replay()
    assert best is not None
    assert (best.misses, best.evictions) == (9, 0)


@pytest.mark.parametrize(
    "selection", [Selection(2, (0,)), Selection(0, (0, 0)), Selection(0, (9,)), Selection(0, (0,), 2)]
)
def test_a_selection_that_is_none_of_the_shape_is_refused(selection: Selection) -> None:
    with (
        NativeCache(library_path(), "lru", uniform_shape(2, 8, 4)) as cache,
        pytest.raises(ValueError, match="does not fit the shape"),
    ):
        cache.serve(selection)
