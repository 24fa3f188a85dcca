"""The lines on stderr, the periodic one included, and the report of a run."""

from __future__ import annotations

import itertools
import re
import threading
import time
from dataclasses import replace

import pytest

from guanaco.cli import activity, log
from guanaco.cli.chat import Answer
from guanaco.cli.progress import ProgressLine
from guanaco.cli.summary import RunFacts, run_json, summary_lines
from guanaco.config import LoadConfig
from guanaco.engine.engine import LoadProgress
from guanaco.engine.native import NativeStats
from guanaco.units import MIB
from tests.support.specs import demo_spec

STATS = NativeStats(
    state="ready",
    io_mode="threads, O_DIRECT",
    arena_bytes=4 * MIB,
    slots=36,
    dense_bytes_total=100,
    dense_bytes_read=100,
    groups_expected=4,
    groups_bound=4,
    accesses=200,
    hits=158,
    misses=42,
    bytes_read=42_000,
    evictions=6,
    prefetch_calls=50,
    unmanaged=0,
    read_errors=0,
    read_retries=0,
    wait_s=0.5,
    graphs=12,
    tokens=12,
    pilot_calls=0,
    pilot_slices=0,
    pilot_guessed=0,
    pilot_right=0,
    pilot_selected=0,
    pilot_useful=0,
    pilot_wasted=0,
    pilot_wasted_bytes=0,
    overlapped=3,
    waves=0,
    pilot_control_right=0,
    pilot_control_total=0,
    replay_exhausted=False,
    last_error="",
    evict_hot=4,
    evict_reread=3,
    hot_slots=18,
)
ANSWER = Answer("hello", "", (1, 2), "stop", prompt_n=10, prompt_tps=100.0, decode_n=30, decode_tps=10.0)


def facts(**changes: object) -> RunFacts:
    spec = demo_spec(LoadConfig(demo_spec().config.model, load_mode="streaming", max_experts=9))
    before = replace(STATS, accesses=0, hits=0, bytes_read=0)
    base = RunFacts(spec.plan, "lru", "off", ("imatrix",), 1.5, 70 * MIB, before, STATS, (ANSWER,))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_storage_lines_keep_their_form() -> None:
    config, parsed = log.model_lines(demo_spec().model_map)
    assert re.fullmatch(
        r"\[Guanaco Storage\] Model config: qwen3moe, experts=32, top_k=4, layers=4, hidden=192", config
    )
    assert parsed == "[Guanaco Storage] Parsed 12 expert tensors across 4 layers (from 1 shard(s))"


def test_layers_for_prediction_are_not_counted_as_layers() -> None:
    model = demo_spec().model_map
    groups = (*model.groups[:-1], replace(model.groups[-1], is_mtp=True))
    config, parsed = log.model_lines(replace(model, groups=groups))
    assert "layers=3" in config
    assert "across 4 layers" in parsed


def test_a_dense_model_has_no_expert_lines() -> None:
    model = replace(demo_spec().model_map, groups=())
    assert log.model_lines(model) == ["[Guanaco Storage] Model config: qwen3moe, dense, layers=4, hidden=192"]


def test_the_cache_lines_count_what_was_measured() -> None:
    assert log.cache_lines(STATS, demo_spec().model_map) == [
        "[Guanaco HerdCache] pin cache: 79% resident (50% hot-pinned), 158/200 expert accesses, "
        "distinct experts pinned=18 across 12 tensors"
    ]
    assert log.final_line(STATS, ()) == (
        "[Guanaco HerdCache] final: 79% resident (50% hot-pinned), 200 expert accesses "
        "over 50 prefetch calls, evictions=6, pilot: 0 calls / 0 slices, evict_hot=4 evict_reread=3 "
        "(50% churn), bytes_read=42000, unmanaged=0"
    )
    assert log.final_line(replace(STATS, read_errors=2), ()).endswith("read_errors=2")
    nothing = replace(STATS, accesses=0, hits=0, evictions=0, evict_reread=0)
    assert "no accesses" in log.final_line(nothing, ())
    assert "(0% churn)" in log.final_line(nothing, ())


# As scripts of the original's users read them.
PIN_BUDGET = r"pin budget=(\d+) \(dynamic per-tensor (\d+)\.\.(\d+)\), experts pinned now=(\d+)"
PIN_CACHE = (
    r"pin cache: (\d+)% resident \((\d+)% hot-pinned\), (\d+)/(\d+) expert accesses, "
    r"distinct experts pinned=(\d+) across (\d+) tensors"
)
FINAL = (
    r"(\d+) expert accesses over (\d+) prefetch calls, evictions=(\d+), pilot: (\d+) calls / (\d+) slices, "
    r"evict_hot=(\d+) evict_reread=(\d+) \((\d+)% churn\), imatrix prior used"
)


def test_the_published_lines_are_kept() -> None:
    pinning = replace(
        STATS, pinned=33, least_pin_budget=6, most_pin_budget=9, pilot_calls=40, pilot_slices=90
    )
    budget, cache = log.cache_lines(pinning, demo_spec().model_map)
    found = [re.search(PIN_BUDGET, budget), re.search(PIN_CACHE, cache)]
    found.append(re.search(FINAL, log.final_line(pinning, ("imatrix",))))
    assert all(found)
    assert [match.groups() for match in found if match] == [
        ("9", "6", "9", "33"),
        ("79", "50", "158", "200", "33", "12"),
        ("200", "50", "6", "40", "90", "4", "3", "50"),
    ]


