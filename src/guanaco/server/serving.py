"""Runs the HTTP application and the engine together: both start, both end.

Owns the listening socket, the order of shutdown and the reason of an end. Open streams are told why before
their connections close; nothing is left running, and it takes well under three seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from guanaco.config import ServeConfig
from guanaco.engine.engine import Engine, EngineSpec, LoadProgress
from guanaco.engine.llama import ENGINE_LABEL
from guanaco.errors import AddressError, EngineError, GuanacoError, WorkerDiedError
from guanaco.server.app import create_app
from guanaco.server.bodies import BodyRoom
from guanaco.server.reading import ReadingRoom
from guanaco.server.saved_slots import SavedSlots, origin_of
from guanaco.server.state import Serving

_GRACE_S = 1
logger = logging.getLogger("guanaco")


def bind(config: ServeConfig) -> socket.socket:
    """Listen, or raise AddressError. With port 0 the socket knows the port."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family)
    except OSError as problem:
        # Python adds words of its own to a system error's text, and none to a resolver's.
        number = problem.errno or 0
        reason = os.strerror(number) if number > 0 else problem.strerror
        raise AddressError(
            f"cannot listen on {config.host}:{config.port}: {reason}; choose another --port or --host",
            host=config.host,
            port=config.port,
        ) from None


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class ModelServer:
    """One model on one socket, from ``run`` until a signal or the worker's end."""

    def __init__(
        self,
        spec: EngineSpec,
        listener: socket.socket,
        config: ServeConfig,
        *,
        on_progress: Callable[[LoadProgress], None],
        on_ready: Callable[[Engine], None],
    ) -> None:
        self.engine = Engine(spec, on_death=self._on_death)
        bodies = BodyRoom.of(spec.plan)
        self._serving = Serving(
            self.engine,
            bodies,
            ReadingRoom.of(spec.plan, bodies),
            n_slots=spec.plan.n_parallel,
            n_batch=spec.plan.n_batch,
            saved_slots=_saved_slots(spec),
        )
        self._listener = listener
        self._on_progress = on_progress
        self._on_ready = on_ready
        self._failure: GuanacoError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        _quiet_uvicorn()
        app = create_app(self._serving, config.api_keys)
        self._http = _HttpServer(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                http="h11",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            ),
            self._close,
        )

    def run(self) -> None:
        """Blocks; main thread only. Raises why it ended, if nobody asked for it."""
        with self.engine, _hang_up() as hang_up:
            self.engine.start()
            asyncio.run(self._run(hang_up))
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Ask ``run`` to return; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._http.end)

    async def _run(self, hang_up: _HangUp) -> None:
        self._loop = asyncio.get_running_loop()
        hang_up.tell(self._loop, self._http.end)
        loading = asyncio.create_task(self._load())
        await self._http.serve(sockets=[self._listener])
        await loading

    async def _load(self) -> None:
        try:
            await asyncio.to_thread(self.engine.wait_ready, self._progress)
        except GuanacoError as problem:
            if not self._http.should_exit:
                self._end(problem)
        except Exception as problem:  # noqa: BLE001 - else the server would say "loading" for ever
            self._end(EngineError(f"the load ended with an unexpected {problem!r}; please report it"))
        else:
            self._on_ready(self.engine)

    def _progress(self, progress: LoadProgress) -> None:
        self._serving.load_fraction = progress.fraction
        self._on_progress(progress)

    def _on_death(self, problem: WorkerDiedError) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, problem)

    def _end(self, problem: GuanacoError) -> None:
        self._failure = self._failure or problem
        self._serving.begin_close(problem)
        self._http.should_exit = True

    async def _close(self) -> None:
        self._serving.begin_close(self._failure)
        await asyncio.to_thread(self.engine.stop)
        await self._serving.aclose()


def _saved_slots(spec: EngineSpec) -> SavedSlots | None:
    folder = spec.config.slot_save_path
    return (
        None if folder is None else SavedSlots(folder, origin_of(spec.model_map, spec.config, ENGINE_LABEL))
    )


class _HangUp:
    """SIGHUP ends the server as SIGTERM does, which uvicorn sees to for itself."""

    def __init__(self) -> None:
        self.came = False

    def tell(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        def on_signal() -> None:
            self.came = True
            end()

        loop.add_signal_handler(signal.SIGHUP, on_signal)


@contextlib.contextmanager
def _hang_up() -> Iterator[_HangUp]:
    """For the length of a ``with`` block; then whoever cared before is told."""
    before, hang_up = signal.getsignal(signal.SIGHUP), _HangUp()
    try:
        yield hang_up
    finally:
        signal.signal(signal.SIGHUP, before)
    if hang_up.came:
        signal.raise_signal(signal.SIGHUP)


class _HttpServer(uvicorn.Server):
    """Ends the engine before the connections, so that open streams end with a reason."""

    def __init__(self, config: uvicorn.Config, before_shutdown: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._before_shutdown = before_shutdown

    def end(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._before_shutdown()
        await super().shutdown(sockets)


class _OneLine(logging.Formatter):
    """A failure in a request is one line, not a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        problem = record.exc_info[1] if record.exc_info else None
        text = record.getMessage().splitlines()[0]
        return f"guanaco: warning: {text}" + (f" ({problem!r})" if problem else "")


def _quiet_uvicorn() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        noisy = logging.getLogger(name)
        noisy.handlers[:] = [handler]
        noisy.setLevel(logging.ERROR)
        noisy.propagate = False
