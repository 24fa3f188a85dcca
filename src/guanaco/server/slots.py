"""``/slots``, as in llama-server: what the engine says of them; saving, restoring and erasing one.

Owns the order of each action around the engine's own. Leaves files to ``saved_slots``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from guanaco.errors import EngineError
from guanaco.server.bodies import Body
from guanaco.server.openai import Shared, read_checked
from guanaco.server.problems import RequestError
from guanaco.server.relay import RelayResponse, until_gone
from guanaco.server.saved_slots import SavedSlots
from guanaco.server.state import Serving

_PATH = "/slots/{id_slot}"
_MOST_WAITING = 64  # for their slots
router = APIRouter()


class SavedSlot(BaseModel):
    """Where a slot is saved."""

    filename: str


@router.get("/slots", response_model=None)
async def slots(serving: Shared) -> Response:
    """What the engine says of its slots."""
    return RelayResponse(serving, "/slots")


@router.post(_PATH, response_model=None)
async def act(
    id_slot: int, action: Annotated[str, Query()], request: Request, serving: Shared
) -> JSONResponse:
    """Keep a conversation's keys and values in a file, take them back, or forget them."""
    n_slots = serving.scheduler.n_slots
    if not 0 <= id_slot < n_slots:
        raise RequestError(400, f"there is no slot {id_slot}; they go from 0 to {n_slots - 1}", "id_slot")
    if action not in ("save", "restore", "erase"):
        raise RequestError(400, f"action {action!r} is unknown; use save, restore or erase", "action")
    saved = serving.saved_slots
    if saved is None:
        raise RequestError(501, "slots are not saved here; start the server with --slot-save-path FOLDER")
    if serving.slot_actions >= _MOST_WAITING:
        raise RequestError(503, f"{_MOST_WAITING} actions wait for their slots already; send it again later")
    name = "" if action == "erase" else await _filename(request, serving)
    work = {"save": _save, "restore": _restore, "erase": _erase}[action]
    serving.slot_actions += 1
    try:
        return await _unless_gone(request, work(serving, saved, id_slot, name))
    finally:
        serving.slot_actions -= 1


async def _save(serving: Serving, saved: SavedSlots, id_slot: int, name: str) -> JSONResponse:
    partial = saved.partial_name(name)
    scheduler = serving.scheduler
    stamp = scheduler.stamp(id_slot)
    try:
        answer = await _ask(serving, id_slot, "save", {"filename": partial}, shown=name)
        if answer.status_code == httpx.codes.OK:
            is_same = scheduler.stamp(id_slot) == stamp  # else another request has had the slot since
            conversation = scheduler.conversation(id_slot) if is_same else b""
            async with serving.saving:
                await asyncio.to_thread(saved.keep, name, partial, conversation)
        return answer
    finally:
        saved.drop(partial)


async def _restore(serving: Serving, saved: SavedSlots, id_slot: int, name: str) -> JSONResponse:
    async with serving.saving:
        conversation = await asyncio.to_thread(saved.check, name)
    answer = await _ask(serving, id_slot, "restore", {"filename": name})
    is_back = answer.status_code == httpx.codes.OK
    serving.scheduler.remember(id_slot, conversation if is_back else b"")
    return answer


async def _erase(serving: Serving, saved: SavedSlots, id_slot: int, name: str) -> JSONResponse:
    answer = await _ask(serving, id_slot, "erase", {})
    serving.scheduler.remember(id_slot, b"")
    return answer


async def _ask(
    serving: Serving, id_slot: int, action: str, body: dict[str, Any], shown: str | None = None
) -> JSONResponse:
    """The engine's answer. It waits until the slot is free. ``shown``: the file's name in it."""
    upstream = serving.upstream()
    await serving.abandoned.over()
    try:
        answer = await upstream.post(f"/slots/{id_slot}", params={"action": action}, json=body)
        content = answer.json()
    except httpx.HTTPError as problem:
        raise await serving.explain(problem) from None
    except ValueError:
        raise EngineError(f"the engine's answer to {action} is no JSON; please report it") from None
    if shown is not None and "filename" in content:
        content["filename"] = shown
    serving.counts.answered[_PATH, answer.status_code] += 1
    return JSONResponse(content, status_code=answer.status_code)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, JSONResponse]) -> JSONResponse:
    """What ``work`` gives; it is cancelled when the client leaves first."""
    asked, leaving = asyncio.create_task(work), asyncio.create_task(until_gone(request.receive))
    try:
        await asyncio.wait({asked, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise ClientDisconnect
        return asked.result()
    finally:
        for task in (asked, leaving):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _filename(request: Request, serving: Serving) -> str:
    body = Body(serving.bodies)
    try:
        return (await read_checked(request, body, SavedSlot)).filename
    finally:
        body.release()
