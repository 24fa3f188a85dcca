"""``guanaco run`` and ``demo``: answers, the JSON shape, ends, and files that are no models."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guanaco.cli.demo import demo_model
from guanaco.engine import llama, native
from tests.support.cli import COMMAND, Command, children, is_alive, run_guanaco, wait_until

MODEL = str(demo_model())
STREAMED = ("--load-mode", "streaming", "--guanaco-max-experts", "9", "--memory", "256MiB")


def test_the_demo_answers_in_sentences_and_says_what_it_cost() -> None:
    result = run_guanaco("demo")
    assert result.returncode == 0
    assert result.stdout.startswith("Once upon a time there was a guanaco")
    assert result.stdout.endswith(".\n")
    for words in ("tok/s", "hit rate", "read per token", "peak", "budget", "I/O: ", "28.1 % of its experts"):
        assert words in result.stderr, words
    assert "[Guanaco Storage] Parsed 12 expert tensors across 4 layers (from 1 shard(s))" in result.stderr
    assert "[Guanaco HerdCache] final: " in result.stderr


def test_the_json_of_a_streamed_run() -> None:
    result = run_guanaco("run", MODEL, "What is the capital of Peru?", *STREAMED, "--temp", "0", "--json")
    assert result.returncode == 0
    shape = json.loads(result.stdout)
    assert shape["text"] == "The capital of Peru is Lima."
    assert len(shape["tokens"]) == shape["timings"]["decode_n"] == 8
    assert shape["finish_reason"] == "stop"
    memory = shape["memory"]
    assert 0 < memory["peak_bytes"] < memory["planned_bytes"] <= memory["budget_bytes"] == 256 << 20
    streaming = shape["streaming"]
    assert streaming["slots"] == 36
    assert streaming["misses"] > 0
    assert streaming["hits"] + streaming["misses"] == streaming["accesses"]
    assert streaming["bytes_read"] > 0
    assert streaming["unmanaged"] == 0
    assert streaming["policy"] == "recall"
    assert streaming["pilot"]["mode"] == "auto"
    assert streaming["io"]
    assert shape["plan"]["placement"] == "stream"


def test_a_whole_model_streams_nothing() -> None:
    result = run_guanaco("run", MODEL, "What is 7 plus 8?", "--memory", "512MiB", "--temp", "0", "--json")
    shape = json.loads(result.stdout)
    assert shape["text"] == "7 plus 8 is 15."
    assert shape["streaming"] is None
    assert shape["plan"]["placement"] == "cpu"


@pytest.mark.parametrize("io", ["threads", "buffered", "pagecache"])
def test_every_way_of_reading_gives_the_same_tokens(io: str) -> None:
    words = ("What is the capital of Peru?", *STREAMED, "--io", io, "--temp", "0", "--json")
    assert json.loads(run_guanaco("run", MODEL, *words).stdout)["tokens"] == [
        516,
        395,
        305,
        890,
        286,
        953,
        13,
        993,
    ]


def test_the_prompt_may_come_from_standard_input_and_the_model_by_flag() -> None:
    words = ["run", "-m", MODEL, "--memory", "512MiB", "--temp", "0"]
    result = subprocess.run(
        [*COMMAND, *words],
        input="What is 7 plus 8?\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout == "7 plus 8 is 15.\n"


def test_a_raw_prompt_is_continued() -> None:
    words = ("run", MODEL, "Once upon", "-no-cnv", "-n", "4", "--temp", "0", "--memory", "512MiB")
    assert run_guanaco(*words).stdout.startswith(" a time")
    shape = json.loads(run_guanaco(*words, "--json").stdout)
    assert shape["text"].startswith(" a time")
    assert len(shape["tokens"]) == 4
    assert shape["finish_reason"] == "length"


def test_no_prompt_at_all_is_an_error() -> None:
    result = run_guanaco("run", MODEL)
    assert result.returncode == 2
    assert "there is no prompt" in result.stderr


def test_a_prompt_that_is_no_text_is_refused_before_the_model_is_loaded() -> None:
    result = run_guanaco("run", MODEL, os.fsdecode(b"caf\xe9"))
    assert result.returncode == 2
    assert result.stderr.startswith("guanaco: error: the prompt is not UTF-8 text (character 4)")


def test_an_interrupted_answer_ends_everything() -> None:
    command = Command("run", MODEL, "Tell me a story about a fox", *STREAMED, "-n", "1000", "--temp", "3")
    try:
        command.wait_for("reading experts with")
        (worker,) = children(command.process.pid)
        began = time.monotonic()
        command.signal(signal.SIGINT)
        assert command.wait(3) == 130
        assert time.monotonic() - began < 3
        assert not is_alive(worker)
        assert not [line for line in command.lines if "Traceback" in line]
    finally:
        command.close()


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    command = f'{" ".join(COMMAND)} run "{MODEL}" "Tell me a story" --memory 512MiB'
    script = command + ' | head -c 1; exit "${PIPESTATUS[0]}"'
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 141
    assert len(result.stdout) == 1
    assert "error" not in result.stderr
    assert "Broken" not in result.stderr


def test_a_worker_killed_in_mid_answer_is_no_normal_end() -> None:
    command = Command("run", MODEL, "Tell me a story", *STREAMED, "-n", "1000", "--temp", "3")
    try:
        command.wait_for("reading experts with")
        (worker,) = children(command.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert command.wait(5) == 6
        assert "killed by SIGKILL" in command.lines[-1]
    finally:
        command.close()


def test_a_killed_run_leaves_no_worker() -> None:
    command = Command("run", MODEL, "Tell me a story", *STREAMED, "-n", "1000", "--temp", "3")
    try:
        command.wait_for("reading experts with")
        (worker,) = children(command.process.pid)
        command.signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(worker), 3, "the worker ended")
    finally:
        command.close()


ANSWER = ("run", MODEL, "What is the capital of Peru?", *STREAMED, "--temp", "0")


@pytest.mark.parametrize("is_preloaded", [False, True])
@pytest.mark.parametrize("words", [("--version",), ("plan", MODEL), ANSWER], ids=["version", "plan", "run"])
def test_a_stray_plan_variable_changes_nothing(
    words: tuple[str, ...], is_preloaded: bool, tmp_path: Path
) -> None:
    stray = {native.PLAN_VARIABLE: str(tmp_path / "none")}
    if is_preloaded:
        stray["LD_PRELOAD"] = str(native.library_path())
    result = run_guanaco(*words, **stray)
    assert result.returncode == 0, result.stderr
    assert "cannot be used" not in result.stderr
    assert words != ANSWER or result.stdout == "The capital of Peru is Lima.\n"


def test_a_conversation_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run", MODEL, "--memory", "512MiB", "--temp", "0", "-v"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, b"What is 7 plus 8?\n\nWhat is the capital of Peru?\n/bye\n")
    output, log = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == 0
    assert output.replace("> ", "").splitlines() == ["7 plus 8 is 15.", "The capital of Peru is Lima."]
    assert "answer: 15 tokens" in log
    assert "load_model: loading model" in log, "with -v the engine's log is shown"


def whole() -> bytes:
    return demo_model().read_bytes()


def renamed(data: bytes) -> bytes:
    """Another architecture of the same length, so that nothing else changes."""
    return data.replace(b"qwen3moe", b"quokkamo")


BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a GGUF": (lambda: b"PK\x03\x04" + bytes(1000), "not a GGUF file"),
    "empty": (lambda: b"", "file is empty"),
    "truncated header": (lambda: whole()[:600], ""),
    "truncated tensor data": (lambda: whole()[:-5000], ""),
    "hostile count": (lambda: whole()[:8] + struct.pack("<Q", 1 << 60) + whole()[16:], "tensor"),
    "unknown architecture": (lambda: renamed(whole()), "quokkamo"),
}


@pytest.mark.parametrize("command", ["run", "serve", "plan"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_one_clear_error(name: str, command: str, tmp_path: Path) -> None:
    make, word = BAD_FILES[name]
    model = tmp_path / "model.gguf"
    model.write_bytes(make())
    result = run_guanaco(command, str(model), *(["hello"] if command == "run" else []))
    assert result.returncode in (3, 5)
    assert result.stderr.startswith("guanaco: error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert "model.gguf" in result.stderr
    assert word in result.stderr


def test_a_folder_and_a_locked_file(tmp_path: Path) -> None:
    assert run_guanaco("run", str(tmp_path), "hello").returncode == 3
    socket_file = tmp_path / "pipe"
    os.mkfifo(socket_file)
    assert run_guanaco("run", str(socket_file), "hello").returncode == 3


def test_a_native_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    broken = tmp_path / "libguanaco.so"
    broken.write_text("not a library")
    result = run_guanaco("demo", GUANACO_LIBRARY=str(broken))
    assert result.returncode == 5
    assert result.stderr.splitlines()[-1].startswith(
        f"guanaco: error: the native library {broken} cannot be loaded"
    )
    missing = run_guanaco("demo", GUANACO_LIBRARY=str(tmp_path / "none.so"))
    assert missing.returncode == 5
    assert "is missing" in missing.stderr


def test_an_engine_of_another_version(tmp_path: Path) -> None:
    package = tmp_path / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "2020.1.1"\n')
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run_guanaco("demo", PYTHONPATH=path)
    assert result.returncode == 5
    error = result.stderr.splitlines()[-1]
    assert "2020.1.1" in error
    assert llama.ENGINE_VERSION in error
    assert "Traceback" not in result.stderr
