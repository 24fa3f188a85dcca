"""One load to be planned: the model, the settings, and every size that does not depend on the budget.

Owns those sizes and how a budget is shared out before weights and slots: context, checkpoints, headroom.
Leaves the two ways to hold the weights to ``resident`` and ``streaming``.
"""

from __future__ import annotations

from dataclasses import dataclass

from guanaco.config import LoadConfig
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.contexts import (
    GROWN_BATCHES,
    ContextCosts,
    context_costs,
    most_threads_for,
    n_threads_for,
)
from guanaco.planner.memory import REPACKABLE_TYPES, work_bytes
from guanaco.planner.overheads import draft_token_bytes, drafter_bytes, engine_bytes, headroom_bytes
from guanaco.planner.report import EngineReport
from guanaco.planner.slots import PAGE_BYTES, ExpertClass, expert_classes
from guanaco.units import MIB

# A context that nobody asked for takes at most this part of the budget.
_CONTEXT_SHARE = 4
_CHECKPOINT_SHARE = 64
# llama.cpp's own defaults, where there is room for them.
_MOST_CHECKPOINTS = 32
_MOST_CACHE_BYTES = 8192 * MIB


@dataclass(frozen=True)
class Load:
    model: ModelMap
    config: LoadConfig
    costs: ContextCosts
    classes: tuple[ExpertClass, ...]
    n_threads: int
    most_threads: int  # of tokens and prompts
    repack_types: frozenset[str]
    is_reported: bool  # sizes of contexts are the engine's own
    draft: ModelMap | None = None  # a model that drafts

    @classmethod
    def of(
        cls,
        model: ModelMap,
        hardware: Hardware,
        config: LoadConfig,
        report: EngineReport | None,
        draft: ModelMap | None = None,
    ) -> Load:
        return cls(
            model=model,
            config=config,
            costs=context_costs(model, config, report),
            classes=expert_classes(model, has_mtp=config.drafts_by_mtp),
            n_threads=n_threads_for(config, hardware),
            most_threads=most_threads_for(config, hardware),
            repack_types=REPACKABLE_TYPES if report is None else frozenset(report.repack_types),
            is_reported=report is not None,
            draft=draft,
        )

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes to try, the one asked for first."""
        return tuple(reversed(self.costs.batches))

    @property
    def grown_batches(self) -> tuple[int, ...]:
        """Batch sizes to try beyond that, largest first.

        With several clients a batch is what others wait for.
        """
        config = self.config
        if not config.grow_ubatch or config.n_parallel > 1 or config.embeddings:
            return ()
        most = min(config.n_batch, self.costs.sizes[0])
        return tuple(size for size in GROWN_BATCHES if self.batches[0] < size <= most)

    def overhead(self, budget_bytes: int) -> int:
        """Everything but weights, slots, context and work buffer."""
        return (
            self.engine_bytes
            + self.draft_bytes
            + headroom_bytes(budget_bytes)
            + self.checkpoint_share(budget_bytes)
            + self.asked_cache_bytes
        )

    @property
    def engine_bytes(self) -> int:
        return engine_bytes(self.model, self.most_threads, self.config.n_parallel)

    @property
    def draft_bytes(self) -> int:
        """A draft model in RAM whole, and what finds drafts; its context is with the model's."""
        return drafter_bytes(self.config, self.model, self.draft)

    def draft_context_bytes(self, n_ctx: int, n_ubatch: int) -> int:
        """What finds drafts keeps of the text, what is kept to take a draft back, and the work buffer of a
        drafting model."""
        if not self.config.draft_sources:
            return 0
        total = n_ctx * draft_token_bytes(self.config) + self.checkpoint_bytes(n_ctx, n_ubatch)
        drafting = self.draft or (self.model if self.config.drafts_by_mtp else None)
        if drafting is not None:
            products = tuple((group.n_expert, group.top_k) for group in drafting.groups)
            total += work_bytes(drafting, n_ubatch, self.most_threads, products)
        return total

    @property
    def asked_cache_bytes(self) -> int:
        """The prompt cache the user asked for."""
        return 0 if self.config.embeddings else self.config.cache_ram_bytes or 0

    def context_bytes(self, n_ctx: int, n_ubatch: int) -> int:
        """A context, what drafts keep of it, and the checkpoints that the user asked for."""
        asked = 0 if self.config.embeddings else self.config.ctx_checkpoints or 0
        return (
            self.costs.at(n_ctx, n_ubatch).total_bytes
            + self.draft_context_bytes(n_ctx, n_ubatch)
            + asked * self.checkpoint_bytes(n_ctx, n_ubatch)
        )

    def context_share(self, budget_bytes: int, n_ubatch: int) -> int:
        """What the context may take; all of it is set aside, so that a larger context takes no slot."""
        smallest = self.context_bytes(self.costs.sizes[0], n_ubatch)
        largest = self.context_bytes(self.costs.sizes[-1], self.costs.batches[-1])
        if len(self.costs.sizes) == 1:
            return smallest
        return max(smallest, min(budget_bytes // _CONTEXT_SHARE, largest))

    def pick_context(self, limit_bytes: int) -> int:
        """The largest context within the limit at the batch asked for; the smallest when none is."""
        batch = self.costs.batches[-1]
        fitting = [size for size in self.costs.sizes if self.context_bytes(size, batch) <= limit_bytes]
        return max(fitting, default=self.costs.sizes[0])

    def context_limit(self, budget_bytes: int) -> int:
        return budget_bytes // _CONTEXT_SHARE

    def checkpoint_bytes(self, n_ctx: int, n_ubatch: int) -> int:
        """One checkpoint of every sequence: what cannot be rolled back, windows and state."""
        row = self.costs.at(n_ctx, n_ubatch)
        return row.window_bytes + row.state_bytes

    def checkpoint_share(self, budget_bytes: int) -> int:
        """Set aside for checkpoints when the user did not say how many."""
        if self.config.embeddings or self.config.ctx_checkpoints is not None:
            return 0
        most = _MOST_CHECKPOINTS * self.checkpoint_bytes(self.costs.sizes[-1], self.costs.batches[-1])
        return min(most, budget_bytes // _CHECKPOINT_SHARE)

    def checkpoints(self, budget_bytes: int, n_ctx: int, n_ubatch: int) -> int:
        """How many per sequence."""
        if self.config.embeddings:
            return 0
        if self.config.ctx_checkpoints is not None:
            return self.config.ctx_checkpoints
        each = self.checkpoint_bytes(n_ctx, n_ubatch)
        return min(_MOST_CHECKPOINTS, self.checkpoint_share(budget_bytes) // each) if each else 0

    def prompt_cache(self, spare_bytes: int) -> int:
        """The prompt cache: what was asked for, else what is spare, up to the engine's default; whole MiB."""
        if self.config.embeddings or self.config.cache_ram_bytes is not None:
            return self.asked_cache_bytes
        return min(_MOST_CACHE_BYTES, max(0, spare_bytes) // MIB * MIB)


def resident_dense_bytes(model: ModelMap, *, has_mtp: bool = False) -> int:
    """Dense weights in whole pages, as the streaming loader holds them: tables read by rows, and without
    ``has_mtp`` the layers that a plain decode skips, are left in the file."""
    total = 0
    end_of_last: dict[int, int] = {}
    for item in sorted(model.dense, key=lambda item: (item.file_index, item.offset)):
        if item.is_lazy_table or (item.is_mtp and not has_mtp):
            continue
        begin = max(item.offset // PAGE_BYTES * PAGE_BYTES, end_of_last.get(item.file_index, 0))
        end = -(-(item.offset + item.nbytes) // PAGE_BYTES) * PAGE_BYTES
        total += max(0, end - begin)
        end_of_last[item.file_index] = max(end, begin)
    return total
