"""Tiny random GGUF files of every MoE architecture in ``ARCHS``, and mutated copies of them.

Owns the weights and the files. Leaves architectures to ``tiny_uniform`` and ``tiny_varied``. Weights are
scaled so that experts matter: exchanging two of them changes the logits clearly. A file of the same spec,
options and seed has the same bytes.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from benchmarks import blocks
from benchmarks.vocabulary import CHAT_TEMPLATE, Vocabulary, vocabulary

from tests.support.tiny_parts import VOCAB, Part
from tests.support.tiny_spec import TinySpec
from tests.support.tiny_uniform import UNIFORM
from tests.support.tiny_varied import VARIED

__all__ = ["ARCHS", "TinySpec", "build", "exchange_experts", "spec_named"]

ARCHS: tuple[TinySpec, ...] = UNIFORM + VARIED
FALLBACK = "Q8_0"
# What mixed_quants puts beside the first type.
_SECOND_QUANT = {"MXFP4": "Q8_0", "F16": "MXFP4", "Q4_0": "Q8_0", "Q8_0": "Q4_0", "Q4_K": "Q6_K"}


def spec_named(name: str) -> TinySpec:
    return next(spec for spec in ARCHS if spec.name == name)


def build(
    spec: TinySpec,
    folder: Path,
    *,
    quant: str | None = None,
    shards: int = 1,
    mixed_quants: bool = False,
    seed: int = 0,
) -> Path:
    """Write the model into ``folder``; the path of the file, or of the first shard.

    ``quant``: type of the expert tensors in place of the spec's own. ``mixed_quants``: a second type in every
    other MoE layer, so that one file holds two slice sizes.
    """
    quant = quant or spec.quant
    tags = [spec.name, quant.lower(), *(["mixed"] if mixed_quants else []), str(seed)]
    path = folder / f"{'-'.join(tags)}.gguf"
    split = -(-len(spec.parts) // shards) if shards > 1 else 0
    writer = gguf.GGUFWriter(path, spec.arch, split_max_tensors=split)
    _add_metadata(writer, spec)
    vocab = vocabulary(VOCAB)
    _add_vocabulary(writer, vocab)
    second = _SECOND_QUANT.get(quant, "Q8_0")
    for part in spec.parts:
        is_second = mixed_quants and _layer(part) in spec.moe_layers[1::2]
        kind, data = _weights(part, second if is_second else quant, vocab, seed)
        writer.add_tensor(part.name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / f"{path.stem}-00001-of-{shards:05}.gguf" if shards > 1 else path


def _layer(part: Part) -> int:
    return int(part.name.split(".")[1]) if part.name.startswith("blk.") else -1


def _add_metadata(writer: gguf.GGUFWriter, spec: TinySpec) -> None:
    writer.add_name(f"tiny {spec.name}")
    for key, value in spec.metadata.items():
        name = f"{spec.arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            raise TypeError(f"{name}: no metadata type for {value!r}")


def _add_vocabulary(writer: gguf.GGUFWriter, vocab: Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocab.tokens))
    writer.add_token_types(list(vocab.token_types))
    writer.add_token_merges(list(vocab.merges))
    writer.add_eos_token_id(vocab.eos_id)
    writer.add_pad_token_id(vocab.pad_id)
    writer.add_add_bos_token(False)
    writer.add_string(gguf.Keys.Tokenizer.CHAT_TEMPLATE, CHAT_TEMPLATE)


def _weights(part: Part, quant: str, vocab: Vocabulary, seed: int) -> tuple[str, npt.NDArray[np.generic]]:
    """The type and the data of one tensor; data is shaped as the writer wants it, slowest dimension first."""
    rng = np.random.default_rng([seed, zlib.crc32(part.name.encode())])
    row_length, shape = part.dims[0], part.dims[::-1]
    plain: dict[str, Callable[[], npt.NDArray[np.float64]]] = {
        "norm": lambda: part.gain * (1 + 0.1 * rng.standard_normal(shape)),
        "bias": lambda: part.gain * rng.standard_normal(shape),
        "router": lambda: part.gain * row_length**-0.5 * rng.standard_normal(shape),
        "scale": lambda: rng.uniform(0.6, 1.4, shape),
        "conv": lambda: row_length**-0.5 * rng.standard_normal(shape),
        "decay": lambda: -rng.uniform(0.1, 1.0, shape),
        "ones": lambda: np.ones(shape),
        "zeros": lambda: np.zeros(shape),
    }
    if part.kind in plain:
        return "F32", plain[part.kind]().astype(np.float32)
    kind, std = {
        "matrix": (FALLBACK, part.gain * row_length**-0.5),
        "expert": (quant, part.gain * row_length**-0.5),
        "embedding": ("F16", part.gain),
        "output": ("F16", part.gain * row_length**-0.5),
    }[part.kind]
    if row_length % blocks.block_type(kind).n_weights:
        kind = FALLBACK
    raw = blocks.random_rows(rng, kind, int(np.prod(part.dims[1:])), row_length, std)
    if part.kind == "output":
        # Never the end of the text, never half a character: answers stay comparable through the server too.
        raw[~np.array(vocab.printable)] = 0
    if kind == "F16":
        return kind, raw.view("<f2").reshape(shape)
    return kind, raw.reshape(*shape[:-1], raw.shape[-1])


def exchange_experts(
    path: Path, layer: int, order: Sequence[int], target: Path, *, family: str = "exps"
) -> Path:
    """A copy of a single-file model in which expert ``e`` of a layer holds what ``order[e]`` held."""
    shutil.copyfile(path, target)
    wanted = f"blk.{layer}.ffn_"
    found = [
        item
        for item in gguf.GGUFReader(path).tensors
        if item.name.startswith(wanted) and item.name.endswith(f"_{family}.weight")
    ]
    if not found:
        raise ValueError(f"{path.name} has no experts in layer {layer}")
    with target.open("r+b") as file:
        for item in found:
            slices = np.array(item.data).view(np.uint8).reshape(len(order), -1)
            file.seek(item.data_offset)
            file.write(slices[list(order)].tobytes())
    return target
