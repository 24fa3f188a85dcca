"""``POST /slots/{id}?action=save|restore|erase``, as in llama-server.

Owns the order of each action around the engine's own. Leaves files to ``saved_slots``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from guanaco.server.bodies import Body
from guanaco.server.openai import Shared
from guanaco.server.problems import RequestError
from guanaco.server.relay import RelayResponse
from guanaco.server.saved_slots import SavedSlots
from guanaco.server.state import Serving

router = APIRouter()


class SavedSlot(BaseModel):
    """Where a slot is saved."""

    filename: str


@router.get("/slots", response_model=None)
async def slots(serving: Shared) -> Response:
    """What the engine says of its slots."""
    return RelayResponse(serving, "/slots")


@router.post("/slots/{id_slot}", response_model=None)
async def act(
    id_slot: int, action: Annotated[str, Query()], request: Request, serving: Shared
) -> JSONResponse:
    """Keep a conversation's keys and values in a file, take them back, or forget them."""
    scheduler = serving.scheduler
    if not 0 <= id_slot < scheduler.n_slots:
        raise RequestError(
            400, f"there is no slot {id_slot}; they go from 0 to {scheduler.n_slots - 1}", "id_slot"
        )
    serving.upstream()
    if action not in ("save", "restore", "erase"):
        raise RequestError(400, f"action {action!r} is unknown; use save, restore or erase", "action")
    saved = serving.saved_slots
    if saved is None:
        raise RequestError(501, "slots are not saved here; start the server with --slot-save-path FOLDER")
    if action == "erase":
        answer = await _ask(serving, id_slot, action, {})
        scheduler.remember(id_slot, b"")
        return answer
    name = await _filename(request, serving)
    if action == "save":
        return await _save(serving, saved, id_slot, name)
    conversation = await asyncio.to_thread(saved.check, name)
    answer = await _ask(serving, id_slot, action, {"filename": name})
    is_back = answer.status_code == httpx.codes.OK
    scheduler.remember(id_slot, conversation if is_back else b"")
    return answer


async def _save(serving: Serving, saved: SavedSlots, id_slot: int, name: str) -> JSONResponse:
    partial = saved.partial_name(name)
    async with serving.saving:  # two of one name would write the same file
        try:
            answer = await _ask(serving, id_slot, "save", {"filename": partial}, shown=name)
            if answer.status_code == httpx.codes.OK:
                conversation = serving.scheduler.conversation(id_slot)
                await asyncio.to_thread(saved.keep, name, conversation)
            return answer
        finally:
            await asyncio.to_thread(saved.drop, name)


async def _ask(
    serving: Serving, id_slot: int, action: str, body: dict[str, Any], shown: str | None = None
) -> JSONResponse:
    """The engine's answer. It waits until the slot is free. ``shown``: the file's name in it."""
    async with serving.abandoned.passed_on():
        answer = await serving.upstream().post(f"/slots/{id_slot}", params={"action": action}, json=body)
    content = answer.json()
    if shown is not None and "filename" in content:
        content["filename"] = shown
    return JSONResponse(content, status_code=answer.status_code)


async def _filename(request: Request, serving: Serving) -> str:
    body = Body(serving.bodies)
    try:
        announced = request.headers.get("content-length", "")
        await body.read(int(announced) if announced.isdecimal() else 0, request.stream())
        body.check_parsed()
        return SavedSlot.model_validate_json(body.content).filename
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, error["loc"])) or "body"
        raise RequestError(400, f"{where}: {error['msg']}", where) from None
    finally:
        body.release()
