"""The JSON of a plan: what ``guanaco plan --json`` prints and every summary carries.

Owns the names, which are stable; more may be added. Pure.
"""

from __future__ import annotations

from typing import Any

from guanaco.planner.plan import Plan


def plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "placement": plan.placement,
        "mode": plan.mode,
        "vram_bytes": plan.vram_bytes,
        "host_bytes": plan.parts.total_bytes,
        "drive_bytes": plan.drive_bytes,
        "n_cpu_moe": plan.card.n_cpu_moe if plan.card else None,
        "devices": [dict(vars(part)) for part in plan.card.devices] if plan.card else [],
        "reserved_bytes": plan.card.reserved_bytes if plan.card else 0,
        "budget_bytes": plan.budget_bytes,
        "context_length": plan.card.talk.first_tokens if plan.card else plan.n_ctx,
        "slots": plan.slots,
        "limited_by": plan.limited_by,
        "parts": dict(vars(plan.parts)),
        "classes": [
            {"slots": item.slots, "stride_bytes": item.stride_bytes, "roles": list(item.roles)}
            for item in plan.classes
        ],
        "n_parallel": plan.n_parallel,
        "n_batch": plan.n_batch,
        "n_ubatch": plan.n_ubatch,
        "n_threads": plan.n_threads,
        "no_extra_bufts": plan.no_extra_bufts,
        "cache_ram_bytes": plan.cache_ram_bytes,
        "ctx_checkpoints": plan.ctx_checkpoints,
        "reason": plan.reason,
        "warnings": list(plan.warnings),
        "details": dict(plan.details),
    }
