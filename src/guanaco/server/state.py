"""What the routes share: the engine, its state and a few counts. One owner: the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from guanaco.engine.engine import Engine
from guanaco.errors import EngineError, GuanacoError
from guanaco.planner.memory import slot_context
from guanaco.server.abandoned import Abandoned
from guanaco.server.bodies import BodyRoom
from guanaco.server.costs import ModelSizes
from guanaco.server.problems import RequestError
from guanaco.server.reading import ReadingRoom
from guanaco.server.saved_slots import SavedSlots
from guanaco.server.scheduler import Scheduler, Seen

_CONNECT_TIMEOUT_S = 10.0
_PING_S = 30  # the engine's default
_KEEPALIVE_S = 2.0  # the worker closes an idle connection after 5


@dataclass
class RequestCounts:
    """Since the start of the server."""

    answered: Counter[tuple[str, int]] = field(default_factory=Counter)  # (path, status)
    in_flight: int = 0
    cancelled: int = 0  # the client left first


class Serving:
    """One model behind one address."""

    def __init__(
        self,
        engine: Engine,
        bodies: BodyRoom | None = None,
        reading: ReadingRoom | None = None,
        *,
        n_slots: int = 1,
        n_batch: int = 1,
        saved_slots: SavedSlots | None = None,
    ) -> None:
        self.engine = engine
        self.bodies = bodies or BodyRoom()
        self.reading = reading or ReadingRoom()
        self.counts = RequestCounts()
        self.created = int(time.time())
        self.load_fraction: float | None = None
        self.saved_slots = saved_slots
        self.saving = asyncio.Lock()  # around a file and its mark
        self.slot_actions = 0
        self._upstream: httpx.AsyncClient | None = None
        self._is_closing = False
        self.abandoned = Abandoned(self._running_graph, self._give_up)
        self.scheduler = Scheduler(n_slots, n_batch, self._look)

    @property
    def sizes(self) -> ModelSizes:
        model, plan = self.engine.spec.model_map, self.engine.spec.plan
        n_ctx = slot_context(model, plan.n_ctx, plan.n_parallel)
        return ModelSizes(n_ctx=n_ctx, n_vocab=model.n_vocab, n_embd=model.n_embd)

    @property
    def ping_s(self) -> int:
        """A stream that is silent so long gets a comment; below 1: never."""
        asked = self.engine.spec.config.sse_ping_s
        return _PING_S if asked is None else asked

    @property
    def name(self) -> str:
        return self.engine.spec.alias

    @property
    def state(self) -> str:
        if self.engine.died is not None:
            return "failed"
        return "ready" if self.engine.load_s is not None else "loading"

    def upstream(self) -> httpx.AsyncClient:
        """The client of the worker's own server. Raises while there is nobody to ask."""
        if self.engine.died is not None:
            raise self.engine.died
        if self.state != "ready":
            raise RequestError(503, "the model is still loading", progress=self.load_fraction)
        if self._is_closing:
            raise EngineError("the server is shutting down")
        if self._upstream is None:
            # A generation may be silent for as long as it takes; only connecting has a limit.
            self._upstream = httpx.AsyncClient(
                base_url=f"http://{self.engine.address}",
                headers={"Authorization": f"Bearer {self.engine.api_key}"},
                timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=4, keepalive_expiry=_KEEPALIVE_S
                ),
                trust_env=False,
                verify=False,  # noqa: S501 - loopback without TLS; spares loading certificates
            )
        return self._upstream

    async def explain(self, problem: httpx.HTTPError) -> GuanacoError:
        """Why a connection to the worker broke."""
        reason = await asyncio.to_thread(self.engine.explain_loss)
        if reason is not None:
            return reason
        if not self.engine.is_running:
            return EngineError("the server is shutting down")
        return EngineError(f"the connection to the worker broke: {problem!r}")

    def _running_graph(self) -> int:
        # A drafting model's context must not lose a batch that the other has computed.
        if self.engine.spec.config.has_draft_context:
            return 0
        return self.engine.running_graph()

    def _give_up(self, number: int) -> None:
        self.engine.control("give_up", number)

    async def _look(self) -> list[Seen] | None:
        """The engine's slots by their numbers. It says so between two batches."""
        try:
            slots = (await self.upstream().get("/slots")).json()
            return [
                Seen(
                    is_busy=slot["is_processing"],
                    has_begun=slot["is_processing"] and slot["next_token"][0]["n_decoded"] > 0,
                )
                for slot in sorted(slots, key=lambda slot: int(slot["id"]))
            ]
        except (GuanacoError, httpx.HTTPError, RuntimeError, ValueError, LookupError, TypeError):
            return None  # what is wrong with the worker is said to those who ask it for an answer

    def begin_close(self, problem: GuanacoError | None = None) -> None:
        """Who waits for a slot gets ``problem``, or hears that the server is shutting down."""
        self._is_closing = True
        self.scheduler.close(problem or EngineError("the server is shutting down"))

    async def aclose(self) -> None:
        await self.scheduler.aclose()
        await self.abandoned.aclose()
        if self._upstream is not None:
            await self._upstream.aclose()
