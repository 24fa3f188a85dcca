"""The engine's own report of a model's memory, asked once and remembered.

Owns starting the dry run as a process of its own (an engine that aborts then takes nothing with it) and the
cache of its answers, keyed by the model's files, the engine version and the settings. Leaves the dry run to
``dryrun``. A cache that cannot be read or written is only slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from guanaco.engine.dryrun import DryRun, report_from_json, report_to_json
from guanaco.engine.llama import ENGINE_VERSION
from guanaco.errors import EngineError, ModelError
from guanaco.model.map import ModelMap
from guanaco.planner.report import EngineReport, ReportRequest

_TIMEOUT_S = 120.0
_CACHE_FORMAT = 2
_SHOWN_STDERR_CHARS = 300


def engine_report(
    model: ModelMap,
    request: ReportRequest,
    *,
    environment: Mapping[str, str],
    cache_dir: Path | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> EngineReport:
    """What the engine says about ``request``; blocks for up to two seconds unless it was asked before.

    Raises EngineError when the engine refuses the model or dies on it.
    """
    _check_name(model.files[0].path)
    if request.draft_model is not None:
        _check_name(Path(request.draft_model))
    path = None if cache_dir is None else cache_dir / f"{_key(model, request)}.json"
    kept = _load(path)
    if kept is not None:
        return kept
    report = _ask(DryRun(str(model.files[0].path), request), environment, timeout_s)
    _keep(path, report)
    return report


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="replace").decode()
        raise ModelError(
            f"{shown}: the path is not UTF-8, and llama.cpp opens no other; rename the file"
        ) from None


def _ask(question: DryRun, environment: Mapping[str, str], timeout_s: float) -> EngineReport:
    command = [sys.executable, "-P", "-m", "guanaco.engine.dryrun", question.to_json()]
    # No backtrace by a debugger, no preloaded library, no more than one arena.
    settings = {"GGML_NO_BACKTRACE": "1", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    inherited = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    name = Path(question.model).name
    try:
        done = subprocess.run(
            command,
            env={**inherited, **settings},
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"llama.cpp did not size {name} within {timeout_s:.0f} s") from error
    if done.returncode < 0:
        raise EngineError(
            f"llama.cpp was ended by {_signal_name(-done.returncode)} while it sized {name}"
            f"{_tail(done.stderr)}"
        )
    return _parse(done.stdout, name, done.stderr)


def _parse(output: str, name: str, errors: str) -> EngineReport:
    line = output.strip().rpartition("\n")[2]
    try:
        fields = json.loads(line)
        if "error" not in fields:
            return report_from_json(line)
        message = str(fields["error"]["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"llama.cpp's dry run of {name} gave no answer{_tail(errors)}") from error
    raise EngineError(f"{name}: {message}")


def _key(model: ModelMap, request: ReportRequest) -> str:
    files = [(str(f.path), f.device, f.inode, f.size_bytes, f.mtime_ns) for f in model.files]
    identity = [_CACHE_FORMAT, ENGINE_VERSION, files, asdict(request)]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _load(path: Path | None) -> EngineReport | None:
    if path is None:
        return None
    try:
        return report_from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(path: Path | None, report: EngineReport) -> None:
    """Temporary name and rename: two loads at once never see half a file."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
        try:
            temporary.write_text(report_to_json(report))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(errors: str) -> str:
    text = " ".join(errors.split())[-_SHOWN_STDERR_CHARS:]
    return f": {text}" if text else ""
