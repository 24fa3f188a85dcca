"""A row of ``/v1/models``: the model, its plan and what has been measured. Unknown values are null."""

from __future__ import annotations

from typing import Any

from guanaco.engine.native import NativeStats
from guanaco.planner.memory import slot_context
from guanaco.server.state import Serving


def model_row(serving: Serving) -> dict[str, Any]:
    spec = serving.engine.spec
    plan = spec.plan
    return {
        "id": serving.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "guanaco",
        "state": serving.state,
        "placement": plan.placement,
        "mode": plan.mode,
        "vram_bytes": plan.vram_bytes,
        "context_length": slot_context(spec.model_map, plan.n_ctx, plan.n_parallel),
        "limited_by": plan.limited_by,
        "memory": {
            "budget_bytes": plan.budget_bytes,
            "planned_bytes": plan.parts.total_bytes,
            "peak_bytes": serving.engine.peak_bytes(),
        },
        "streaming": _streaming(serving.engine.stats()),
    }


def _streaming(stats: NativeStats | None) -> dict[str, Any] | None:
    if stats is None:
        return None
    return {
        "io": stats.io_mode,
        "arena_bytes": stats.arena_bytes,
        "slots": stats.slots,
        "hit_rate": stats.hits / stats.accesses if stats.accesses else None,
        "resident_rate": (stats.hits - stats.pilot_useful) / stats.accesses if stats.accesses else None,
        "bytes_read": stats.bytes_read,
        "bytes_per_token": stats.bytes_read / stats.tokens if stats.tokens else None,
        "unmanaged": stats.unmanaged,
    }
