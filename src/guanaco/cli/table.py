"""Every flag and environment variable of loading, memory, I/O, sampling and serving: one row each.

Owns names, help texts and which field of which configuration a row sets. Leaves precedence to ``settings``,
and ranges and contradictions to the configuration's own ``validate``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from guanaco.cli import values
from guanaco.config import IO_MODES, KV_TYPES, LOAD_MODES, POLICIES, POOLING, SPEC_TYPES


@dataclass(frozen=True)
class Setting:
    """One row. ``target`` is ``group.field``; several rows may share one, the first listed wins a tie."""

    target: str
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    parse: values.Parser
    metavar: str
    help: str
    is_switch: bool = False
    variable_wins: bool = False
    meanings: tuple[tuple[object, object], ...] = ()  # parsed value -> value of the target
    use_instead: str | None = None  # a deprecated alias
    refusal: str | None = None  # not in this version

    @property
    def group(self) -> str:
        return self.target.partition(".")[0]

    @property
    def long_flag(self) -> str:
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])

    @property
    def spellings(self) -> str:
        """For an error: whoever typed one of them finds it."""
        return ", ".join(self.flags)

    @property
    def parameter(self) -> str:
        """The name click passes it by."""
        return (self.flags or self.variables)[0].lstrip("-").replace("-", "_").lower()


def _later(flags: str, variables: str, what: str) -> Setting:
    return Setting(
        target="load.later",
        flags=tuple(flags.split()),
        variables=tuple(variables.split()),
        parse=values.text,
        metavar="...",
        help="Not in this version.",
        refusal=f"is not in this version: {what}",
    )


def _row(
    target: str, flags: str, variables: str, parse: values.Parser, metavar: str, text: str, **more: Any
) -> Setting:
    return Setting(target, tuple(flags.split()), tuple(variables.split()), parse, metavar, text, **more)


SETTINGS: tuple[Setting, ...] = (
    _row("model.path", "-m --model", "LLAMA_ARG_MODEL", values.text, "FILE", "The GGUF file (first shard)."),
    # Memory and loading.
    _row("load.memory_bytes", "--memory", "GUANACO_MEMORY", values.memory, "SIZE",
         "Total memory budget, e.g. 8GiB. Default: from the machine."),
    _row("load.load_mode", "--load-mode", "LOAD_MODE", values.choice(*LOAD_MODES), "MODE",
         "auto: in RAM when it fits, else streaming; or streaming, mmap."),
    _row("load.load_mode", "--guanaco-streaming -gs", "GUANACO_STREAMING", values.boolean, "",
         "Deprecated: --load-mode streaming.", is_switch=True, use_instead="--load-mode",
         meanings=((True, "streaming"), (False, "mmap"))),
    _row("load.load_mode", "--no-guanaco-streaming -ngs", "", values.boolean, "",
         "Deprecated: --load-mode mmap.", is_switch=True, use_instead="--load-mode",
         meanings=((True, "mmap"),)),
    _row("load.max_experts", "--guanaco-max-experts", "GUANACO_MAX_EXPERTS", values.integer, "N",
         "Experts kept in RAM per MoE layer. Default -1: from --memory. The variable overrides the flag.",
         variable_wins=True),
    _row("load.io", "--io", "", values.choice(*IO_MODES), "MODE",
         "How experts are read: auto, uring, threads, buffered, pagecache."),
    _row("load.io", "", "GUANACO_IO_URING", values.boolean, "", "0: thread pool instead of io_uring.",
         meanings=((True, "auto"), (False, "threads"))),
    _row("load.policy", "--policy", "GUANACO_POLICY", values.choice(*POLICIES), "NAME",
         "Which experts stay in RAM: recall, cycle, lru, lfu or herd."),
    _row("load.pilot", "--pilot", "GUANACO_PILOT", values.pilot, "MODE",
         "Read the next layer's experts early: auto, gate, transition, off. GUANACO_PILOT=0: off."),
    _row("load.pilot_mass", "", "GUANACO_PILOT_MASS", values.number, "P",
         "Learned transitions are followed until this much of their probability is covered."),
    _row("load.imatrix", "", "GUANACO_IMATRIX", values.boolean, "",
         "0: neither read the imatrix beside the model, nor keep which experts are used."),
    # llama-server's names.
    _row("load.n_ctx", "-c --ctx-size", "LLAMA_ARG_CTX_SIZE", values.integer, "N",
         "Context size in tokens; 0: as trained."),
    _row("load.n_gpu_layers", "-ngl --gpu-layers --n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS",
         values.gpu_layers, "N", "Layers on the graphics card: a number, auto or all."),
    _row("load.n_threads", "-t --threads", "LLAMA_ARG_THREADS", values.auto_count, "N",
         "Threads for generation."),
    _row("load.n_threads_batch", "-tb --threads-batch", "", values.auto_count, "N",
         "Threads for prompts. Default: as -t."),
    _row("load.n_parallel", "-np --parallel", "LLAMA_ARG_N_PARALLEL", values.auto_count, "N",
         "Requests served at once."),
    _row("load.n_batch", "-b --batch-size", "LLAMA_ARG_BATCH", values.integer, "N", "Logical batch size."),
    _row("load.n_ubatch", "-ub --ubatch-size", "LLAMA_ARG_UBATCH", values.integer, "N",
         "Physical batch size."),
    _row("load.cache_type_k", "-ctk --cache-type-k", "LLAMA_ARG_CACHE_TYPE_K", values.choice(*KV_TYPES),
         "TYPE", "Type of the K cache."),
    _row("load.cache_type_v", "-ctv --cache-type-v", "LLAMA_ARG_CACHE_TYPE_V", values.choice(*KV_TYPES),
         "TYPE", "Type of the V cache."),
    _row("load.flash_attn", "-fa --flash-attn", "LLAMA_ARG_FLASH_ATTN", values.flash_attention,
         "on|off|auto", "Flash attention."),
    _row("load.cache_ram_bytes", "-cram --cache-ram", "LLAMA_ARG_CACHE_RAM", values.prompt_cache_bytes,
         "MIB", "Prompt cache in RAM. Default: planned inside the budget."),
    _row("load.ctx_checkpoints", "-ctxcp --ctx-checkpoints", "LLAMA_ARG_CTX_CHECKPOINTS", values.integer,
         "N", "Context checkpoints per slot. Default: planned inside the budget."),
    _row("load.ctx_shift", "--context-shift", "LLAMA_ARG_CONTEXT_SHIFT", values.boolean, "",
         "Drop the oldest half of a full context and go on, instead of ending the answer.", is_switch=True),
    _row("load.ctx_shift", "--no-context-shift", "LLAMA_ARG_NO_CONTEXT_SHIFT", values.boolean, "",
         "End the answer there (default).", is_switch=True, meanings=((True, False),)),
    _row("load.cache_reuse_tokens", "--cache-reuse", "LLAMA_ARG_CACHE_REUSE", values.integer, "N",
         "Reuse pieces of an earlier prompt of at least N tokens at another place; 0: off."),
    _row("load.slot_save_path", "--slot-save-path", "LLAMA_ARG_SLOT_SAVE_PATH", values.folder, "DIR",
         "Folder where clients may save slots and take them back from."),
    _row("load.sse_ping_s", "--sse-ping-interval", "LLAMA_ARG_SSE_PING_INTERVAL", values.integer, "SECONDS",
         "Comment on a stream that is silent so long; -1: never. Default: the engine's."),
    _row("load.embeddings", "--embeddings --embedding", "LLAMA_ARG_EMBEDDINGS", values.boolean, "",
         "Serve embeddings instead of text.", is_switch=True),
    _row("load.pooling", "--pooling", "LLAMA_ARG_POOLING", values.choice(*POOLING), "TYPE",
         "How token embeddings are pooled."),
    _row("load.chat_template", "--chat-template", "LLAMA_ARG_CHAT_TEMPLATE", values.text, "TEMPLATE",
         "Chat template, or the name of a built-in one. Default: the model's."),
    _row("load.alias", "-a --alias", "LLAMA_ARG_ALIAS", values.single_name, "NAME",
         "Name of the model in answers."),
    # Speculative decoding.
    _row("load.spec_types", "--spec-type", "LLAMA_ARG_SPEC_TYPE", values.choices(*SPEC_TYPES), "TYPE,...",
         "What drafts tokens ahead: draft-simple (-md), draft-mtp (the model's own layers), or ngram-simple, "
         "ngram-map-k, ngram-map-k4v, ngram-mod (earlier text). Default: none."),
    _row("load.draft_model", "-md --model-draft --spec-draft-model", "LLAMA_ARG_SPEC_DRAFT_MODEL",
         values.path, "FILE", "A small model that drafts; it is held in RAM whole."),
    _row("load.n_draft_max", "--spec-draft-n-max", "LLAMA_ARG_SPEC_DRAFT_N_MAX", values.integer, "N",
         "Tokens of a draft, of n-grams too. Default: 3, or 8 where n-grams draft."),
    _row("load.draft_always", "--draft-always", "", values.boolean, "",
         "Draft although it does not pay; by default drafting rests then.", is_switch=True),
    # How tokens are picked.
    _row("sampling.seed", "-s --seed", "", values.integer, "N", "Random seed; -1: random."),
    _row("sampling.temperature", "--temp --temperature", "LLAMA_ARG_TEMPERATURE", values.number, "T",
         "Temperature; 0: greedy."),
    _row("sampling.top_k", "--top-k", "LLAMA_ARG_TOP_K", values.integer, "N", "Keep the N best; 0: all."),
    _row("sampling.top_p", "--top-p", "LLAMA_ARG_TOP_P", values.number, "P", "Nucleus sampling; 1: off."),
    _row("sampling.min_p", "--min-p", "LLAMA_ARG_MIN_P", values.number, "P", "Minimum share; 0: off."),
    _row("sampling.n_predict", "-n --predict --n-predict", "LLAMA_ARG_N_PREDICT", values.integer, "N",
         "Tokens to generate at most; -1: until the model stops."),
    # The HTTP server.
    _row("serve.host", "--host", "LLAMA_ARG_HOST", values.text, "ADDRESS", "Address to listen on."),
    _row("serve.port", "--port", "LLAMA_ARG_PORT", values.integer, "N", "Port to listen on; 0: a free one."),
    _row("serve.api_keys", "--api-key", "LLAMA_API_KEY", values.names, "KEY",
         "Key that clients must send; several with commas."),
    # Known, but not yet.
    _later("-hf -hfr --hf-repo", "LLAMA_ARG_HF_REPO",
           "download the model yourself and name its .gguf file"),
)  # fmt: skip


def settings_for(groups: Iterable[str]) -> tuple[Setting, ...]:
    wanted = set(groups)
    return tuple(setting for setting in SETTINGS if setting.group in wanted)
