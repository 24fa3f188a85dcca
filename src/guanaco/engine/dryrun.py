"""Asks llama.cpp what a context would take, without loading the model: ``python -m guanaco.engine.dryrun
JSON``.

Owns the short-lived process that reads the header, lets the engine plan its buffers (``no_alloc``) and
reads the sizes from its log. Reads no tensor data. Leaves starting it and keeping its answers to
``estimate``. A model that the engine refuses is one line of JSON with its words.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from guanaco.engine.capi import ContextParams, Llama, library_path
from guanaco.engine.llama import ENGINE_VERSION
from guanaco.errors import EngineError
from guanaco.planner.report import ContextBytes, EngineReport, ReportRequest
from guanaco.units import MIB

_CACHE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_LOAD_MODE_NONE = 0
_MTP_CONTEXT = 1
_LOG_INFO, _LOG_ERROR = 2, 4
_KEPT_ERRORS = 3

# Which quantisations the engine copies to a faster layout, by what its build can do.
_REPACK_TYPES = {
    "avx2": ("q4_0", "q4_K", "iq4_nl", "mxfp4"),
    "avx512": ("q2_K",),
    "amx_int8": ("q4_0", "q4_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_xs"),
    "neon": ("q4_0", "q4_K", "q5_K", "q6_K", "q8_0", "iq4_nl", "mxfp4"),
    "vxe": ("q4_0",),
    "riscv_v": ("q4_0", "q4_K", "q2_K", "iq4_nl", "q8_0"),
}

_SIZE = r"=\s*(?P<mib>\d+\.\d+) MiB"
_CACHE_LINE = re.compile(rf"size {_SIZE} \(.*\bK \(")
_STATE_LINE = re.compile(rf"(?:RS|state) buffer size {_SIZE}")
_COMPUTE_LINE = re.compile(rf"compute buffer size {_SIZE}")
_OUTPUT_LINE = re.compile(rf"output buffer size {_SIZE}")
_WINDOW_STARTS = re.compile(r"creating\s+SWA KV cache")
_FULL_STARTS = re.compile(r"creating (?!\s*SWA)")
# The log rounds to hundredths of a MiB; the true size is at most half of one above.
_ROUNDING_MIB = 0.005


@dataclass(frozen=True)
class DryRun:
    """The question as it travels to the process."""

    model: str
    request: ReportRequest

    def to_json(self) -> str:
        return json.dumps({"model": self.model, "request": asdict(self.request)})

    @classmethod
    def from_json(cls, text: str) -> DryRun:
        fields = json.loads(text)
        contexts = tuple((int(c), int(u)) for c, u in fields["request"].pop("contexts"))
        identity = tuple(fields["request"].pop("draft_identity"))
        request = ReportRequest(contexts=contexts, draft_identity=identity, **fields["request"])
        return cls(fields["model"], request)


def report_to_json(report: EngineReport) -> str:
    return json.dumps(asdict(report))


def report_from_json(text: str) -> EngineReport:
    """Raises ValueError, KeyError or TypeError on anything but what ``report_to_json`` wrote."""
    fields = json.loads(text)
    return EngineReport(
        engine_version=fields["engine_version"],
        contexts=tuple(ContextBytes(**row) for row in fields["contexts"]),
        repack_types=tuple(fields["repack_types"]),
    )


def parse_sizes(lines: Iterable[str], n_ctx: int, n_ubatch: int) -> ContextBytes:
    """The sizes in the engine's log of one context. Raises EngineError when it shows none."""
    sizes = {"kv": 0, "window": 0, "state": 0, "compute": 0, "output": 0}
    seen: set[str] = set()
    in_window = False
    for line in lines:
        if _WINDOW_STARTS.search(line):
            in_window = True
        elif _FULL_STARTS.search(line):
            in_window = False
        for name, pattern in (
            ("kv", _CACHE_LINE),
            ("state", _STATE_LINE),
            ("compute", _COMPUTE_LINE),
            ("output", _OUTPUT_LINE),
        ):
            match = pattern.search(line)
            if match is None:
                continue
            seen.add(name)
            size_bytes = math.ceil((float(match["mib"]) + _ROUNDING_MIB) * MIB)
            sizes[name] += size_bytes
            if name == "kv" and in_window:
                sizes["window"] += size_bytes
    if not {"compute", "output"} <= seen:
        raise EngineError("llama.cpp's log shows no buffer sizes: it is not the version this Guanaco knows")
    return ContextBytes(
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        kv_bytes=sizes["kv"],
        window_bytes=sizes["window"],
        state_bytes=sizes["state"],
        compute_bytes=sizes["compute"],
        output_bytes=sizes["output"],
    )


