"""What a run reports: one stable JSON object, and a few lines for people. Pure.

Rates are of this run's requests; ``hits``, ``misses`` and ``bytes_read`` count from the start of the worker,
so that they can be compared with the process's own I/O counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guanaco.cli.chat import Answer
from guanaco.cli.log import churn, hit_rate, without_read
from guanaco.engine.native import DraftCounts, NativeStats
from guanaco.planner.plan import Plan
from guanaco.units import format_bytes


@dataclass(frozen=True)
class RunFacts:
    """What was measured while one or more questions were answered. ``None``: not streaming, or not known."""

    plan: Plan
    policy: str
    pilot: str
    prior: Sequence[str]  # what the cache was started with: "imatrix", "profile"
    load_s: float | None
    peak_bytes: int | None
    before: NativeStats | None
    after: NativeStats | None
    answers: Sequence[Answer]
    draft_sources: Sequence[str] = ()
    drafting: DraftCounts | None = None

    @property
    def tokens_processed(self) -> int:
        return sum(answer.prompt_n + answer.decode_n for answer in self.answers)

    @property
    def hit_rate(self) -> float | None:
        if self.before is None or self.after is None:
            return None
        return hit_rate(self.after.hits - self.before.hits, self.after.accesses - self.before.accesses)

    @property
    def resident_rate(self) -> float | None:
        """Accesses that needed no read; the rest of the hits was read early."""
        if self.before is None or self.after is None:
            return None
        found = without_read(self.after) - without_read(self.before)
        return hit_rate(found, self.after.accesses - self.before.accesses)

    @property
    def bytes_per_token(self) -> float | None:
        """Read from the drive per token of prompt and answer."""
        if self.before is None or self.after is None or not self.tokens_processed:
            return None
        return (self.after.bytes_read - self.before.bytes_read) / self.tokens_processed


def run_json(facts: RunFacts, plan_json: dict[str, Any]) -> dict[str, Any]:
    """The object ``run --json`` prints, for the last answer."""
    answer = facts.answers[-1]
    shape: dict[str, Any] = {
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish_reason": answer.finish_reason,
        "timings": {
            "prompt_n": answer.prompt_n,
            "prompt_tps": answer.prompt_tps,
            "decode_n": answer.decode_n,
            "decode_tps": answer.decode_tps,
            "load_s": facts.load_s,
        },
        "memory": {
            "budget_bytes": facts.plan.budget_bytes,
            "planned_bytes": facts.plan.parts.total_bytes,
            "peak_bytes": facts.peak_bytes,
        },
        "streaming": streaming_json(facts),
        "drafting": drafting_json(facts),
        "plan": plan_json,
    }
    if answer.reasoning:
        shape["reasoning"] = answer.reasoning
    return shape


def streaming_json(facts: RunFacts) -> dict[str, Any] | None:
    stats = facts.after
    if facts.plan.mode != "streaming" or stats is None:
        return None
    return {
        "mode": facts.plan.mode,
        "io": stats.io_mode,
        "policy": facts.policy,
        "arena_bytes": stats.arena_bytes,
        "slots": stats.slots,
        "accesses": stats.accesses,
        "hits": stats.hits,
        "misses": stats.misses,
        "evictions": stats.evictions,
        "evict_hot": stats.evict_hot,
        "evict_reread": stats.evict_reread,
        "churn": churn(stats),
        "hot_slots": stats.hot_slots,
        "pinned": stats.pinned,
        "bytes_read": stats.bytes_read,
        "unmanaged": stats.unmanaged,
        "read_errors": stats.read_errors,
        "hit_rate": facts.hit_rate,
        "resident_rate": facts.resident_rate,
        "bytes_per_token": facts.bytes_per_token,
        "prefetch_calls": stats.prefetch_calls,
        "overlapped": stats.overlapped,
        "waves": stats.waves,
        "pilot": pilot_json(facts.pilot, stats),
        "prior": list(facts.prior),
        "preloaded": stats.preloaded,
    }


def drafting_json(facts: RunFacts) -> dict[str, Any] | None:
    """Steps of decoding, those without a draft because it did not pay, and drafted tokens that were right."""
    if facts.drafting is None:
        return None
    return {"sources": list(facts.draft_sources), **vars(facts.drafting)}


def pilot_json(mode: str, stats: NativeStats) -> dict[str, Any]:
    """Guesses of the next layer's experts: made, right of those the layers did select, and what was read."""
    return {
        "mode": mode,
        "calls": stats.pilot_calls,
        "slices": stats.pilot_slices,
        "guessed": stats.pilot_guessed,
        "right": stats.pilot_right,
        "selected": stats.pilot_selected,
        "useful": stats.pilot_useful,
        "wasted": stats.pilot_wasted,
        "wasted_bytes": stats.pilot_wasted_bytes,
    }


def summary_lines(facts: RunFacts) -> list[str]:
    """Speed, cache and memory, for stderr."""
    lines = [f"[guanaco] {_speed(facts)}"]
    stats = facts.after
    if facts.plan.mode == "streaming" and stats is not None:
        rate, per_token = facts.hit_rate, facts.bytes_per_token
        words = [f"experts in RAM: {stats.slots} slots, {format_bytes(stats.arena_bytes)}"]
        if rate is not None:
            words.append(f"hit rate {rate:.1%}")
        if rate is not None and facts.resident_rate is not None and facts.resident_rate < rate:
            words.append(f"{rate - facts.resident_rate:.1%} read early")
        if per_token is not None:
            words.append(f"{format_bytes(round(per_token))} read per token")
        words.append(f"I/O: {stats.io_mode or 'unknown'}")
        lines.append(f"[guanaco] {', '.join(words)}")
        if stats.unmanaged:
            lines.append(f"[guanaco] warning: {stats.unmanaged} expert products were not streamed")
    planned, budget = format_bytes(facts.plan.parts.total_bytes), format_bytes(facts.plan.budget_bytes)
    lines.append(
        f"[guanaco] memory: peak {format_bytes(facts.peak_bytes)} of parent and worker, "
        f"planned {planned}, budget {budget}"
    )
    return lines


def _speed(facts: RunFacts) -> str:
    decoded = sum(answer.decode_n for answer in facts.answers)
    prompted = sum(answer.prompt_n for answer in facts.answers)
    words = [
        f"answer: {decoded} tokens{_rate([(a.decode_n, a.decode_tps) for a in facts.answers])}",
        f"prompt: {prompted} tokens{_rate([(a.prompt_n, a.prompt_tps) for a in facts.answers])}",
    ]
    if facts.load_s is not None:
        words.append(f"loaded in {facts.load_s:.1f} s")
    return ", ".join(words)


def _rate(parts: Sequence[tuple[int, float | None]]) -> str:
    """Tokens over the time of all answers together."""
    timed = [(count, tps) for count, tps in parts if tps]
    seconds = sum(count / tps for count, tps in timed)
    return f" at {sum(count for count, _ in timed) / seconds:.1f} tok/s" if seconds > 0 else ""
