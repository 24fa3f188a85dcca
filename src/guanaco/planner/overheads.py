"""What the parent, the worker and the engine take beyond weights, context and slots.

Owns the constants. Each is the upper end of a measurement that ``docs/memory.md`` describes, not an
average: the budget is a promise. Leaves summing up to ``load``.
"""

from __future__ import annotations

from guanaco.config import LoadConfig
from guanaco.model.map import ModelMap
from guanaco.planner.slots import PAGE_BYTES
from guanaco.units import KIB, MIB

_PARENT_BYTES = 44 * MIB  # anonymous memory of ``guanaco serve``: 39.5, later 42.5
_WORKER_BYTES = 16 * MIB  # interpreter, engine and HTTP threads of the worker, without the model: 11-13
_LIBRARY_CACHE_BYTES = 80 * MIB  # file cache of both processes' libraries, all cold before: 73.6-75.9
_TOKEN_BYTES = 420  # of the vocabulary, in the engine's maps: 404
_TENSOR_BYTES = 16 * KIB  # of the graph, the scheduler and the tensor directory: 14 KiB
_SEQUENCE_BYTES = MIB  # of a parallel sequence, beside what grows with the vocabulary
_SEQUENCE_TOKEN_BYTES = 24  # sampler's candidates of a sequence
_THREAD_BYTES = 256 * KIB
_DRAFT_TEXT_BYTES = 4  # the server copies a request's tokens for its drafter
_NGRAM_TABLE_BYTES = 16 * MIB  # the engine's table of hashes, 2^22 of 4 bytes
_NGRAM_MAP_BYTES = MIB  # of a sequence: 2^18 hashes of 4 bytes
_NGRAM_KEY_BYTES = 96  # of a token at most: two words, and four values of two
_HEADROOM_BYTES = 16 * MIB
_HEADROOM_SHARE = 64  # page tables alone take up to 1/512


def engine_bytes(model: ModelMap, n_threads: int, n_parallel: int) -> int:
    """Both processes, their libraries, vocabulary, graph, and the header while it is read."""
    return (
        _PARENT_BYTES
        + _WORKER_BYTES
        + _LIBRARY_CACHE_BYTES
        + model.n_vocab * (_TOKEN_BYTES + n_parallel * _SEQUENCE_TOKEN_BYTES)
        + len(model.gguf.tensors) * _TENSOR_BYTES
        + n_parallel * _SEQUENCE_BYTES
        + n_threads * _THREAD_BYTES
        + sum(file.header_bytes for file in model.files)
    )


def file_bytes(model: ModelMap) -> int:
    """The engine maps whole files."""
    return sum(-(-file.size_bytes // PAGE_BYTES) * PAGE_BYTES for file in model.files)


def draft_token_bytes(config: LoadConfig) -> int:
    """What finds drafts keeps of each token of the context."""
    if not config.draft_sources:
        return 0
    n_maps = sum(name.startswith("ngram-map") for name in config.draft_sources)
    return _DRAFT_TEXT_BYTES + n_maps * _NGRAM_KEY_BYTES


def drafter_bytes(config: LoadConfig, model: ModelMap, draft: ModelMap | None) -> int:
    """What drafts, beside its context: a draft model with its vocabulary and graph, tables of n-grams, and of
    the model's own layers the states they go on from."""
    # The engine keeps those of a batch: as it gives them out, as they are drafted from, and of each sequence.
    states = 4 * model.n_embd * config.n_batch
    total = states * (2 + config.n_parallel) if config.drafts_by_mtp else 0
    for name in config.draft_sources:
        if name == "ngram-mod":
            total += _NGRAM_TABLE_BYTES
        elif name.startswith("ngram-map"):
            total += config.n_parallel * _NGRAM_MAP_BYTES
    if draft is not None:
        total += (
            file_bytes(draft)
            + draft.n_vocab * (_TOKEN_BYTES + config.n_parallel * _SEQUENCE_TOKEN_BYTES)
            + len(draft.gguf.tensors) * _TENSOR_BYTES
        )
    return total


def headroom_bytes(budget_bytes: int) -> int:
    """Kept free for what no plan sees: page tables, sockets, fragments, a request's text."""
    return _HEADROOM_BYTES + budget_bytes // _HEADROOM_SHARE