def answer(question: DryRun) -> EngineReport:
    """Run here, in this process. Raises EngineError with the engine's words when it refuses the model."""
    log: list[tuple[int, str]] = []
    llama = Llama(library_path(), lambda level, text: log.append((level, text)) if level > 1 else None)
    request = question.request

    def load(path: str, what: str) -> Any:
        params = llama.model_params()
        params.no_alloc, params.load_mode, params.n_gpu_layers = True, _LOAD_MODE_NONE, 0
        params.use_extra_bufts, params.load_mtp = False, request.has_mtp
        model = llama.load_model(path.encode(), params)
        if not model:
            raise EngineError(f"llama.cpp cannot load the {what}: {_last_words(log)}")
        return model

    def new_context(model: Any, params: ContextParams, what: str) -> tuple[Any, ContextBytes]:
        log.clear()
        context = llama.new_context(model, params)
        if not context:
            raise EngineError(
                f"llama.cpp cannot make a {what} of {params.n_ctx} tokens (ubatch {params.n_ubatch}): "
                f"{_last_words(log)}"
            )
        return context, parse_sizes((text for _, text in log), params.n_ctx, params.n_ubatch)

    model = load(question.model, "model")
    drafter = load(request.draft_model, "draft model") if request.draft_model is not None else None
    rows = []
    for n_ctx, n_ubatch in request.contexts:
        context, row = new_context(model, _context_params(llama, request, n_ctx, n_ubatch), "context")
        if drafter or request.has_mtp:
            params = _draft_params(llama, request, n_ctx, n_ubatch, context)
            draft_context, draft_row = new_context(drafter or model, params, "draft context")
            row = added(row, draft_row)
            llama.free_context(draft_context)
        rows.append(row)
        llama.free_context(context)
    for loaded in (drafter, model):
        if loaded:
            llama.free_model(loaded)
    repacked = {
        name for feature, names in _REPACK_TYPES.items() if llama.has_cpu_feature(feature) for name in names
    }
    return EngineReport(ENGINE_VERSION, tuple(rows), tuple(sorted(repacked)))


def _context_params(llama: Llama, request: ReportRequest, n_ctx: int, n_ubatch: int) -> ContextParams:
    """As the worker's server would ask, so that the sizes are the same."""
    params = llama.context_params()
    params.n_ctx, params.n_ubatch = n_ctx, n_ubatch
    params.n_batch = n_ubatch if request.embeddings else request.n_batch
    params.n_seq_max = request.n_parallel
    per_sequence = 1 + request.n_draft
    params.n_outputs_max = (
        params.n_batch if request.embeddings else min(params.n_batch, request.n_parallel * per_sequence)
    )
    params.n_outputs_max_per_seq = min(params.n_batch, per_sequence)
    params.n_rs_seq = request.n_draft if request.has_mtp else 0
    params.n_threads = params.n_threads_batch = request.n_threads
    params.type_k = _CACHE_TYPES[request.cache_type_k]
    params.type_v = _CACHE_TYPES[request.cache_type_v]
    params.flash_attn_type = _FLASH_ATTN[request.flash_attn]
    params.embeddings = request.embeddings
    params.swa_full = False
    params.op_offload = False
    return params


def _draft_params(
    llama: Llama, request: ReportRequest, n_ctx: int, n_ubatch: int, target: Any
) -> ContextParams:
    """The drafter's context beside the target's, as the worker's server makes it."""
    params = _context_params(llama, request, n_ctx, n_ubatch)
    params.n_outputs_max, params.n_outputs_max_per_seq, params.n_rs_seq = request.n_parallel, 1, 0
    params.type_k = params.type_v = _CACHE_TYPES["f16"]
    params.ctx_type = _MTP_CONTEXT if request.has_mtp else 0
    params.ctx_other = target
    return params


def added(one: ContextBytes, other: ContextBytes) -> ContextBytes:
    """Both at once. A checkpoint copies of both what cannot be rolled back."""
    return ContextBytes(
        n_ctx=one.n_ctx,
        n_ubatch=one.n_ubatch,
        kv_bytes=one.kv_bytes + other.kv_bytes,
        window_bytes=one.window_bytes + other.window_bytes,
        state_bytes=one.state_bytes + other.state_bytes,
        compute_bytes=one.compute_bytes + other.compute_bytes,
        output_bytes=one.output_bytes + other.output_bytes,
    )


def _last_words(log: list[tuple[int, str]]) -> str:
    errors = [text.strip() for level, text in log if level == _LOG_ERROR]
    words = errors or [text.strip() for _, text in log]
    return "; ".join(words[-_KEPT_ERRORS:]) or "it gave no reason"


def main(arguments: list[str]) -> int:
    try:
        print(report_to_json(answer(DryRun.from_json(arguments[0]))))
    except EngineError as error:
        print(json.dumps(error.to_json()))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