def test_what_was_read_early_was_not_resident() -> None:
    guessing = replace(STATS, pilot_slices=60, pilot_useful=20)
    (cache,) = log.cache_lines(guessing, demo_spec().model_map)
    assert "69% resident" in cache
    assert "138/200 expert accesses" in cache
    assert cache.endswith(", 10% read early")
    assert "10% read early" in log.final_line(guessing, ())
    shape = run_json(facts(after=guessing), {})["streaming"]
    assert (shape["hit_rate"], shape["resident_rate"]) == (0.79, 0.69)
    assert "10.0% read early" in "\n".join(summary_lines(facts(after=guessing)))


def test_the_json_says_what_policy_and_pilot_did() -> None:
    shape = run_json(facts(after=replace(STATS, pilot_calls=7, pilot_wasted=2, preloaded=5)), {})["streaming"]
    assert (shape["evict_hot"], shape["evict_reread"], shape["churn"]) == (4, 3, 0.5)
    assert (shape["hot_slots"], shape["pinned"], shape["overlapped"]) == (18, 0, 3)
    assert (shape["pilot"]["mode"], shape["pilot"]["calls"], shape["pilot"]["wasted"]) == ("off", 7, 2)
    assert (shape["prior"], shape["preloaded"]) == (["imatrix"], 5)
    assert run_json(facts(after=replace(STATS, evictions=0)), {})["streaming"]["churn"] is None


def test_the_periodic_line_comes_with_activity_only() -> None:
    seconds = activity.Activity(period_s=30.0)
    assert not any(seconds.step(0, 1.0) for _ in range(100))
    due = [seconds.step(count, 1.0) for count in range(1, 61)]
    assert [index + 1 for index, is_due in enumerate(due) if is_due] == [30, 60]


def test_the_reporter_reads_until_its_context_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "TICK_S", 0.01)
    monkeypatch.setattr(activity, "PERIOD_S", 0.03)
    accesses = itertools.count(1)
    seen: list[NativeStats] = []
    enough = threading.Event()

    def emit(stats: NativeStats) -> None:
        seen.append(stats)
        if len(seen) == 2:
            enough.set()

    with activity.ActivityReporter(lambda: replace(STATS, accesses=next(accesses)), emit):
        assert enough.wait(10)
    count = len(seen)
    time.sleep(0.1)
    assert len(seen) == count
    assert seen[1].accesses - seen[0].accesses == 3


def test_the_json_has_the_stable_shape() -> None:
    shape = run_json(facts(), {"placement": "stream"})
    assert shape["text"] == "hello"
    assert shape["tokens"] == [1, 2]
    assert shape["timings"] == {
        "prompt_n": 10, "prompt_tps": 100.0, "decode_n": 30, "decode_tps": 10.0, "load_s": 1.5,
    }  # fmt: skip
    assert set(shape["memory"]) == {"budget_bytes", "planned_bytes", "peak_bytes"}
    stable = {"mode", "io", "arena_bytes", "slots", "hits", "misses", "bytes_read", "unmanaged", "policy"}
    assert stable <= set(shape["streaming"])
    assert shape["streaming"]["hit_rate"] == 0.79
    assert shape["streaming"]["bytes_per_token"] == 42_000 / 40
    assert shape["plan"] == {"placement": "stream"}


def test_without_streaming_it_is_null() -> None:
    shape = run_json(facts(plan=demo_spec().plan, before=None, after=None), {})
    assert shape["streaming"] is None


def test_unknown_rates_are_null_not_zero() -> None:
    shape = run_json(facts(before=STATS), {})
    assert shape["streaming"]["hit_rate"] is None
    assert run_json(facts(peak_bytes=None), {})["memory"]["peak_bytes"] is None


def test_the_summary_names_every_promised_figure() -> None:
    text = "\n".join(summary_lines(facts()))
    for words in ("30 tokens at 10.0 tok/s", "hit rate 79.0%", "read per token", "threads, O_DIRECT",
                  "peak 70.0 MiB", "budget"):  # fmt: skip
        assert words in text
    assert "warning" not in text
    assert "warning: 3 expert products" in "\n".join(summary_lines(facts(after=replace(STATS, unmanaged=3))))


class Terminal:
    """Remembers what is written."""

    def __init__(self, is_terminal: bool) -> None:
        self.text = ""
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        """Nothing is kept back."""


def test_progress_on_a_terminal_is_one_line_and_goes_away() -> None:
    terminal = Terminal(True)
    with ProgressLine("m", terminal) as progress:  # type: ignore[arg-type]
        progress(LoadProgress(0.5, 0.4))
        progress(LoadProgress(None, 1.6))
    assert terminal.text.startswith("\r[guanaco] loading m 50% (0 s)\r[guanaco] loading m (2 s)")
    assert terminal.text.endswith("\r")
    assert "\n" not in terminal.text


def test_progress_elsewhere_is_an_occasional_line() -> None:
    stream = Terminal(False)
    with ProgressLine("m", stream) as progress:  # type: ignore[arg-type]
        for second in range(25):
            progress(LoadProgress(second / 25, float(second)))
    assert stream.text.splitlines() == ["[guanaco] loading m 40% (10 s)", "[guanaco] loading m 80% (20 s)"]


@pytest.mark.parametrize(("layers", "count"), [(None, 0), (0, 0), (99, 1)])
def test_layers_for_a_missing_card_are_ignored_aloud(layers: int | None, count: int) -> None:
    lines = log.card_lines(LoadConfig(demo_spec().config.model, n_gpu_layers=layers))
    assert len(lines) == count
    assert all("-ngl 99 is ignored" in text for text in lines)
