"""Trained weights and their vocabulary as a GGUF file.

Owns the file's metadata and which type each tensor is stored in. Needs no torch: weights are numpy arrays.
Refuses weights that are not exactly the table of ``shape``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from benchmarks.vocabulary import SPECIAL_TOKENS

from tools.demo_model import shape
from tools.demo_model.vocabulary import END_OF_TEXT, TURN_END, Vocabulary

ARCHITECTURE = "qwen3moe"
CHAT_TEMPLATE = (
    "{% for turn in messages %}{{ '<|im_start|>' + turn['role'] + '\n' + turn['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Weights = Mapping[str, npt.NDArray[np.float32]]


def write(path: Path, weights: Weights, vocabulary: Vocabulary) -> None:
    """The whole model in one file."""
    table = _checked(weights)
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    _add_general(writer)
    _add_dimensions(writer)
    _add_tokenizer(writer, vocabulary)
    for tensor in table:
        kind = gguf.GGMLQuantizationType[tensor.type_name]
        writer.add_tensor(tensor.name, gguf.quants.quantize(weights[tensor.name], kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _checked(weights: Weights) -> list[shape.Tensor]:
    table = list(shape.tensors())
    if set(weights) != {tensor.name for tensor in table}:
        raise ValueError(f"these are not the demo model's tensors: {', '.join(sorted(weights))}")
    for tensor in table:
        if weights[tensor.name].shape != tensor.dims:
            raise ValueError(f"{tensor.name} is {weights[tensor.name].shape}, not {tensor.dims}")
    return table


def _add_general(writer: gguf.GGUFWriter) -> None:
    writer.add_name("guanaco-demo")
    writer.add_description(
        f"Mixture of experts, {shape.N_LAYER} layers of {shape.N_EXPERT}, trained on made-up chat turns"
    )
    writer.add_license("Apache-2.0")


def _add_dimensions(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(shape.CONTEXT_LENGTH)
    writer.add_embedding_length(shape.N_EMBD)
    writer.add_block_count(shape.N_LAYER)
    # No layer is dense; the engine wants the key all the same.
    writer.add_feed_forward_length(shape.N_FF_EXPERT * shape.TOP_K)
    writer.add_head_count(shape.N_HEAD)
    writer.add_head_count_kv(shape.N_HEAD_KV)
    writer.add_key_length(shape.HEAD_LENGTH)
    writer.add_value_length(shape.HEAD_LENGTH)
    writer.add_layer_norm_rms_eps(shape.RMS_EPSILON)
    writer.add_rope_freq_base(shape.ROPE_BASE)
    writer.add_expert_count(shape.N_EXPERT)
    writer.add_expert_used_count(shape.TOP_K)
    writer.add_expert_feed_forward_length(shape.N_FF_EXPERT)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    unused = range(len(vocabulary.tokens), shape.N_VOCAB)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*vocabulary.tokens, *(f"[unused {number}]" for number in unused)])
    writer.add_token_types(
        [kinds.NORMAL] * (len(vocabulary.tokens) - len(SPECIAL_TOKENS))
        + [kinds.CONTROL] * len(SPECIAL_TOKENS)
        + [kinds.UNUSED] * len(unused)
    )
    writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
    writer.add_eos_token_id(vocabulary.ids[TURN_END])
    writer.add_bos_token_id(vocabulary.ids[END_OF_TEXT])
    writer.add_pad_token_id(vocabulary.ids[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write what train.py left in FOLDER as a GGUF file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    words = parser.parse_args()
    merges = json.loads((words.folder / "merges.json").read_text())
    vocabulary = Vocabulary([(left, right) for left, right in merges])
    with np.load(words.folder / "weights.npz") as stored:
        write(words.out, {name: stored[name] for name in stored.files}, vocabulary)


if __name__ == "__main__":
    main()
