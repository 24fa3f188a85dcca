"""Which tensors are expert slices: MoE recognised from the declared counts and the tensors together.

Owns the grouping of one layer's expert tensors and every check of their shapes. Routers, shared experts,
biases and scales are not slices and stay dense. Leaves file offsets as the reader found them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from guanaco.gguf.problem import CONVERT_AGAIN, FETCH_AGAIN, model_error, shown
from guanaco.gguf.types import TensorInfo
from guanaco.model.meta import Meta
from guanaco.model.recipes import FAMILIES, ExpertFamily

_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.(.+)")
_ONE_EXPERT = re.compile(r"ffn_(?:gate|up|down)\.[0-9]+\.weight")
_STACKED = re.compile(r".+exps\.weight")


@dataclass(frozen=True)
class ExpertPart:
    """One 3-D expert tensor: ``n_expert`` slices of ``slice_bytes``, contiguous from ``offset``."""

    role: str  # "gate" | "up" | "down" | "gate_up" | "value"
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
class Layers:
    """How many layers there are, and the first of those that only predict further tokens."""

    n_layer: int
    first_mtp: int

    def is_mtp(self, tensor_name: str) -> bool:
        layer = layer_of(tensor_name)
        return layer is not None and layer >= self.first_mtp


@dataclass(frozen=True)
class ExpertTensors:
    groups: tuple[ExpertGroup, ...]
    slice_names: frozenset[str]  # all other tensors are dense
    notes: tuple[str, ...]


def layer_of(tensor_name: str) -> int | None:
    match = _LAYER.fullmatch(tensor_name)
    return int(match[1]) if match else None


def find_experts(tensors: Iterable[TensorInfo], meta: Meta, layers: Layers) -> ExpertTensors:
    """Raises ModelError where tensors and declared counts contradict each other."""
    found: dict[tuple[int, int], dict[str, TensorInfo]] = {}  # (layer, family) -> role -> tensor
    apart: set[int] = set()
    beyond: list[str] = []
    unknown: list[str] = []
    for tensor in tensors:
        match = _LAYER.fullmatch(tensor.name)
        if match is None:
            continue
        layer, suffix = int(match[1]), match[2]
        place = _family_and_role(suffix)
        if place is None:
            if _ONE_EXPERT.fullmatch(suffix):
                apart.add(layer)
            elif _STACKED.fullmatch(suffix):
                unknown.append(tensor.name)
        elif layer >= layers.n_layer:
            beyond.append(tensor.name)
        else:
            found.setdefault((layer, place[0]), {})[place[1]] = tensor
    groups = tuple(
        _group(meta, layers, layer, FAMILIES[index], parts) for (layer, index), parts in sorted(found.items())
    )
    names = frozenset(part.tensor_name for group in groups for part in group.parts)
    return ExpertTensors(groups, names, _notes(apart, beyond, unknown, layers))


def _family_and_role(suffix: str) -> tuple[int, str] | None:
    name = suffix.removesuffix(".weight")
    if name != suffix:
        for index, family in enumerate(FAMILIES):
            if name in family.roles:
                return index, family.roles[name]
    return None


def _group(
    meta: Meta, layers: Layers, layer: int, family: ExpertFamily, tensors: dict[str, TensorInfo]
) -> ExpertGroup:
    layout = next((item for item in family.layouts if set(item) == set(tensors)), None)
    if layout is None:
        names = ", ".join(sorted(tensor.name for tensor in tensors.values()))
        problem = f"of layer {layer} are not a whole set: {names}"
        raise model_error(meta.path, "expert tensors", problem, FETCH_AGAIN)
    n_expert, top_k = _counts(meta, layers, layer, family)
    return ExpertGroup(
        layer=layer,
        family=family.name,
        n_expert=n_expert,
        top_k=top_k,
        parts=tuple(_part(meta, family, role, tensors[role], n_expert) for role in layout),
        is_mtp=layer >= layers.first_mtp,
    )


def _counts(meta: Meta, layers: Layers, layer: int, family: ExpertFamily) -> tuple[int, int]:
    """Experts of the layer and how many of them a token uses."""
    declared = meta.get_int(family.count_key, 0)
    if declared < 1:
        problem = f"is {declared}, but layer {layer} has expert tensors"
        raise model_error(meta.path, meta.full_key(family.count_key), problem, CONVERT_AGAIN, declared)
    top_k = meta.get_ints(family.used_key, layers.n_layer, 0)[layer]
    if not 1 <= top_k <= declared:
        problem = f"is {top_k} for layer {layer}, but should be 1 to {declared}"
        raise model_error(meta.path, meta.full_key(family.used_key), problem, CONVERT_AGAIN, top_k)
    if family.share_key is None:
        return declared, top_k
    shared_by = meta.get_int(family.share_key)
    if not 1 <= shared_by <= declared:
        problem = f"is {shared_by}, but should be 1 to {declared}"
        raise model_error(meta.path, meta.full_key(family.share_key), problem, CONVERT_AGAIN, shared_by)
    n_expert = declared // shared_by
    return n_expert, min(top_k, n_expert)


def _part(meta: Meta, family: ExpertFamily, role: str, tensor: TensorInfo, n_expert: int) -> ExpertPart:
    label = f"tensor {shown(tensor.name)}"
    rows = (*tensor.dims, 1, 1, 1, 1)[:4]  # as llama.cpp pads them
    if rows[2] != n_expert or rows[3] != 1:
        problem = (
            f"has the shape {tensor.dims}, but {meta.full_key(family.count_key)} makes it {n_expert} experts"
        )
        raise model_error(meta.path, label, problem, CONVERT_AGAIN, tensor.dims)
    slice_bytes, rest = divmod(tensor.nbytes, n_expert)
    if rest or slice_bytes == 0:
        problem = f"of {tensor.nbytes} bytes does not hold {n_expert} equal slices"
        raise model_error(meta.path, label, problem, CONVERT_AGAIN, tensor.nbytes)
    return ExpertPart(role, tensor.name, tensor.type_name, tensor.file_index, tensor.offset, slice_bytes)


def _notes(apart: set[int], beyond: list[str], unknown: list[str], layers: Layers) -> tuple[str, ...]:
    notes: list[str] = []
    if apart:
        notes.append(
            f"the experts of {len(apart)} layers are stored one by one (blk.N.ffn_gate.M.weight), a layout "
            "llama.cpp no longer runs; they cannot be streamed: convert the model again"
        )
    if beyond:
        notes.append(
            f"{len(beyond)} expert tensors lie beyond the {layers.n_layer} declared layers "
            f"({beyond[0]}, ...); they are not streamed"
        )
    if unknown:
        notes.append(
            f"{len(unknown)} expert tensors have unknown names ({unknown[0]}, ...); they are not streamed"
        )
    return tuple(notes)
