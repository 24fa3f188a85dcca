"""ModelMap: which bytes of which file are dense weights and which belong to which expert.

Owns the model's shape and the choice of what is dense. Leaves reading to ``gguf``, expert tensors to
``experts`` and sizes of KV and compute to ``planner``. Refuses what the engine would not load as a
model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from guanaco.gguf.problem import CONVERT_AGAIN, model_error, shown
from guanaco.gguf.types import GgufModel, ShardFile
from guanaco.model.experts import ExpertGroup, ExpertPart, Layers, find_experts
from guanaco.model.meta import Meta
from guanaco.model.recipes import (
    DEFAULT_RECIPE,
    ENGINE_ARCHS,
    LAZY_TABLE_BYTES,
    MAX_EXPERTS,
    MAX_LAYERS,
    NOT_MODELS,
    RECIPES,
    Recipe,
)
from guanaco.units import format_bytes

__all__ = ["DenseRange", "ExpertGroup", "ExpertPart", "ModelMap", "build_model_map"]


@dataclass(frozen=True)
class DenseRange:
    """A tensor that is not an expert slice."""

    tensor_name: str
    file_index: int
    offset: int
    nbytes: int
    is_lazy_table: bool  # read by rows on demand (per-layer embeddings of several GiB)
    is_mtp: bool = False  # of a multi-token-prediction layer: not loaded for a plain decode


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
    n_expert_used: int  # the most of any layer
    dense: tuple[DenseRange, ...] = field(repr=False)
    groups: tuple[ExpertGroup, ...] = field(repr=False)
    token_embd_bytes: int
    has_own_output: bool  # False: token_embd is the output matrix too
    notes: tuple[str, ...] = ()  # what a user should know, a sentence each

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
    def mtp_dense_bytes(self) -> int:
        """The part of ``dense_bytes`` that a plain decode does not load."""
        return sum(item.nbytes for item in self.dense if item.is_mtp)

    @property
    def expert_bytes(self) -> int:
        return sum(group.expert_bytes * group.n_expert for group in self.groups)

    @property
    def meta(self) -> Meta:
        return Meta(self.files[0].path, self.arch, self.gguf.metadata)

    def get_int(self, key: str, default: int | None = None) -> int:
        """The architecture's prefix is added to the key. Without a default a missing key is an error."""
        return self.meta.get_int(key, default)

    def get_float(self, key: str, default: float | None = None) -> float:
        return self.meta.get_float(key, default)

    def get_ints(self, key: str, default: int | None = None) -> tuple[int, ...]:
        """One number per layer, MTP layers included; a single number in the file holds for all."""
        return self.meta.get_ints(key, self.n_layer, default)


def build_model_map(gguf: GgufModel) -> ModelMap:
    """Pure. Raises ModelError that names the key or tensor at fault."""
    meta = _identify(gguf)
    recipe = RECIPES.get(meta.arch, DEFAULT_RECIPE)
    layers = _layers(meta)
    n_expert, n_expert_used = _expert_counts(meta, layers, recipe)
    experts = find_experts(gguf.tensors, meta, layers)
    dense = tuple(
        DenseRange(
            tensor_name=tensor.name,
            file_index=tensor.file_index,
            offset=tensor.offset,
            nbytes=tensor.nbytes,
            is_lazy_table=tensor.name in recipe.lazy_tables and tensor.nbytes > LAZY_TABLE_BYTES,
            is_mtp=layers.is_mtp(tensor.name),
        )
        for tensor in gguf.tensors
        if tensor.name not in experts.slice_names
    )
    by_name = {tensor.name: tensor for tensor in gguf.tensors}
    token_embd = by_name.get("token_embd.weight")
    vocab_rows = token_embd.dims[1] if token_embd is not None and len(token_embd.dims) > 1 else 0
    notes = list(experts.notes)
    if n_expert > 1 and not experts.groups and not notes:
        notes.append(f"{n_expert} experts are declared, but no expert tensors are there: treated as dense")
    notes += _size_notes(dense, experts.groups, layers)
    return ModelMap(
        gguf=gguf,
        name=_shown_name(meta.get_str("general.name", "")) or meta.path.stem,
        arch=meta.arch,
        n_layer=layers.n_layer,
        n_embd=_positive(meta, "embedding_length"),
        n_vocab=meta.get_count("tokenizer.ggml.tokens") or meta.get_int("vocab_size", vocab_rows),
        n_ctx_train=_positive(meta, "context_length"),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        dense=dense,
        groups=experts.groups,
        token_embd_bytes=token_embd.nbytes if token_embd is not None else 0,
        has_own_output="output.weight" in by_name,
        notes=tuple(notes),
    )


