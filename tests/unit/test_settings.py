"""Every flag and variable: what it does to the load, which one wins, and what a bad value says."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import xllamacpp

from guanaco.cli import log
from guanaco.cli.demo import demo_model
from guanaco.cli.loading import Loadable, read_model
from guanaco.cli.options import setting_options
from guanaco.cli.settings import (
    Resolved,
    load_config,
    model_path,
    resolve,
    sampling_config,
    serve_config,
)
from guanaco.cli.table import SETTINGS, Setting, settings_for
from guanaco.cli.warm import prior_of
from guanaco.config import LoadConfig, SamplingConfig, ServeConfig
from guanaco.engine import llama, native
from guanaco.errors import UsageError
from guanaco.hardware.facts import Hardware
from guanaco.model.map import ModelMap
from guanaco.planner.placement import plan as make_plan
from guanaco.planner.plan import Plan
from guanaco.units import GIB, MIB
from tests.support.imatrices import write_imatrix

GROUPS = ("model", "load", "sampling", "serve")
MACHINE = Hardware(8 * GIB, 6 * GIB, None, None, n_physical_cores=4, n_logical_cores=8)


@dataclass(frozen=True)
class World:
    """What the settings lead to, down to the engine's own parameters and the native plan."""

    config: LoadConfig
    sampling: SamplingConfig
    serve: ServeConfig
    plan: Plan
    params: Any
    native_plan: str


def flags(words: Sequence[str]) -> dict[str, object]:
    """The command line as click hands it to a command."""
    seen: dict[str, object] = {}

    @click.command()
    @setting_options(*GROUPS)
    def command(**given: object) -> None:
        seen.update(given)

    command.main(list(words), standalone_mode=False)
    return seen


