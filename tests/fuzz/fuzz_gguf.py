"""Coverage-guided fuzzing of the GGUF reader and the model map.

``python tests/fuzz/fuzz_gguf.py -max_total_time=120``; options are libFuzzer's, the corpus grows in
``build/fuzz-gguf``. An input is three control bytes and the bytes of one file, or of two shards. Findings:
anything but a ModelError, an accepted header that the engine's own parser refuses or reads differently, a
slow or a large read. Needs ``pip install atheris``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz-gguf"
for folder in (ROOT, ROOT / "src"):
    sys.path.insert(0, str(folder))

try:
    import atheris
except ImportError:
    sys.exit("fuzzing needs atheris: pip install atheris")

with atheris.instrument_imports(include=["guanaco"]):
    from guanaco.errors import ModelError
    from guanaco.gguf.reader import read_gguf
    from guanaco.gguf.types import GgufModel
    from guanaco.model.map import build_model_map
    from tests.support import gguf_builder as build
    from tests.support.engine_gguf import engine_header

LIMIT_S = 5.0
DEFAULTS = {"-rss_limit_mb": "768", "-timeout": "20", "-max_len": "32768"}
TWO_SHARDS = 0x80
CONTROL_BYTES = 3


def read_once(data: bytes, folder: Path) -> None:
    """One input. Raises AssertionError for a finding."""
    if len(data) < CONTROL_BYTES:
        return
    paths = _write(data, folder)
    start_s = time.process_time()
    try:
        model = read_gguf(paths[-1])
    except ModelError as error:
        _check_message(error, folder)
    else:
        _check_map(model)
        if len(model.files) == 1:
            _check_engine(paths[-1], model)
    finally:
        for path in paths:
            path.unlink()
    assert time.process_time() - start_s < LIMIT_S, "slow"


def _write(data: bytes, folder: Path) -> list[Path]:
    """The control bytes choose the hole that stands for tensor data, and where a second shard begins."""
    tail_bytes = 1 << (data[0] & 0x3F) if data[0] & 0x3F else 0
    body = data[CONTROL_BYTES:]
    if data[0] & TWO_SHARDS:
        cut = int.from_bytes(data[1:CONTROL_BYTES], "little")
        parts = [body[:cut], body[cut:]]
        paths = [folder / f"m-{index + 1:05d}-of-00002.gguf" for index in range(2)]
    else:
        parts, paths = [body], [folder / "m.gguf"]
    for path, part in zip(paths, parts, strict=True):
        with path.open("wb") as file:
            file.write(part)
            file.truncate(len(part) + min(tail_bytes, 1 << 40))
    return paths


def _check_message(error: ModelError, folder: Path) -> None:
    assert error.message.startswith(str(folder)), error.message
    assert "; " in error.message and error.message.isprintable(), error.message
    assert len(error.message) < 800, error.message


def _check_map(model: GgufModel) -> None:
    for tensor in model.tensors:
        assert tensor.offset + tensor.nbytes <= model.files[tensor.file_index].size_bytes
    try:
        mapped = build_model_map(model)
    except ModelError as error:
        _check_message(error, model.files[0].path.parent)
        return
    assert mapped.dense_bytes + mapped.expert_bytes == sum(tensor.nbytes for tensor in model.tensors)


def _check_engine(path: Path, model: GgufModel) -> None:
    engine = engine_header(path)
    assert engine is not None, "the engine refuses what was read"
    assert (engine.version, engine.key_count) == (model.version, len(model.metadata))
    assert list(engine.tensors) == [
        (tensor.name.encode(), tensor.type_id, tensor.offset, tensor.nbytes) for tensor in model.tensors
    ]


def seeds() -> dict[str, bytes]:
    """Small inputs that reach every branch of an honest read."""
    moe = build.language_model("qwen3moe", 2, expert_count=4, expert_used_count=2, nextn_predict_layers=1)
    moe.array("tokenizer.ggml.tokens", build.STRING, ["a", "bc", ""])
    moe.array("qwen3moe.attention.head_count_kv", build.U32, [2, 0])
    build.add_experts(build.add_experts(moe, 0, 4, type_id=build.Q8_0), 1, 4)
    grove = build.language_model("grovemoe", 1, expert_count=4, expert_used_count=2, experts_per_group=2)
    build.add_experts(grove, 0, 4, ("ffn_gate_up_exps", "ffn_down_exps"))
    build.add_experts(grove, 0, 2, ("ffn_up_chexps", "ffn_down_chexps"))
    by_layer = build.language_model("nemotron_h_moe", 3, expert_count=2)
    by_layer.array("nemotron_h_moe.expert_used_count", build.U32, [0, 1, 2])
    build.add_experts(by_layer, 2, 2, ("ffn_up_exps", "ffn_down_exps"))
    apart = build.language_model("llama", 1, expert_count=2, expert_used_count=1)
    apart.tensor("blk.0.ffn_up.0.weight", (8, 8)).tensor("blk.9.ffn_up_exps.weight", (8, 8, 2))
    every = build.language_model("gemma4", 1).aligned(64).tensor("per_layer_token_embd.weight", (8, 2**31))
    every.version = 2
    for type_id in (*range(build.STRING), build.U64, build.I64, build.FLOAT64):
        every.key(f"k{type_id}", type_id, 1).array(f"l{type_id}", type_id, [1, 0])
    first = build.shard(0, 2, 2, build.language_model()).tensor("a", (8,)).header() + bytes(64)
    second = build.shard(1, 2, 2).tensor("b", (8,)).header() + bytes(64)
    files = {
        "moe": moe,
        "grove": grove,
        "by-layer": by_layer,
        "apart": apart,
        "every-type": every,
        "tensors": build.language_model("bert").tensor("a", (3,)).tensor("b", (64, 2), build.MXFP4),
    }
    found = {name: bytes((40, 0, 0)) + made.header() for name, made in files.items()}
    found["shards"] = bytes((TWO_SHARDS, *len(first).to_bytes(2, "little"))) + first + second
    return found


def words() -> str:
    """A libFuzzer dictionary: names with their length before them, as the format stores texts."""
    names = [
        "general.alignment",
        "general.type",
        "adapter",
        "split.no",
        "split.count",
        "split.tensors.count",
        "tokenizer.ggml.tokens",
        "qwen3moe.expert_count",
        "qwen3moe.expert_used_count",
        "qwen3moe.block_count",
        "qwen3moe.nextn_predict_layers",
        "blk.0.ffn_gate_exps.weight",
        "blk.1.ffn_gate_up_exps.weight",
        "blk.0.ffn_down_exps.weight",
        "blk.0.attn_v_exps.weight",
        "token_embd.weight",
        "output.weight",
    ]
    escaped = ("".join(f"\\x{byte:02x}" for byte in build.text(name)) for name in names)
    return "".join(f'"{item}"\n' for item in escaped)


def main() -> None:
    corpus = WORK / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (corpus / f"seed-{name}").write_bytes(data)
    (WORK / "words").write_text(words())
    arguments = sys.argv[1:]
    given = {item.split("=")[0] for item in arguments}
    arguments += [f"{name}={value}" for name, value in DEFAULTS.items() if name not in given]
    if not any(not item.startswith("-") for item in arguments):
        arguments.append(str(corpus))
    if "-dict" not in given:
        arguments.append(f"-dict={WORK / 'words'}")
    if "-artifact_prefix" not in given:
        arguments.append(f"-artifact_prefix={WORK}/")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        atheris.Setup([sys.argv[0], *arguments], lambda data: read_once(data, Path(name)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
