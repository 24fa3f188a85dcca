"""Synthetic MoE models: real architecture, real sizes, random weights, written at the speed of the drive.

Owns the two standard shapes of the benchmarks and smaller ones cut from them. Leaves block layouts to
``blocks`` and the tokenizer to ``vocabulary``. Every expert differs; the same shape and seed give the same
bytes. The file says of itself that it is synthetic (``guanaco.synthetic``), which is what allows replayed
routing on it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks import blocks
from benchmarks.vocabulary import CHAT_TEMPLATE, vocabulary
from guanaco.units import format_bytes, parse_size

_CHUNK_BYTES = 32 << 20  # of tensor data in memory at once


@dataclass(frozen=True)
class Shape:
    """A model of the ``qwen3moe`` architecture."""

    name: str
    n_layer: int
    n_expert: int
    top_k: int
    n_embd: int
    n_ff_exp: int
    n_head: int
    n_head_kv: int = 4
    head_length: int = 128
    n_vocab: int = 150_000
    context_length: int = 32_768
    expert_type: str = "MXFP4"
    second_type: str | None = None  # of the experts of every other layer
    output_type: str = "Q8_0"


# Expert slices are whole pages, as in the models these are narrowed from.
STANDARDS = {
    "qwen": Shape("qwen", n_layer=48, n_expert=128, top_k=6, n_embd=1024, n_ff_exp=768, n_head=32),
    "kimi": Shape(
        "kimi", n_layer=26, n_expert=256, top_k=8, n_embd=1024, n_ff_exp=640, n_head=48, output_type="F16"
    ),
}


@dataclass(frozen=True)
class TensorPlan:
    name: str
    dims: tuple[int, ...]  # row length first
    type_name: str
    std: float  # 0: ones
    is_expert: bool = False

    @property
    def n_rows(self) -> int:
        return int(np.prod(self.dims[1:], dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.n_rows * blocks.row_bytes(self.type_name, self.dims[0])


def tensors(shape: Shape) -> list[TensorPlan]:
    """All tensors in file order. Their spreads keep a token's state near one through any number of layers."""
    embd, ff, n_expert = shape.n_embd, shape.n_ff_exp, shape.n_expert
    q, kv = shape.n_head * shape.head_length, shape.n_head_kv * shape.head_length

    def matrix(name: str, *dims: int, kind: str = "Q8_0", gain: float = 1.0) -> TensorPlan:
        return TensorPlan(f"{name}.weight", dims, kind, gain * dims[0] ** -0.5)

    def ones(name: str, length: int) -> TensorPlan:
        return TensorPlan(f"{name}.weight", (length,), "F32", 0.0)

    def expert(name: str, *dims: int, kind: str, gain: float) -> TensorPlan:
        return replace(matrix(name, *dims, n_expert, kind=kind, gain=gain), is_expert=True)

    plan = [
        TensorPlan("token_embd.weight", (embd, shape.n_vocab), "F16", 1.0),
        matrix("output", embd, shape.n_vocab, kind=shape.output_type, gain=3.0),
        ones("output_norm", embd),
    ]
    for i in range(shape.n_layer):
        blk = f"blk.{i}."
        kind = shape.second_type if shape.second_type is not None and i % 2 else shape.expert_type
        plan += [
            ones(f"{blk}attn_norm", embd),
            matrix(f"{blk}attn_q", embd, q),
            matrix(f"{blk}attn_k", embd, kv),
            matrix(f"{blk}attn_v", embd, kv),
            ones(f"{blk}attn_q_norm", shape.head_length),
            ones(f"{blk}attn_k_norm", shape.head_length),
            matrix(f"{blk}attn_output", q, embd),
            ones(f"{blk}ffn_norm", embd),
            matrix(f"{blk}ffn_gate_inp", embd, n_expert, kind="F32", gain=1.5),
            expert(f"{blk}ffn_gate_exps", embd, ff, kind=kind, gain=1.5),
            expert(f"{blk}ffn_up_exps", embd, ff, kind=kind, gain=1.5),
            expert(f"{blk}ffn_down_exps", ff, embd, kind=kind, gain=2.0),
        ]
    return plan