def settle(words: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Resolved:
    return resolve(settings_for(GROUPS), flags(words), environment or {})


def world(words: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> World:
    resolved = settle(words, environment)
    config = load_config(demo_model(), resolved)
    sampling = sampling_config(resolved)
    model = read_model(config.model)
    plan = make_plan(model, MACHINE, config)
    settings = llama.worker_settings(
        config,
        plan,
        sampling,
        first_file=config.model,
        alias=config.alias or model.name,
        api_key="key",
        preload=None,
        verbose=False,
    )
    return World(
        config=config,
        sampling=sampling,
        serve=serve_config(resolved),
        plan=plan,
        params=llama.common_params(settings, xllamacpp),
        native_plan=native.plan_text(
            model,
            plan,
            config.io,
            Path("stats"),
            policy=config.policy,
            pilot=config.pilot,
            pilot_mass=config.pilot_mass,
            draft_always=config.draft_always,
        ),
    )


@dataclass(frozen=True)
class Case:
    """One row of the table under test."""

    target: str
    word: str  # what is given; "" for a switch
    effect: Callable[[World], object]
    expected: object
    other: str = ""  # another good value
    bad: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()  # flags without which it has no meaning


def line(name: str) -> Callable[[World], object]:
    """A line of the native plan."""
    return lambda w: next(row for row in w.native_plan.splitlines() if row.startswith(f"{name} "))


@functools.cache
def demo_with_imatrix() -> ModelMap:
    """The demo model in a folder where an imatrix lies beside it."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = Path(shutil.copy(demo_model(), Path(folder) / "demo.gguf"))
    model = read_model(path)
    counts = [[float(e) for e in range(group.n_expert)] for group in model.groups]
    write_imatrix(model, path.with_name("demo.imatrix.gguf"), counts)
    return model


def uses_imatrix(w: World) -> bool:
    """Whether what a load starts with comes from the imatrix."""
    return "imatrix" in prior_of(Loadable(demo_with_imatrix(), w.config, w.plan)).sources


def speculation(w: World) -> list[str]:
    return [kind.name.removeprefix("COMMON_SPECULATIVE_TYPE_") for kind in w.params.speculative.types]


ANYWHERE = "0.0.0.0"  # noqa: S104 - refused without a key
NOT_A_COUNT = ("5_12", "many", "1.5", "")
NGRAMS = ("--spec-type", "ngram-simple")
STREAM = ("--load-mode", "streaming")

CASES = {
    "-m": Case("model.path", "a.gguf", lambda w: None, None, "b.gguf"),
    "--memory": Case("load.memory_bytes", "300MiB", lambda w: w.plan.budget_bytes, 300 * MIB, "1GiB",
                     ("12parrots", "0", "-4GiB", "8", "100KiB")),
    "--load-mode": Case("load.load_mode", "streaming", lambda w: w.plan.mode, "streaming", "mmap",
                        ("fast", "STREAMING")),
    "--guanaco-max-experts": Case("load.max_experts", "8", lambda w: w.plan.slots, 32, "16",
                                  (*NOT_A_COUNT, "0", "-2"), STREAM),
    "--io": Case("load.io", "threads", line("io"), "io threads", "buffered", ("fast", "0"), STREAM),
    "--policy": Case("load.policy", "herd", line("policy"), "policy herd", "lru", ("fifo", "belady"), STREAM),
    "--pilot": Case("load.pilot", "gate", line("pilot"), "pilot gate", "off", ("maybe", "2"), STREAM),
    "GUANACO_PILOT_MASS": Case("load.pilot_mass", "0.5", line("pilot_mass"), "pilot_mass 0.5", "",
                               ("0", "1.5", "-1", "nan", "most"), STREAM),
    "GUANACO_IMATRIX": Case("load.imatrix", "0", uses_imatrix, False, "", ("perhaps", "2"), STREAM),
    "-c": Case("load.n_ctx", "512", lambda w: w.params.n_ctx, 512, "256", (*NOT_A_COUNT, "-1", "1")),
    "-ngl": Case("load.n_gpu_layers", "5", lambda w: len(log.card_lines(w.config)), 1, "all", NOT_A_COUNT),
    "-t": Case("load.n_threads", "3", lambda w: w.params.cpuparams.n_threads, 3, "2", (*NOT_A_COUNT, "0")),
    "-tb": Case("load.n_threads_batch", "3", lambda w: w.params.cpuparams_batch.n_threads, 3, "2",
                (*NOT_A_COUNT, "0")),
    "-np": Case("load.n_parallel", "2", lambda w: w.params.n_parallel, 2, "3", (*NOT_A_COUNT, "0")),
    "-b": Case("load.n_batch", "256", lambda w: w.params.n_batch, 256, "128", (*NOT_A_COUNT, "0", "1")),
    "-ub": Case("load.n_ubatch", "64", lambda w: w.params.n_ubatch, 64, "32", (*NOT_A_COUNT, "0")),
    "-ctk": Case("load.cache_type_k", "q8_0", lambda w: w.params.cache_type_k,
                 xllamacpp.ggml_type.GGML_TYPE_Q8_0, "f32", ("q3_K", "")),
    "-ctv": Case("load.cache_type_v", "bf16", lambda w: w.params.cache_type_v,
                 xllamacpp.ggml_type.GGML_TYPE_BF16, "f32", ("q3_K", "")),
    "-fa": Case("load.flash_attn", "on", lambda w: w.params.flash_attn_type,
                xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED, "off", ("maybe", "")),
    "-cram": Case("load.cache_ram_bytes", "16", lambda w: w.params.cache_ram_mib, 16, "0",
                  (*NOT_A_COUNT, "-1")),
    "-ctxcp": Case("load.ctx_checkpoints", "3", lambda w: w.params.n_ctx_checkpoints, 3, "0",
                   (*NOT_A_COUNT, "-1")),
    "--context-shift": Case("load.ctx_shift", "", lambda w: w.params.ctx_shift, True),
    "--cache-reuse": Case("load.cache_reuse_tokens", "64", lambda w: w.params.n_cache_reuse, 64, "0",
                          (*NOT_A_COUNT, "-1")),
    "--slot-save-path": Case("load.slot_save_path", tempfile.gettempdir(), lambda w: w.params.slot_save_path,
                             f"{tempfile.gettempdir()}/", "/", ("/no/such/folder", __file__, "")),
    "--sse-ping-interval": Case("load.sse_ping_s", "7", lambda w: w.params.sse_ping_interval, 7, "-1",
                                (*NOT_A_COUNT, "-2")),
    "--embeddings": Case("load.embeddings", "", lambda w: w.params.embedding, True),
    "--pooling": Case("load.pooling", "mean", lambda w: w.params.pooling_type,
                      xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN, "cls", ("median",),
                      ("--embeddings",)),
    "--chat-template": Case("load.chat_template", "chatml", lambda w: w.params.chat_template, "chatml",
                            "llama2"),
    "-a": Case("load.alias", "parrot", lambda w: w.params.model_alias, {"parrot"}, "finch", ("a,b", " ")),
    "--spec-type": Case("load.spec_types", "ngram-mod, ngram-simple", speculation,
                        ["NGRAM_MOD", "NGRAM_SIMPLE"], "none", ("draft-simple", "ngram-cache", "fast", "")),
    "-md": Case("load.draft_model", "d.gguf", lambda w: w.params.speculative.draft.mparams.path, "d.gguf",
                "e.gguf"),
    "--spec-draft-n-max": Case("load.n_draft_max", "5", lambda w: w.params.speculative.ngram_simple.size_m, 5,
                               "7", (*NOT_A_COUNT, "0", "65"), NGRAMS),
    "--draft-always": Case("load.draft_always", "", line("draft_always"), "draft_always 1", extra=NGRAMS),
    "-s": Case("sampling.seed", "7", lambda w: w.params.sampling.seed, 7, "8", (*NOT_A_COUNT, "-2")),
    "--temp": Case("sampling.temperature", "0.5", lambda w: w.params.sampling.temp, 0.5, "0",
                   ("hot", "-1", "inf", "nan")),
    "--top-k": Case("sampling.top_k", "5", lambda w: w.params.sampling.top_k, 5, "0", (*NOT_A_COUNT, "-1")),
    "--top-p": Case("sampling.top_p", "0.5", lambda w: w.params.sampling.top_p, 0.5, "1", ("2", "-0.1", "x")),
    "--min-p": Case("sampling.min_p", "0.25", lambda w: w.params.sampling.min_p, 0.25, "0", ("2", "-0.1")),
    "-n": Case("sampling.n_predict", "9", lambda w: w.params.n_predict, 9, "-1", (*NOT_A_COUNT, "-2")),
    "--host": Case("serve.host", "127.0.0.2", lambda w: w.serve.host, "127.0.0.2", "::1", (ANYWHERE, "::")),
    "--port": Case("serve.port", "1234", lambda w: w.serve.port, 1234, "0", (*NOT_A_COUNT, "65536", "-1")),
    "--api-key": Case("serve.api_keys", "a, b", lambda w: w.serve.api_keys, ("a", "b"), "c", ("", " , ")),
}  # fmt: skip
SPECIAL = {"--guanaco-streaming", "--no-guanaco-streaming", "--no-context-shift", "GUANACO_IO_URING"}


def key(setting: Setting) -> str:
    return (setting.flags or setting.variables)[0]


def rows() -> dict[str, Setting]:
    return {key(setting): setting for setting in SETTINGS if setting.refusal is None}


def given(flag: str, case: Case, word: str | None = None) -> list[str]:
    return [flag, *([case.word if word is None else word] if case.word else [])]


def test_every_row_has_a_case() -> None:
    assert set(CASES) | SPECIAL == set(rows())


@pytest.mark.parametrize("name", CASES)
def test_every_spelling_of_the_flag_takes_effect(name: str) -> None:
    case = CASES[name]
    assert (
        case.target == "model.path" or case.effect(world(case.extra)) != case.expected or case.word == "none"
    ), "the default must differ, or the test shows nothing"
    for flag in rows()[name].flags:
        result = world([*given(flag, case), *case.extra])
        assert case.effect(result) == case.expected, flag


@pytest.mark.parametrize("name", CASES)
def test_every_variable_takes_effect(name: str) -> None:
    case = CASES[name]
    for variable in rows()[name].variables:
        result = world(case.extra, {variable: case.word or "1"})
        assert case.effect(result) == case.expected, variable


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].other and rows()[name].variables])
def test_the_flag_wins_over_the_variable_but_for_max_experts(name: str) -> None:
    case, setting = CASES[name], rows()[name]
    words = given(setting.flags[0], case)
    resolved = settle(words, {setting.variables[0]: case.other})
    parsed = setting.parse(case.other if setting.variable_wins else case.word)
    assert resolved.values[case.target] == parsed
    assert setting.variable_wins == (name == "--guanaco-max-experts")


def test_an_overridden_flag_is_reported() -> None:
    resolved = settle(["--guanaco-max-experts", "4"], {"GUANACO_MAX_EXPERTS": "9"})
    assert resolved.warnings == ("GUANACO_MAX_EXPERTS overrides --guanaco-max-experts 4",)
    assert not settle(["--guanaco-max-experts", "9"], {"GUANACO_MAX_EXPERTS": "9"}).warnings


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name in CASES for bad in CASES[name].bad])
def test_a_bad_value_is_one_clear_error(name: str, bad: str) -> None:
    case = CASES[name]
    for flag in rows()[name].flags:
        with pytest.raises(UsageError) as caught:
            world([flag, bad, *case.extra])
        assert caught.value.exit_code == 2
        assert bad.strip() == "" or bad.lstrip("0").rstrip("0.") in caught.value.message
        assert "\n" not in caught.value.message
    for variable in rows()[name].variables if bad else ():
        with pytest.raises(UsageError):
            world(case.extra, {variable: bad})


@pytest.mark.parametrize(
    ("words", "environment", "mode"),
    [
        (["--guanaco-streaming"], {}, "streaming"),
        (["-gs"], {}, "streaming"),
        (["--no-guanaco-streaming"], {}, "mmap"),
        (["-ngs"], {}, "mmap"),
        ([], {"GUANACO_STREAMING": "1"}, "streaming"),
        ([], {"GUANACO_STREAMING": "0"}, "mmap"),
        (["-ngs"], {"GUANACO_STREAMING": "1"}, "mmap"),
        (["--load-mode", "auto"], {"GUANACO_STREAMING": "1"}, "auto"),
        (["-gs"], {"LOAD_MODE": "mmap"}, "streaming"),
        ([], {"LOAD_MODE": "mmap", "GUANACO_STREAMING": "1"}, "mmap"),
        (["-gs", "--load-mode", "streaming"], {}, "streaming"),
    ],
)
def test_deprecated_aliases_work_and_warn(words: list[str], environment: dict[str, str], mode: str) -> None:
    resolved = settle(words, environment)
    assert resolved.values["load.load_mode"] == mode
    assert [w for w in resolved.warnings if re.search(r"is deprecated; use --load-mode \w+", w)]


def test_the_new_names_do_not_warn() -> None:
    assert settle(["--load-mode", "streaming"], {"GUANACO_IO_URING": "0"}).warnings == ()


@pytest.mark.parametrize("words", [["-gs", "-ngs"], ["-gs", "--load-mode", "mmap"]])
def test_flags_that_contradict_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="contradict each other"):
        settle(words)


@pytest.mark.parametrize(
    ("words", "environment", "io"),
    [
        ([], {"GUANACO_IO_URING": "0"}, "threads"),
        ([], {"GUANACO_IO_URING": "1"}, "auto"),
        (["--io", "uring"], {"GUANACO_IO_URING": "0"}, "uring"),
    ],
)
def test_io_uring_can_be_switched_off(words: list[str], environment: dict[str, str], io: str) -> None:
    assert line("io")(world([*words, *STREAM], environment)) == f"io {io}"


@pytest.mark.parametrize(
    ("words", "environment", "pilot"),
    [
        ([], {}, "auto"),
        ([], {"GUANACO_PILOT": "0"}, "off"),
        ([], {"GUANACO_PILOT": "1"}, "auto"),
        ([], {"GUANACO_PILOT": "transition"}, "transition"),
        (["--pilot", "gate"], {"GUANACO_PILOT": "0"}, "gate"),
        (["--pilot", "0"], {}, "off"),
    ],
)
def test_the_pilot_can_be_switched_off(words: list[str], environment: dict[str, str], pilot: str) -> None:
    assert line("pilot")(world([*words, *STREAM], environment)) == f"pilot {pilot}"


@pytest.mark.parametrize(
    "flag",
    ["-c", "-b", "-ub", "-np", "-t", "-tb", "-ctxcp", "--guanaco-max-experts", "-n", "--top-k"],
)
def test_a_count_that_the_engine_cannot_hold_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=f"at most {(1 << 31) - 1}, not {1 << 31}|at least {1 << 31}"):
        world([flag, str(1 << 31)])


def test_context_shift_is_off_and_can_be_switched_off() -> None:
    assert not world().params.ctx_shift
    assert not world(["--no-context-shift"], {"LLAMA_ARG_CONTEXT_SHIFT": "1"}).params.ctx_shift
    assert not world([], {"LLAMA_ARG_CONTEXT_SHIFT": "0", "LLAMA_ARG_NO_CONTEXT_SHIFT": "1"}).params.ctx_shift
    assert world(["--context-shift"], {"LLAMA_ARG_NO_CONTEXT_SHIFT": "1"}).params.ctx_shift
    with pytest.raises(UsageError, match="contradict each other"):
        settle(["--context-shift", "--no-context-shift"])


def test_a_bad_io_uring_value_is_refused() -> None:
    with pytest.raises(UsageError, match="GUANACO_IO_URING: 'perhaps' is neither"):
        settle([], {"GUANACO_IO_URING": "perhaps"})


LATER = [setting for setting in SETTINGS if setting.refusal is not None]


@pytest.mark.parametrize(
    "word", [flag for row in LATER for flag in row.flags] + [name for row in LATER for name in row.variables]
)
def test_what_comes_later_is_refused_with_its_name(word: str) -> None:
    words, environment = ([word, "x"], {}) if word.startswith("-") else ([], {word: "0"})
    with pytest.raises(UsageError, match="is not in this version") as caught:
        settle(words, environment)
    shown = caught.value.message.partition(" is not in this version")[0].split(", ")
    assert word in shown


def test_the_refused_names_are_the_announced_ones() -> None:
    names = {name for row in LATER for name in (*row.flags, *row.variables)}
    assert names == {
        "-hf", "-hfr", "--hf-repo", "LLAMA_ARG_HF_REPO",
    }  # fmt: skip


@pytest.mark.parametrize("variable", sorted({name for row in SETTINGS for name in row.variables}))
def test_an_empty_variable_is_no_value(variable: str) -> None:
    assert settle([], {variable: ""}).values == {}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--load-mode", "mmap", "--guanaco-max-experts", "4"], "no effect with load mode mmap"),
        (["-ctv", "q8_0", "-fa", "off"], "needs flash attention"),
        (["--context-shift", "-ctk", "q8_0"], "K cache type q8_0 cannot be shifted"),
        (["--cache-reuse", "8", "-ctk", "bf16"], "K cache type bf16 cannot be shifted"),
        (["--pooling", "mean"], "no effect without --embeddings"),
        (["--host", "192.168.1.5"], "set --api-key as well"),
        (["-b", "3", "-np", "4"], "batch must be at least 4"),
        (["-b", "17", "-np", "2", *NGRAMS], "at least 18 with 2 requests at once and drafts of 8"),
        (["--spec-type", "draft-mtp", "-ub", "4"], "ubatch must be at least 5 for drafts of 3"),
        (["--spec-type", "draft-simple"], "needs a draft model; name one with -md"),
        (["--spec-type", "draft-mtp", "-md", "d.gguf"], "no effect without --spec-type draft-simple"),
        (["--spec-type", "draft-mtp,draft-simple", "-md", "d.gguf"], "cannot be used together"),
        (["--spec-type", "none", "-md", "d.gguf"], "no effect without --spec-type draft-simple"),
        (["--context-shift", "--spec-type", "ngram-map-k4v"], "the engine ends when a context is shifted"),
        (["-c", "8", *NGRAMS], "context size must be at least 9 with drafts of 8, not 8"),
        (["-c", "4", "--spec-type", "draft-mtp"], "context size must be at least 5"),
        (["--embeddings", *NGRAMS], "embeddings are not decoded"),
        (["--embeddings", "--slot-save-path", "/"], "keep nothing in a slot"),
        (["--slot-save-path", "/", "-md", "d.gguf"], "does not hold what a drafting model knows"),
        (["--draft-always"], "no effect where nothing drafts"),
        (["--spec-draft-n-max", "4"], "no effect where nothing drafts"),
        (["--embeddings", "-ub", "3", "-np", "4"], "ubatch must be at least 4 for embeddings"),
    ],
)
def test_contradictions_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        world(words)


def test_another_host_with_a_key_is_fine() -> None:
    assert world(["--host", ANYWHERE, "--api-key", "k"]).serve == ServeConfig(ANYWHERE, 8080, ("k",))


@pytest.mark.parametrize(
    ("argument", "words", "environment", "expected"),
    [
        ("a.gguf", [], {}, "a.gguf"),
        (None, ["-m", "b.gguf"], {}, "b.gguf"),
        (None, [], {"LLAMA_ARG_MODEL": "c.gguf"}, "c.gguf"),
        ("a.gguf", [], {"LLAMA_ARG_MODEL": "c.gguf"}, "a.gguf"),
        ("b.gguf", ["-m", "b.gguf"], {}, "b.gguf"),
    ],
)
def test_the_model_is_named_once(
    argument: str | None, words: list[str], environment: dict[str, str], expected: str
) -> None:
    seen = flags(words)
    assert model_path(argument, seen, resolve(settings_for(GROUPS), seen, environment)) == Path(expected)


def test_two_models_or_none_are_refused() -> None:
    seen = flags(["-m", "b.gguf"])
    with pytest.raises(UsageError, match=r"two models are named, a\.gguf and b\.gguf"):
        model_path("a.gguf", seen, settle(["-m", "b.gguf"]))
    with pytest.raises(UsageError, match="no model is named"):
        model_path(None, flags([]), settle())


def test_streaming_changes_nothing_on_the_way_to_the_kernels() -> None:
    params = world(STREAM).params
    assert params.load_mode == xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    assert params.no_extra_bufts
    assert params.no_op_offload
    assert not (params.warmup or params.fit_params or params.check_tensors)
    assert params.cache_ram_mib == world(STREAM).plan.cache_ram_bytes // MIB


def test_a_whole_model_keeps_the_engines_defaults() -> None:
    params, plain = world().params, xllamacpp.CommonParams()
    for name in (
        "load_mode",
        "warmup",
        "no_op_offload",
        "check_tensors",
        "flash_attn_type",
        "no_extra_bufts",
    ):
        assert getattr(params, name) == getattr(plain, name), name


def test_a_chosen_value_is_marked_so_that_the_model_does_not_replace_it() -> None:
    bits = xllamacpp.common_params_sampling_config
    marked = world(["--temp", "0.5", "--top-k", "3"]).params.sampling.user_sampling_config
    temperature, top_k = bits.COMMON_PARAMS_SAMPLING_CONFIG_TEMP, bits.COMMON_PARAMS_SAMPLING_CONFIG_TOP_K
    assert marked == temperature.value | top_k.value
    assert world().params.sampling.user_sampling_config == 0


@pytest.mark.parametrize(
    ("words", "environment", "begins"),
    [
        (["--sse-ping-interval", "-2"], {}, "--sse-ping-interval: SSE ping interval must be"),
        ([], {"LLAMA_ARG_SSE_PING_INTERVAL": "-7"}, "LLAMA_ARG_SSE_PING_INTERVAL: SSE ping interval must be"),
        (["-np", "0"], {}, "-np, --parallel: parallel must be at least 1, not 0"),
        (["-c", "abc"], {}, "-c, --ctx-size: 'abc' is not a whole number"),
        (["-c", "5_12"], {}, "-c, --ctx-size: '5_12' is not a whole number"),
        (["--temp", "1_0"], {}, "--temp, --temperature: '1_0' is not a number"),
        (["-c", str(1 << 40)], {}, "-c, --ctx-size: context must be at most"),
        (
            ["--context-shift"],
            {"LLAMA_ARG_CACHE_TYPE_K": "q8_0"},
            "LLAMA_ARG_CACHE_TYPE_K and --context-shift: K cache type q8_0 cannot be shifted",
        ),
    ],
)
def test_an_error_begins_with_whoever_is_at_fault(
    words: list[str], environment: dict[str, str], begins: str
) -> None:
    with pytest.raises(UsageError) as caught:
        world(words, environment)
    assert caught.value.message.startswith(begins)
