"""One loaded model, seen from the parent: start its worker, prove that it works, hand out clients, end it.

Owns the order of a load and what is known about a running worker: address, counters, memory. Leaves
parameters to ``llama``, the process to ``process``, expert streaming to the native library and requests to
``client``. Refuses a load whose experts are not all streamed although the plan says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from guanaco.config import LoadConfig, SamplingConfig
from guanaco.engine import llama, native
from guanaco.engine.client import EngineClient, Explain
from guanaco.engine.cpus import one_each
from guanaco.engine.heat import HeatFile, LayerHeat
from guanaco.engine.launch import RunFiles, worker_environment
from guanaco.engine.memory import PeakMeter, resident_bytes
from guanaco.engine.native import DraftCounts, NativeStats, StatsFile
from guanaco.engine.process import WorkerProcess
from guanaco.engine.spin import spin_count
from guanaco.errors import EngineError, GuanacoError, WorkerDiedError
from guanaco.model.map import ModelMap
from guanaco.planner.plan import Plan
from guanaco.units import MIB

# -P: a json.py in the folder somebody stands in is not ours to import.
WORKER_COMMAND = (sys.executable, "-P", "-m", "guanaco.engine.worker")
_TICK_S = 0.2
_EMPTY_WORKER_BYTES = 48 * MIB  # interpreter and engine library, before any weight


@dataclass(frozen=True)
class EngineSpec:
    """Everything that decides how one worker runs."""

    model_map: ModelMap
    config: LoadConfig
    plan: Plan
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    verbose: bool = False
    prior: tuple[tuple[float, ...], ...] = ()  # uses a token to expect, by group and expert; (): unknown
    native_extra: dict[str, Any] = field(default_factory=dict)  # more keywords for ``native.plan_text``
    environment: dict[str, str | None] = field(default_factory=dict)  # of the worker; None removes
    warmup: bool = True  # llama.cpp's empty run after loading; never with streaming
    bind_threads: bool = True  # to a processor each, where there are as many

    @property
    def alias(self) -> str:
        return self.config.alias or self.model_map.name

    @property
    def is_streaming(self) -> bool:
        return self.plan.mode == "streaming"

    @property
    def is_preloaded(self) -> bool:
        """A benchmark's peer is not streamed, but its routing is replayed by the same library, and whether
        drafting pays is measured by it."""
        return self.is_streaming or bool(self.native_extra) or bool(self.config.draft_sources)


@dataclass(frozen=True)
class LoadProgress:
    fraction: float | None  # None: not known
    elapsed_s: float


class Engine:
    """``start`` and ``wait_ready`` once, then ``client`` as often as you like, then ``stop``."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        on_death: Callable[[WorkerDiedError], None] | None = None,
    ) -> None:
        self.spec = spec
        self.address: str | None = None  # host:port, once loaded
        self.api_key = os.urandom(24).hex()
        self.load_s: float | None = None
        self._command = tuple(command)
        self._on_death = on_death
        self._process: WorkerProcess | None = None
        self._files: RunFiles | None = None
        self._stats_file: StatsFile | None = None
        self._heat_file: HeatFile | None = None
        self._last_heat: tuple[LayerHeat, ...] | None = None
        self._last_stats: NativeStats | None = None
        self._peak: PeakMeter | None = None
        self._started_at = 0.0

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def died(self) -> WorkerDiedError | None:
        return None if self._process is None else self._process.died

    def start(self) -> None:
        """Start the worker and return at once. Main thread only. Raises EngineError when it cannot start."""
        try:
            library = self._write_plan() if self.spec.is_preloaded else None
            cpus = self._cpus()
            settings = self._settings(library, cpus)
            environment = worker_environment(
                os.environ,
                library=library,
                plan_file=None if self._files is None else self._files.plan,
                verbose=self.spec.verbose,
                spin_count=spin_count(is_bound=bool(cpus)),
            )
            for name, value in self.spec.environment.items():
                environment.pop(name, None)
                if value is not None:
                    environment[name] = value
            self._started_at = time.monotonic()
            self._process = WorkerProcess(self._command, settings.to_json(), environment, self._on_death)
            self._peak = PeakMeter((os.getpid(), self._process.pid))
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, progress: Callable[[LoadProgress], None] | None = None) -> None:
        """Block until the model answered a probe. Raises EngineError or WorkerDiedError with the reason."""
        if self._process is None:
            raise RuntimeError("start the engine first")
        try:
            self.address = self._await_address(self._process, progress or (lambda _: None))
            self._prove_life()
        except GuanacoError:
            self.stop()
            raise
        self.load_s = time.monotonic() - self._started_at
        if self.spec.is_streaming and any(self.spec.prior):
            self.control("warm_start", 1)

    def client(self) -> EngineClient:
        """Requests to the loaded model. Raises WorkerDiedError when there is none any more."""
        if self.died is not None:
            raise self.died
        if self.address is None:
            raise EngineError("the model is still loading; try again in a moment")
        return EngineClient(self.address, self.api_key, self.explain_loss, self.watch_faults)

    def explain_loss(self, patience_s: float = 2.0) -> WorkerDiedError | None:
        """The reason of a broken connection, when it is the worker's end. Blocks up to ``patience_s``."""
        return None if self._process is None else self._process.explain_loss(patience_s)

    def watch_faults(self) -> Explain:
        """Call it when a request begins: the result adds to the engine's words which read failed since."""
        before = self.stats()
        errors_before = 0 if before is None else before.read_errors

        def explain(message: str) -> str:
            stats = self.stats()
            if message != llama.COMPUTE_ERROR or stats is None or stats.read_errors == errors_before:
                return message
            return f"{message.rstrip('.')}: {stats.last_error}"

        return explain

    def stats(self) -> NativeStats | None:
        """Counters of the expert store, after the end the last known ones; None without streaming."""
        counters = self._counters()
        return counters if self.spec.is_streaming or self.spec.native_extra else None

    def drafting(self) -> DraftCounts | None:
        """How drafting goes, after the end how it went; None where nothing drafts."""
        counters = self._counters()
        if counters is None or not self.spec.config.draft_sources:
            return None
        return DraftCounts(
            counters.draft_steps,
            counters.draft_rests,
            counters.draft_accepted,
            counters.draft_accesses,
            counters.draft_hits,
        )

    def _counters(self) -> NativeStats | None:
        if self._files is not None and self._stats_file is not None:
            with contextlib.suppress(FileNotFoundError):  # another thread is just stopping it
                self._last_stats = self._stats_file.read() or self._last_stats
        return self._last_stats

    def heat(self) -> tuple[LayerHeat, ...] | None:
        """How hot each expert is, by layer; after the end the last known; None without streaming."""
        if self._files is not None and self._heat_file is not None:
            with contextlib.suppress(FileNotFoundError):
                self._last_heat = self._heat_file.read() or self._last_heat
        return self._last_heat

    def control(self, name: str, value: int) -> None:
        """Set a control word of the native library (replay, test faults). Raises EngineError without one."""
        if self._stats_file is None:
            raise EngineError(f"no native library is preloaded, so {name} cannot be set")
        self._stats_file.control(name, value)

    def running_graph(self) -> int:
        """Number of the graph that the worker computes right now; 0: none, or not known without streaming.

        ``control("give_up", number)`` has it fail at its next step.
        """
        return 0 if self._stats_file is None else self._stats_file.running_graph()

    def peak_bytes(self) -> int | None:
        """Highest resident memory of parent and worker so far, see ``engine.memory``."""
        if self._peak is None:
            return None
        self._peak.sample()
        return self._peak.peak_bytes

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the worker and remove its files; may be called twice. Blocks ``timeout_s`` and a moment."""
        self.peak_bytes()
        self.stats()
        if self._process is not None:
            self._process.stop(timeout_s)
        self.heat()
        files, self._files = self._files, None
        if files is not None:
            files.remove()

    def _settings(self, library: Path | None, cpus: tuple[int, ...]) -> llama.WorkerSettings:
        return llama.worker_settings(
            self.spec.config,
            self.spec.plan,
            self.spec.sampling,
            first_file=self.spec.model_map.files[0].path,
            alias=self.spec.alias,
            api_key=self.api_key,
            preload=None if library is None else str(library),
            verbose=self.spec.verbose,
            warmup=self.spec.warmup,
            cpus=cpus,
        )

    def _cpus(self) -> tuple[int, ...]:
        if not self.spec.bind_threads:
            return ()
        n_threads = self.spec.plan.n_threads
        counts = {n_threads, self.spec.config.n_threads_batch or n_threads}
        return one_each(counts, os.sched_getaffinity(0), os.environ, llama.MOST_CPUS)

    def _write_plan(self) -> Path:
        library = native.library_path()
        self._files = RunFiles()
        groups = zip(self.spec.model_map.groups, self.spec.plan.group_class, strict=True)
        with self._files.writing():
            self._stats_file = StatsFile(self._files.stats)
            self._heat_file = HeatFile(self._files.heat, [g.n_expert for g, index in groups if index >= 0])
        text = native.plan_text(
            self.spec.model_map,
            self.spec.plan,
            self.spec.config.io,
            self._files.stats,
            engine=llama.ENGINE_LABEL,
            heat_path=self._files.heat,
            prior=self.spec.prior,
            policy=self.spec.config.policy,
            pilot=self.spec.config.pilot,
            pilot_mass=self.spec.config.pilot_mass,
            batch_threads=self.spec.config.n_threads_batch,
            **{
                "decode_tokens": self.spec.config.decode_tokens,
                "has_mtp": self.spec.config.drafts_by_mtp,
                "draft_always": self.spec.config.draft_always,
                # Without streaming or a replay the library is there for the drafts alone.
                "manage": self.spec.is_streaming or bool(self.spec.native_extra),
                **self.spec.native_extra,
            },
        )
        with self._files.writing():
            self._files.plan.write_text(text)
            return self._files.preloadable(library)

    def _await_address(self, process: WorkerProcess, progress: Callable[[LoadProgress], None]) -> str:
        for event in process.events(_TICK_S):
            progress(LoadProgress(self._fraction(process.pid), time.monotonic() - self._started_at))
            if event is None:
                continue
            if event["event"] == "ready":
                return str(event["address"])
            if event["event"] == "error":
                raise self._load_error(process, str(event["message"]), event.get("details") or {})
        raise process.explain_loss(5.0) or EngineError("the worker closed its event pipe while loading")

    def _load_error(self, process: WorkerProcess, message: str, details: dict[str, Any]) -> EngineError:
        stats = self.stats()
        if stats is not None and stats.last_error:
            message = f"{message}: {stats.last_error}"
        elif "engine_message" in details:
            message = ": ".join([message, *process.last_errors()[:1]])
        return EngineError(message, **details)

    def _fraction(self, pid: int) -> float | None:
        stats = self.stats()
        if stats is not None and stats.dense_bytes_total > 0:
            return min(1.0, stats.dense_bytes_read / stats.dense_bytes_total)
        if self.spec.is_streaming:
            return None
        expected_bytes = self.spec.model_map.dense_bytes + self.spec.model_map.expert_bytes
        loaded_bytes = max(0, (resident_bytes(pid) or 0) - _EMPTY_WORKER_BYTES)
        return min(1.0, loaded_bytes / max(1, expected_bytes))

    def _prove_life(self) -> None:
        """One token through every layer; streaming that is silently off is a failed load."""
        client = self.client()
        if self.spec.config.embeddings:
            client.call("/embedding", {"content": "a"})
        else:
            client.call("/completion", {"prompt": [0], "n_predict": 1, "cache_prompt": False})
        self._prove_drafting(client)
        if not self.spec.is_streaming:
            return
        stats = self.stats()
        if stats is None:
            raise EngineError("the native library wrote no counters, so no expert is streamed")
        if stats.groups_bound != stats.groups_expected:
            raise EngineError(
                f"only {stats.groups_bound} of {stats.groups_expected} groups of experts are streamed"
                f"{': ' + stats.last_error if stats.last_error else ''}; use --load-mode mmap for this model",
                groups_bound=stats.groups_bound,
                groups_expected=stats.groups_expected,
            )

    def _prove_drafting(self, client: EngineClient) -> None:
        """A drafter that the engine cannot use is a failed load: it would go on without, and say nothing."""
        sources = self.spec.config.draft_sources
        if not sources:
            return
        if not all(slot.get("speculative") for slot in client.call("/slots")):
            draft = self.spec.config.draft_model
            what = f"the draft model {draft.name}" if draft is not None else ", ".join(sources)
            raise EngineError(
                f"the engine cannot draft with {what} for {self.spec.model_map.name}: their vocabularies "
                "differ, or the model cannot take tokens back; use another, or leave it out"
            )
