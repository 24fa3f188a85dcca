"""ModelMap: which bytes of which file are dense weights and which belong to which expert.

Owns the recognition of MoE layers. Leaves reading to ``gguf`` and sizes of KV and compute to ``planner``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guanaco.gguf.types import GgufModel, ShardFile


@dataclass(frozen=True)
class ExpertPart:
    """One 3-D expert tensor: ``n_expert`` slices of ``slice_bytes``, contiguous from ``offset``."""

    role: str  # "gate" | "up" | "down" | "gate_up"
    tensor_name: str
    type_name: str
    file_index: int
    offset: int
    slice_bytes: int


@dataclass(frozen=True)
class ExpertGroup:
    """The parts that are read and evicted together for one expert of one layer."""

    layer: int
    family: str  # "exps"; a second set in one layer (e.g. "chexps") is a group of its own
    n_expert: int
    top_k: int  # experts selected per token
    parts: tuple[ExpertPart, ...]
    is_mtp: bool  # belongs to a multi-token-prediction layer: not run by a plain decode

    @property
    def expert_bytes(self) -> int:
        return sum(part.slice_bytes for part in self.parts)

    @property
    def slice_key(self) -> tuple[tuple[str, int], ...]:
        """Groups with equal keys share a slot size class."""
        return tuple((part.role, part.slice_bytes) for part in self.parts)


@dataclass(frozen=True)
class DenseRange:
    """A tensor that is not an expert slice."""

    tensor_name: str
    file_index: int
    offset: int
    nbytes: int
    is_lazy_table: bool  # read by rows on demand (per-layer embeddings of several GiB)


@dataclass(frozen=True)
class ModelMap:
    gguf: GgufModel = field(repr=False)
    name: str
    arch: str
    n_layer: int  # block_count, MTP layers included
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_expert: int
    n_expert_used: int
    dense: tuple[DenseRange, ...] = field(repr=False)
    groups: tuple[ExpertGroup, ...] = field(repr=False)
    token_embd_bytes: int
    has_own_output: bool  # False: token_embd is the output matrix too

    @property
    def files(self) -> tuple[ShardFile, ...]:
        return self.gguf.files

    @property
    def is_moe(self) -> bool:
        return bool(self.groups)

    @property
    def dense_bytes(self) -> int:
        return sum(item.nbytes for item in self.dense)

    @property
    def expert_bytes(self) -> int:
        return sum(group.expert_bytes * group.n_expert for group in self.groups)
