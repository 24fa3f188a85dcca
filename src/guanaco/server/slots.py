"""Slots of the engine: what they do, and conversations saved to a file, as with llama-server.

Owns reading and checking these requests. Leaves answering to the worker through ``relay``, and judging file
names too: the engine takes none that leads out of the folder.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from guanaco.server.openai import Shared, checked_body, documented
from guanaco.server.problems import RequestError
from guanaco.server.relay import RelayResponse
from guanaco.server.schemas import SlotRequest

private = APIRouter()


@private.get("/slots", response_model=None)
async def slots(serving: Shared) -> Response:
    """What each slot is doing, as llama-server gives it."""
    return RelayResponse(serving, "/slots", None)


@private.post("/slots/{slot}", response_model=None, openapi_extra=documented(SlotRequest))
async def slot_action(
    slot: int, action: Literal["save", "restore", "erase"], request: Request, serving: Shared
) -> Response:
    """Save a slot's conversation to a file, restore it from one, or erase it."""
    n_slots = serving.engine.spec.plan.n_parallel
    if not 0 <= slot < n_slots:
        raise RequestError(400, f"there is no slot {slot}; this server has {n_slots}, from 0 up", "slot")
    if action != "erase" and serving.engine.spec.config.slot_save_path is None:
        raise RequestError(501, "this server saves no slots; start it with --slot-save-path FOLDER", "action")
    body = await checked_body(request, serving, SlotRequest)
    return RelayResponse(serving, f"/slots/{slot}?action={action}", body)
