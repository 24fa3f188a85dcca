"""``/metrics`` in Prometheus' text format, from one snapshot. Pure. What is not known is not listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from guanaco.engine.native import DraftCounts, NativeStats
from guanaco.planner.plan import Plan
from guanaco.server.state import RequestCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Snapshot:
    model: str
    is_ready: bool
    load_s: float | None
    plan: Plan
    peak_bytes: int | None
    stats: NativeStats | None
    counts: RequestCounts
    n_waiting: int = 0  # for a slot
    drafting: DraftCounts | None = None


@dataclass(frozen=True)
class Family:
    """One metric and its samples: (labels, value)."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Mapping[str, str], float | int], ...]

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            yield f"{self.name}{{{pairs}}} {value}" if pairs else f"{self.name} {value}"


def render(snapshot: Snapshot) -> str:
    families = [*_general(snapshot), *_requests(snapshot.counts, snapshot.n_waiting)]
    if snapshot.stats is not None:
        families += _streaming(snapshot.stats)
    if snapshot.drafting is not None:
        families += _drafting(snapshot.drafting)
    return "\n".join(line for family in families if family.samples for line in family.lines()) + "\n"


def _general(snapshot: Snapshot) -> list[Family]:
    plan = snapshot.plan
    model = {"model": snapshot.model, "mode": plan.mode, "placement": plan.placement}
    return [
        Family("guanaco_model_info", "gauge", "The served model and its plan.", ((model, 1),)),
        _gauge("guanaco_ready", "1 when requests are answered.", int(snapshot.is_ready)),
        _gauge("guanaco_load_seconds", "Time from start to the first answer.", snapshot.load_s),
        _gauge("guanaco_memory_budget_bytes", "Memory budget.", plan.budget_bytes),
        _gauge("guanaco_memory_planned_bytes", "Planned memory, all parts.", plan.parts.total_bytes),
        _gauge("guanaco_memory_peak_bytes", "Highest resident memory.", snapshot.peak_bytes),
        _gauge("guanaco_context_tokens", "Context size.", plan.n_ctx),
    ]


def _requests(counts: RequestCounts, n_waiting: int) -> list[Family]:
    answered = tuple(
        ({"path": path, "status": str(status)}, count)
        for (path, status), count in sorted(counts.answered.items())
    )
    return [
        Family("guanaco_requests_total", "counter", "Answered requests.", answered),
        _gauge("guanaco_requests_in_flight", "Requests being answered.", counts.in_flight),
        _gauge("guanaco_requests_waiting", "Requests that wait for a slot (-np 2 or more).", n_waiting),
        _counter("guanaco_requests_cancelled_total", "Requests whose client left first.", counts.cancelled),
    ]


def _streaming(stats: NativeStats) -> list[Family]:
    io_mode = ((({"mode": stats.io_mode}), 1),) if stats.io_mode else ()
    return [
        Family("guanaco_io_info", "gauge", "How experts are really read.", io_mode),
        _gauge("guanaco_expert_arena_bytes", "Memory of the expert slots.", stats.arena_bytes),
        _gauge("guanaco_expert_slots", "Experts that fit in memory.", stats.slots),
        _gauge("guanaco_expert_groups_expected", "Groups of experts to stream.", stats.groups_expected),
        _gauge("guanaco_expert_groups_bound", "Groups of experts that are streamed.", stats.groups_bound),
        _counter("guanaco_expert_accesses_total", "Experts asked for.", stats.accesses),
        _counter("guanaco_expert_hits_total", "Experts found in memory.", stats.hits),
        _counter("guanaco_expert_misses_total", "Experts read from the drive.", stats.misses),
        _counter("guanaco_expert_evictions_total", "Experts dropped for others.", stats.evictions),
        _counter("guanaco_expert_evictions_hot_total", "Evictions of hot experts.", stats.evict_hot),
        _counter("guanaco_expert_evictions_reread_total", "Evicted and soon read again.", stats.evict_reread),
        _gauge("guanaco_expert_slots_hot", "Slots that hold a hot expert.", stats.hot_slots),
        _gauge("guanaco_experts_pinned", "Experts with a permanent pin.", stats.pinned),
        _counter(
            "guanaco_experts_preloaded_total", "Experts read before they were asked for.", stats.preloaded
        ),
        _counter(
            "guanaco_experts_overlapped_total", "Experts computed while others were read.", stats.overlapped
        ),
        _counter(
            "guanaco_expert_waves_total", "Selections that passed through few slots in waves.", stats.waves
        ),
        _counter("guanaco_expert_read_bytes_total", "Bytes read for experts.", stats.bytes_read),
        _counter("guanaco_expert_unmanaged_total", "Expert products not streamed.", stats.unmanaged),
        _counter("guanaco_expert_read_errors_total", "Reads that failed for good.", stats.read_errors),
        _counter("guanaco_expert_read_retries_total", "Reads that were repeated.", stats.read_retries),
        _counter("guanaco_expert_wait_seconds_total", "Time spent waiting for the drive.", stats.wait_s),
        _counter("guanaco_prefetch_calls_total", "Batches of expert reads.", stats.prefetch_calls),
        *_pilot(stats),
    ]


def _pilot(stats: NativeStats) -> list[Family]:
    return [
        _counter("guanaco_pilot_calls_total", "Layers whose experts were guessed.", stats.pilot_calls),
        _counter("guanaco_pilot_slices_total", "Slices read for guesses.", stats.pilot_slices),
        _counter("guanaco_pilot_guessed_total", "Experts guessed.", stats.pilot_guessed),
        _counter("guanaco_pilot_right_total", "Guesses that the router made true.", stats.pilot_right),
        _counter("guanaco_pilot_selected_total", "Experts that could be guessed.", stats.pilot_selected),
        _counter("guanaco_pilot_useful_total", "Early reads that were used.", stats.pilot_useful),
        _counter("guanaco_pilot_wasted_total", "Early reads that were not used.", stats.pilot_wasted),
        _counter("guanaco_pilot_wasted_bytes_total", "Bytes of those.", stats.pilot_wasted_bytes),
    ]


def _drafting(counts: DraftCounts) -> list[Family]:
    return [
        _counter("guanaco_draft_steps_total", "Steps of decoding with a drafter.", counts.steps),
        _counter("guanaco_draft_rests_total", "Those without a draft: it did not pay.", counts.rests),
        _counter("guanaco_draft_accepted_total", "Drafted tokens that were right.", counts.accepted),
        _counter("guanaco_draft_accesses_total", "Experts only wrong drafts asked for.", counts.accesses),
        _counter("guanaco_draft_hits_total", "Those that needed no read.", counts.hits),
    ]


def _gauge(name: str, text: str, value: float | None) -> Family:
    return Family(name, "gauge", text, () if value is None else (({}, value),))


def _counter(name: str, text: str, value: float) -> Family:
    return Family(name, "counter", text, (({}, value),))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
