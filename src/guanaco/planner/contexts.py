"""Which context sizes and batch sizes are considered, and what each costs.

Owns the two ladders and the look-up in the engine's report, with the formula in its place where there is
none. Leaves the choice to ``placement``. Costs never fall as context or batch grow, so that more memory
never means less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from guanaco.config import LoadConfig
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.memory import context_bytes
from guanaco.planner.report import ContextBytes, EngineReport, ReportRequest

# llama.cpp's own fitting does not go below this either; a smaller context is the user's choice.
SMALLEST_DEFAULT_CTX = 4096
# Sizing a context takes the engine memory for every token of it: longer ones are for who asks.
LARGEST_DEFAULT_CTX = 1 << 20
# Larger than what is asked for by default: each expert is read once a batch.
GROWN_BATCHES = (2048, 1024)


def n_threads_for(config: LoadConfig, hardware: Hardware) -> int:
    return config.n_threads or hardware.n_physical_cores


def most_threads_for(config: LoadConfig, hardware: Hardware) -> int:
    """Of tokens and prompts: what memory is planned for."""
    return max(n_threads_for(config, hardware), config.n_threads_batch or 1)


def context_ladder(model: ModelMap, config: LoadConfig) -> tuple[int, ...]:
    """Total context sizes to choose from, ascending; one when the user chose.

    None is more than the model was trained for: the server would take the memory and leave it unused.
    """
    most = model.n_ctx_train * config.n_parallel
    if config.n_ctx is not None:
        return (min(config.n_ctx or most, most),)
    longest = min(model.n_ctx_train, LARGEST_DEFAULT_CTX)
    sizes = {min(SMALLEST_DEFAULT_CTX, longest), longest}
    size = SMALLEST_DEFAULT_CTX
    while size < longest:
        sizes |= {size, size * 3 // 2}
        size *= 2
    return tuple(sorted(size * config.n_parallel for size in sizes if size <= longest))


def ubatch_ladder(model: ModelMap, config: LoadConfig) -> tuple[int, ...]:
    """Batch sizes to choose from, ascending: what was asked for, then powers of two down to the fewest."""
    fewest = config.fewest_ubatch_tokens
    most = max(fewest, min(config.n_ubatch, config.n_batch, context_ladder(model, config)[0]))
    steps = [1 << bit for bit in range(most.bit_length()) if fewest <= 1 << bit < most]
    return (*steps, most)


def report_request(
    model: ModelMap, hardware: Hardware, config: LoadConfig, draft: ModelMap | None = None
) -> ReportRequest:
    """What to ask the engine before planning. ``draft``: the draft model."""
    files = () if draft is None else draft.files
    contexts, batches = context_ladder(model, config), ubatch_ladder(model, config)
    return ReportRequest(
        contexts=(*((size, batches[-1]) for size in contexts), *((contexts[0], n) for n in batches[:-1])),
        n_batch=config.n_batch,
        n_parallel=config.n_parallel,
        n_threads=most_threads_for(config, hardware),
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        flash_attn=config.flash_attn,
        embeddings=config.embeddings,
        n_draft=config.n_draft,
        has_mtp=config.drafts_by_mtp,
        draft_model=str(files[0].path) if files else None,
        draft_identity=tuple(number for f in files for number in (f.inode, f.size_bytes, f.mtime_ns)),
    )


@dataclass(frozen=True)
class ContextCosts:
    """Bytes of every context that can be chosen."""

    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    by_size: tuple[ContextBytes, ...]  # at the largest batch
    by_batch: tuple[ContextBytes, ...]  # at the smallest context

    def at(self, n_ctx: int, n_ubatch: int) -> ContextBytes:
        """The bytes of one choice, or of the largest batch where only that is known.

        Of a batch that is larger still, at most: nothing grows faster than the batch does.
        """
        most = self.batches[-1]
        if n_ubatch > most:
            return _grown(self.at(n_ctx, most), most, n_ubatch)
        if n_ctx == self.sizes[0]:
            return self.by_batch[self.batches.index(n_ubatch)]
        return self.by_size[self.sizes.index(n_ctx)]


def _grown(row: ContextBytes, n_ubatch: int, larger: int) -> ContextBytes:
    def grown(nbytes: int) -> int:
        return -(-nbytes * larger // n_ubatch)

    return replace(
        row,
        n_ubatch=larger,
        # Windows are a part of the caches.
        kv_bytes=row.kv_bytes + grown(row.window_bytes) - row.window_bytes,
        window_bytes=grown(row.window_bytes),
        compute_bytes=grown(row.compute_bytes),
        output_bytes=grown(row.output_bytes),
    )


def context_costs(model: ModelMap, config: LoadConfig, report: EngineReport | None) -> ContextCosts:
    sizes, batches = context_ladder(model, config), ubatch_ladder(model, config)

    def bytes_of(n_ctx: int, n_ubatch: int) -> ContextBytes:
        row = report.find(n_ctx, n_ubatch) if report is not None else None
        return row or context_bytes(model, config, n_ctx, n_ubatch)

    by_batch = _rising([bytes_of(sizes[0], n) for n in batches])
    by_size = _rising([by_batch[-1], *(bytes_of(size, batches[-1]) for size in sizes[1:])])
    return ContextCosts(sizes, batches, by_size, by_batch)


def _rising(rows: list[ContextBytes]) -> tuple[ContextBytes, ...]:
    """The same rows, none smaller than the one before it."""
    risen: list[ContextBytes] = []
    for row in rows:
        if risen:
            before = risen[-1]
            row = replace(
                row,
                kv_bytes=max(row.kv_bytes, before.kv_bytes),
                window_bytes=max(row.window_bytes, before.window_bytes),
                state_bytes=max(row.state_bytes, before.state_bytes),
                compute_bytes=max(row.compute_bytes, before.compute_bytes),
                output_bytes=max(row.output_bytes, before.output_bytes),
            )
        risen.append(row)
    return tuple(risen)
