"""Training on the processor, for a given time: leaves ``weights.npz`` and ``merges.json`` in a folder.

Owns the network in PyTorch, as the engine's ``qwen3moe`` computes it, and the schedule. The weights have
GGUF's names and directions from the start. The only file that needs torch.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tools.demo_model import corpus, shape
from tools.demo_model.vocabulary import Vocabulary, learn

N_THREADS = 2
N_SEQUENCES, N_TOKENS = 16, 192
VOCABULARY_TURNS = 20_000
PEAK_RATE, LAST_RATE_SHARE, WARM_UP_STEPS = 2e-3, 0.05, 100
WEIGHT_DECAY, MAX_GRADIENT = 0.05, 1.0
BALANCE_WEIGHT = 0.003  # against routers that always pick the same few
REPORT_S, SAVE_STEPS = 30.0, 500

Weights = dict[str, Any]


def initial_weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for tensor in shape.tensors():
        if tensor.std:
            values = torch.randn(tensor.dims, generator=generator) * tensor.std
        else:
            values = torch.ones(tensor.dims)
        weights[tensor.name] = values.requires_grad_()
    return weights


def forward(weights: Weights, ids: Any) -> tuple[Any, Any]:
    """Logits of every position, and how unevenly experts were used (1: evenly)."""
    x = weights["token_embd.weight"][ids]
    turns = _rotations(ids.shape[1])
    unevenness = torch.zeros(())
    for layer in range(shape.N_LAYER):
        prefix = f"blk.{layer}."
        own = {name.split(".")[2]: weight for name, weight in weights.items() if name.startswith(prefix)}
        x = x + _attention(own, _norm(x, own["attn_norm"]), turns)
        update, layer_unevenness = _experts(own, _norm(x, own["ffn_norm"]))
        x = x + update
        unevenness = unevenness + layer_unevenness / shape.N_LAYER
    x = _norm(x, weights["output_norm.weight"])
    return functional.linear(x, weights["output.weight"]), unevenness


def _norm(x: Any, scale: Any) -> Any:
    return functional.rms_norm(x, scale.shape, scale, shape.RMS_EPSILON)


def _rotations(n_tokens: int) -> tuple[Any, Any]:
    half = torch.arange(shape.HEAD_LENGTH // 2) / (shape.HEAD_LENGTH // 2)
    angles = torch.arange(n_tokens)[:, None] * shape.ROPE_BASE**-half
    return angles.cos(), angles.sin()


def _rotated(x: Any, turns: tuple[Any, Any]) -> Any:
    cos, sin = turns
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _attention(own: Weights, x: Any, turns: tuple[Any, Any]) -> Any:
    def heads(name: str) -> Any:
        return functional.linear(x, own[name]).unflatten(-1, (-1, shape.HEAD_LENGTH)).transpose(1, 2)

    query = _rotated(_norm(heads("attn_q"), own["attn_q_norm"]), turns)
    key = _rotated(_norm(heads("attn_k"), own["attn_k_norm"]), turns)
    shared = shape.N_HEAD // shape.N_HEAD_KV
    mixed = functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(shared, dim=1),
        heads("attn_v").repeat_interleave(shared, dim=1),
        is_causal=True,
    )
    return functional.linear(mixed.transpose(1, 2).flatten(-2), own["attn_output"])


def _experts(own: Weights, x: Any) -> tuple[Any, Any]:
    """Rows are sorted by expert, so that each expert's work is one product."""
    rows = x.flatten(0, 1)
    shares = functional.linear(rows, own["ffn_gate_inp"]).softmax(-1)
    chosen_shares, chosen = shares.topk(shape.TOP_K)
    chosen_shares = chosen_shares / chosen_shares.sum(-1, keepdim=True)

    by_expert = chosen.flatten().argsort()
    counts = chosen.flatten().bincount(minlength=shape.N_EXPERT)
    row_of = by_expert // shape.TOP_K
    results = []
    for expert, group in enumerate(rows[row_of].split(counts.tolist())):
        gate = functional.silu(functional.linear(group, own["ffn_gate_exps"][expert]))
        up = functional.linear(group, own["ffn_up_exps"][expert])
        results.append(functional.linear(gate * up, own["ffn_down_exps"][expert]))
    weighted = torch.cat(results) * chosen_shares.flatten()[by_expert, None]
    total = torch.zeros_like(rows).index_add(0, row_of, weighted)

    unevenness = shape.N_EXPERT * (counts / counts.sum() * shares.mean(0)).sum()
    return total.view_as(x), unevenness


def batches(vocabulary: Vocabulary, seed: int) -> Iterator[Any]:
    """Rows of one token more than the network reads: the last is only ever an answer."""
    waiting: list[int] = []
    needed = N_SEQUENCES * (N_TOKENS + 1)
    for turn in corpus.turns(seed):
        waiting += vocabulary.encode_turn(turn)
        if len(waiting) >= needed:
            yield torch.tensor(waiting[:needed]).view(N_SEQUENCES, N_TOKENS + 1)
            waiting = waiting[needed:]


def learning_rate(step: int, share_done: float) -> float:
    cosine = (1 + math.cos(math.pi * share_done)) / 2
    return PEAK_RATE * min(1, (step + 1) / WARM_UP_STEPS) * (LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * cosine)


def train(seconds: float, folder: Path) -> None:
    """Prints the loss now and then; saves as it goes."""
    torch.set_num_threads(N_THREADS)
    vocabulary = learn(islice(corpus.turns(seed=1), VOCABULARY_TURNS))
    (folder / "merges.json").write_text(json.dumps(vocabulary.merges))
    weights = initial_weights(seed=0)
    print(f"{sum(weight.numel() for weight in weights.values()):,} weights, {len(vocabulary.tokens)} tokens")
    optimiser = torch.optim.AdamW(weights.values(), PEAK_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
    start = time.monotonic()
    next_report = 0.0
    for step, rows in enumerate(batches(vocabulary, seed=7)):
        elapsed = time.monotonic() - start
        if elapsed >= seconds:
            break
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, elapsed / seconds)
        logits, unevenness = forward(weights, rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        (loss + BALANCE_WEIGHT * unevenness).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), MAX_GRADIENT)
        optimiser.step()
        optimiser.zero_grad()
        if elapsed >= next_report:
            next_report += REPORT_S
            print(f"{elapsed:5.0f} s  step {step}  loss {loss:.3f}  unevenness {unevenness:.2f}", flush=True)
        if step % SAVE_STEPS == SAVE_STEPS - 1:
            save(weights, folder)
    save(weights, folder)


def save(weights: Weights, folder: Path) -> None:
    np.savez(folder / "weights.npz", **{name: weight.detach().numpy() for name, weight in weights.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model for SECONDS; results go to FOLDER.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=2700.0)
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    train(words.seconds, words.folder)


if __name__ == "__main__":
    main()