def _identify(gguf: GgufModel) -> Meta:
    path = gguf.files[0].path
    arch = gguf.metadata.get("general.architecture")
    for key in ("general.type", "general.architecture"):
        kind = gguf.metadata.get(key)
        if isinstance(kind, str) and kind in NOT_MODELS:
            way_out = "give the language model it belongs to"
            raise model_error(path, key, f"is {shown(kind)}: {NOT_MODELS[kind]}, not a model", way_out, kind)
    if not isinstance(arch, str):
        problem = "is missing" if arch is None else f"is {shown(arch)}, not a name"
        raise model_error(path, "general.architecture", problem, "give a GGUF file of a language model", arch)
    if arch not in ENGINE_ARCHS:
        problem = f"{shown(arch)} is unknown to this version's engine"
        raise model_error(path, "general.architecture", problem, "update Guanaco or use another model", arch)
    if not gguf.tensors:
        way_out = "give the model's weights, not its vocabulary alone"
        raise model_error(path, "tensor count", "is 0", way_out, 0)
    return Meta(path, arch, gguf.metadata)


def _layers(meta: Meta) -> Layers:
    n_layer = _positive(meta, "block_count", MAX_LAYERS)
    n_mtp = meta.get_int("nextn_predict_layers", 0)
    if not 0 <= n_mtp <= n_layer:
        problem = f"is {n_mtp}, but should be 0 to {n_layer}"
        raise model_error(meta.path, meta.full_key("nextn_predict_layers"), problem, CONVERT_AGAIN, n_mtp)
    # a file of prediction layers alone is run as what it is
    return Layers(n_layer, n_layer - n_mtp if n_mtp < n_layer else n_layer)


_MOST_NAME_CHARS = 200


def _shown_name(name: str) -> str:
    """It is shown on terminals and in logs, and anybody may have written it."""
    clean = "".join(letter if letter.isprintable() else " " for letter in name[:_MOST_NAME_CHARS])
    return " ".join(clean.split())


def _positive(meta: Meta, key: str, most: int = (1 << 32) - 1) -> int:
    value = meta.get_int(key)
    if not 1 <= value <= most:
        problem = f"is {value}, but should be 1 to {most}"
        raise model_error(meta.path, meta.full_key(key), problem, CONVERT_AGAIN, value)
    return value


def _expert_counts(meta: Meta, layers: Layers, recipe: Recipe) -> tuple[int, int]:
    n_expert = meta.get_int("expert_count", 0)
    n_expert_used = max(meta.get_ints("expert_used_count", layers.n_layer, 0))
    if recipe.single_expert_is_dense and n_expert <= 1:
        return 0, 0
    if not 0 <= n_expert <= MAX_EXPERTS:
        problem = f"is {n_expert}, but should be 0 to {MAX_EXPERTS}"
        raise model_error(meta.path, meta.full_key("expert_count"), problem, CONVERT_AGAIN, n_expert)
    if not min(n_expert, 1) <= n_expert_used <= n_expert:
        problem = f"is {n_expert_used} of {n_expert} experts"
        raise model_error(
            meta.path, meta.full_key("expert_used_count"), problem, CONVERT_AGAIN, n_expert_used
        )
    return n_expert, n_expert_used


def _size_notes(dense: tuple[DenseRange, ...], groups: tuple[ExpertGroup, ...], layers: Layers) -> list[str]:
    notes = [
        f"{item.tensor_name} ({format_bytes(item.nbytes)}) is read by rows on demand"
        for item in dense
        if item.is_lazy_table
    ]
    if layers.first_mtp < layers.n_layer:
        mtp_bytes = sum(item.nbytes for item in dense if item.is_mtp)
        mtp_bytes += sum(group.expert_bytes * group.n_expert for group in groups if group.is_mtp)
        notes.append(
            f"{layers.n_layer - layers.first_mtp} of {layers.n_layer} layers predict further tokens "
            f"({format_bytes(mtp_bytes)}); plain decoding does not load them"
        )
    return notes
