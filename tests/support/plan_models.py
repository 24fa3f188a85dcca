"""Models and machines as values, for planner tests: no file is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from guanaco.gguf.types import GgufModel, ShardFile, TensorInfo
from guanaco.hardware.facts import Hardware
from guanaco.model.experts import ExpertGroup, ExpertPart
from guanaco.model.map import DenseRange, ModelMap
from guanaco.units import GIB, MIB

MODEL_PATH = Path("model.gguf")
MACHINE = Hardware(
    ram_total_bytes=64 * GIB,
    ram_available_bytes=60 * GIB,
    cgroup_limit_bytes=None,
    cgroup_used_bytes=None,
    n_physical_cores=4,
    n_logical_cores=8,
)
_HEADER_BYTES = 1 * MIB


def moe_model(
    layers: Sequence[tuple[int, ...]],
    *,
    n_expert: int = 16,
    top_k: int = 2,
    dense_bytes: int = 64 * MIB,
    table_bytes: int = 0,
    mtp_slices: tuple[int, ...] = (),
    type_name: str = "q4_0",
    arch: str = "qwen3moe",
    **metadata: object,
) -> ModelMap:
    """``layers``: the slice sizes of each MoE layer's parts; none at all makes a dense model."""
    tensors, dense, groups = [], [], []
    at = _HEADER_BYTES

    def add(name: str, nbytes: int) -> int:
        nonlocal at
        offset = at
        tensors.append(TensorInfo(name, (32, 32), 2, type_name, 0, offset, nbytes))
        at += -(-nbytes // 32) * 32
        return offset

    for name, nbytes, is_table in (("output.weight", dense_bytes, False), ("table", table_bytes, True)):
        if nbytes:
            dense.append(DenseRange(name, 0, add(name, nbytes), nbytes, is_table))
    roles = ("gate", "up", "down", "gate_up")
    for i, slices in enumerate([*layers, *([mtp_slices] if mtp_slices else [])]):
        parts = []
        for role, nbytes in zip(roles, slices, strict=False):
            name = f"blk.{i}.ffn_{role}_exps.weight"
            offset = add(name, nbytes * n_expert)
            parts.append(ExpertPart(role, name, type_name, 0, offset, nbytes))
        groups.append(ExpertGroup(i, "exps", n_expert, top_k, tuple(parts), i >= len(layers)))
    n_layer = max(1, len(groups))
    keys: dict[str, object] = {
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "expert_feed_forward_length": 512,
        "nextn_predict_layers": 1 if mtp_slices else 0,
        **{key.replace("__", "."): value for key, value in metadata.items()},
    }
    file = ShardFile(MODEL_PATH, at, 1, 2, 3, _HEADER_BYTES, 32)
    return ModelMap(
        gguf=GgufModel((file,), 3, {f"{arch}.{key}": value for key, value in keys.items()}, tuple(tensors)),
        name="model",
        arch=arch,
        n_layer=n_layer,
        n_embd=512,
        n_vocab=32000,
        n_ctx_train=32768,
        n_expert=n_expert if groups else 0,
        n_expert_used=top_k if groups else 0,
        dense=tuple(dense),
        groups=tuple(groups),
        token_embd_bytes=0,
        has_own_output=True,
    )


def shape(arch: str, n_layer: int, n_embd: int = 4096, **metadata: object) -> ModelMap:
    """A model of which only the metadata matters; ``__`` in a name stands for a point."""
    keys = {f"{arch}.{key.replace('__', '.')}": value for key, value in metadata.items()}
    file = ShardFile(MODEL_PATH, MIB, 1, 2, 3, MIB, 32)
    return ModelMap(
        gguf=GgufModel((file,), 3, keys, ()),
        name="model",
        arch=arch,
        n_layer=n_layer,
        n_embd=n_embd,
        n_vocab=32000,
        n_ctx_train=131072,
        n_expert=0,
        n_expert_used=0,
        dense=(),
        groups=(),
        token_embd_bytes=0,
        has_own_output=True,
    )