def dense_bytes(shape: Shape) -> int:
    return sum(item.nbytes for item in tensors(shape) if not item.is_expert)


def expert_bytes(shape: Shape) -> int:
    return sum(item.nbytes for item in tensors(shape) if item.is_expert)


def header_bytes(shape: Shape) -> int:
    """An upper estimate; most of it is the vocabulary."""
    vocab = vocabulary(shape.n_vocab)
    strings = sum(len(text.encode()) + 8 for text in (*vocab.tokens, *vocab.merges))
    return strings + 4 * shape.n_vocab + 128 * len(tensors(shape)) + 8192


def total_bytes(shape: Shape) -> int:
    return header_bytes(shape) + dense_bytes(shape) + expert_bytes(shape)


def narrowed(shape: Shape, size_bytes: int) -> Shape:
    """The widest model of these layers and experts within ``size_bytes``, at most two fifths of it dense."""
    data_bytes = size_bytes - header_bytes(shape)
    for base in _widths(shape):
        n_steps = (data_bytes - dense_bytes(base)) // expert_bytes(base)
        if n_steps >= 1 and dense_bytes(base) <= 0.4 * data_bytes:
            return replace(base, n_ff_exp=32 * n_steps)
    smallest = list(_widths(shape))[-1]
    data_bytes = max(dense_bytes(smallest) + expert_bytes(smallest), -(-5 * dense_bytes(smallest) // 2))
    raise ValueError(
        f"{format_bytes(size_bytes)} is too small for {shape.n_layer} layers x {shape.n_expert} experts and "
        f"{shape.n_vocab} tokens: at least {data_bytes + header_bytes(shape)} bytes, or fewer of them"
    )


def _widths(shape: Shape) -> Iterator[Shape]:
    """The shape at falling widths, its experts one block wide."""
    for n_embd in (1024, 768, 512, 256, 128):
        yield replace(
            shape,
            n_embd=n_embd,
            n_head=max(4, shape.n_head * n_embd // 1024),
            head_length=shape.head_length if n_embd >= 512 else 64,
            n_ff_exp=32,
        )


def check(shape: Shape) -> None:
    """Raises ValueError naming the setting that cannot be."""
    if shape.n_layer < 1:
        raise ValueError(f"{shape.n_layer} layers: at least one")
    if not 1 <= shape.top_k <= shape.n_expert:
        raise ValueError(
            f"top-k {shape.top_k} of {shape.n_expert} experts: between 1 and the number of experts"
        )
    vocabulary(shape.n_vocab)


def write(shape: Shape, path: Path, *, seed: int = 0) -> Iterator[int]:
    """Write the model to ``path`` through a temporary name; yields the bytes of tensor data so far."""
    check(shape)
    free = shutil.disk_usage(path.parent).free
    if free < total_bytes(shape) + (64 << 20):
        raise ValueError(
            f"{path.parent} has {format_bytes(free)} free, the model takes {format_bytes(total_bytes(shape))}"
        )
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen3moe")
    _add_metadata(writer, shape)
    plan = tensors(shape)
    for item in plan:
        kind = gguf.GGMLQuantizationType[item.type_name]
        byte_shape = (*item.dims[:0:-1], blocks.row_bytes(item.type_name, item.dims[0]))
        is_plain = item.type_name in ("F16", "F32")
        writer.add_tensor_info(
            item.name,
            item.dims[::-1] if is_plain else byte_shape,
            np.dtype(np.float16 if is_plain else np.uint8),
            item.nbytes,
            raw_dtype=kind,
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        with partial.open("r+b") as file:
            file.seek(0, 2)
            yield from _write_data(file, plan, shape, seed)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_data(file: BinaryIO, plan: Sequence[TensorPlan], shape: Shape, seed: int) -> Iterator[int]:
    alignment = gguf.GGUF_DEFAULT_ALIGNMENT
    silent = ~np.array(vocabulary(shape.n_vocab).printable)
    written = 0
    _pad(file, alignment)
    for item in plan:
        for raw in _chunks(item, seed, silent):
            file.write(raw.data)
            written += raw.nbytes
            yield written
        _pad(file, alignment)


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _chunks(item: TensorPlan, seed: int, silent: npt.NDArray[np.bool_]) -> Iterator[blocks.Bytes]:
    row_length = item.dims[0]
    if item.std == 0:
        yield np.ones(item.n_rows * row_length, dtype="<f4").view(np.uint8)
        return
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(item.name.encode())]))
    step = max(1, _CHUNK_BYTES // blocks.row_bytes(item.type_name, row_length))
    for start in range(0, item.n_rows, step):
        n_rows = min(step, item.n_rows - start)
        raw = blocks.random_rows(rng, item.type_name, n_rows, row_length, item.std)
        if item.name == "output.weight":
            # Zero rows are never the most likely token: no early end, no half characters.
            raw[silent[start : start + n_rows]] = 0
        yield raw


def _add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"Guanaco synthetic {shape.name}")
    writer.add_bool("guanaco.synthetic", True)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(4 * shape.n_embd)
    writer.add_expert_feed_forward_length(shape.n_ff_exp)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.top_k)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_length)
    writer.add_value_length(shape.head_length)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000.0)
    vocab = vocabulary(shape.n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocab.tokens))
    writer.add_token_types(list(vocab.token_types))
    writer.add_token_merges(list(vocab.merges))
    writer.add_eos_token_id(vocab.eos_id)
    writer.add_pad_token_id(vocab.pad_id)
    writer.add_add_bos_token(False)
    writer.add_string(gguf.Keys.Tokenizer.CHAT_TEMPLATE, CHAT_TEMPLATE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write a synthetic MoE model of random weights.")
    parser.add_argument("--standard", choices=sorted(STANDARDS), default="qwen", help="shape to start from")
    parser.add_argument("--layers", type=int, help="number of layers")
    parser.add_argument("--experts", type=int, help="experts a layer")
    parser.add_argument("--top-k", type=int, help="experts used a token and layer")
    parser.add_argument("--vocab", type=int, help="number of tokens")
    parser.add_argument(
        "--second-type", choices=sorted(blocks.TYPES), help="quantisation of the experts of every other layer"
    )
    parser.add_argument("--size", help="narrow the model to at most this size, e.g. 300MB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    return parser


def shape_from(options: argparse.Namespace) -> Shape:
    shape = STANDARDS[options.standard]
    shape = replace(
        shape,
        n_layer=options.layers if options.layers is not None else shape.n_layer,
        n_expert=options.experts if options.experts is not None else shape.n_expert,
        top_k=options.top_k if options.top_k is not None else shape.top_k,
        n_vocab=options.vocab if options.vocab is not None else shape.n_vocab,
        second_type=options.second_type,
    )
    check(shape)
    return narrowed(shape, parse_size(options.size)) if options.size else shape


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    started = time.monotonic()
    try:
        shape = shape_from(options)
        if not options.out.parent.is_dir():
            raise ValueError(f"{options.out.parent} is not a folder")
        total, next_report = dense_bytes(shape) + expert_bytes(shape), 0.0
        for written in write(shape, options.out, seed=options.seed):
            if sys.stderr.isatty() and time.monotonic() >= next_report:
                sys.stderr.write(f"\r{100 * written // total} %")
                next_report = time.monotonic() + 0.2
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(
        f"{options.out}: {format_bytes(options.out.stat().st_size)}, "
        f"{shape.n_layer} layers x {shape.n_expert} experts top-{shape.top_k}, "
        f"dense {format_bytes(dense_bytes(shape))}, "
        f"{time.monotonic() - started:.1f} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
