"""The pages say what the code does: flags, variables, codes, endpoints, commands, links."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import click
import pytest

from guanaco import errors
from guanaco.bench.bandwidth import BOUND_FIELDS, PROMPT_BOUND_FIELDS
from guanaco.bench.ratio import Ratio
from guanaco.bench.ways import WAYS
from guanaco.cli import bench, main, table, trace
from guanaco.cli.chat import Answer
from guanaco.cli.demo import demo_model
from guanaco.cli.exec import _REFUSED_WORDS
from guanaco.cli.inspect import describe
from guanaco.cli.loading import read_model
from guanaco.cli.main import cli
from guanaco.cli.summary import RunFacts, run_json
from guanaco.config import LoadConfig, SamplingConfig, ServeConfig
from guanaco.engine.engine import Engine
from guanaco.engine.native import DraftCounts, NativeStats
from guanaco.hardware.facts import Hardware
from guanaco.planner.card import DevicePart
from guanaco.planner.placement import plan as make_plan
from guanaco.planner.plan import Plan
from guanaco.planner.render import plan_json
from guanaco.server import metrics, problems
from guanaco.server.app import create_app
from guanaco.server.state import RequestCounts, Serving
from guanaco.simulator.recording import Written
from guanaco.simulator.report import Row
from guanaco.units import GIB
from tests.support import markdown

ROOT = Path(__file__).parents[2]
SKIPPED_FOLDERS = {"build", "models", "__pycache__"}
README = (ROOT / "README.md").read_text()
CLI_PAGE = (ROOT / "docs/cli.md").read_text()
HTTP_PAGE = (ROOT / "docs/http-api.md").read_text()
SETTINGS_PAGE = CLI_PAGE.partition("## Flags for loading")[2].partition("## Which one counts")[0]
GROUP_TITLES = {
    "model": "Flags for loading",
    "load": "Flags for loading",
    "sampling": "Flags for sampling",
    "serve": "Flags for serving",
}
SHARED = {flag: setting for setting in table.SETTINGS for flag in setting.flags}
DRAFTING = DraftCounts(9, 2, 5)
DEFAULTS = {
    f"{group}.{field.name}": field.default
    for group, config in (("load", LoadConfig), ("sampling", SamplingConfig), ("serve", ServeConfig))
    for field in fields(config)
}


def pages() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


def files() -> Iterator[Path]:
    """The files of the project, without what tools leave behind. Found without git."""
    waiting = [ROOT, ROOT / ".ci"]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.is_file():
                yield path
            elif not path.name.startswith(".") and path.name not in SKIPPED_FOLDERS:
                waiting.append(path)


def options(name: str) -> list[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return [flag for item in command.params if isinstance(item, click.Option) for flag in item.opts]


def commands() -> list[str]:
    return cli.list_commands(click.Context(cli))


def first_words(text: str) -> set[str]:
    return {code.split()[0] for code in markdown.code_words(text)}


def row_of(page: str, word: str) -> list[str]:
    """The only row that has this flag or variable in one of its first two cells."""
    (found,) = [row for row in markdown.rows(page) if word in re.split(r"[`\s=]+", " ".join(row[:2]))]
    return found


@pytest.mark.parametrize("name", commands())
def test_every_flag_is_where_its_command_is(name: str) -> None:
    own = first_words(markdown.section(CLI_PAGE, name))
    for flag in options(name):
        if name in ("bench", "simulate") or flag not in SHARED:  # neither loads a model by the shared flags
            assert flag in own, f"{flag} of {name}"
        else:
            shared = markdown.section(CLI_PAGE, GROUP_TITLES[SHARED[flag].group])
            assert flag in first_words(shared), f"{flag} of {name}"
            assert f"`{name}`" in shared.partition("|")[0], f"{name} takes {flag}"


def test_no_flag_is_made_up() -> None:
    known = {flag for name in commands() for flag in options(name)}
    of_the_program = {"--", "--no-repack", "--no-warmup", *_REFUSED_WORDS}
    named = {word for page in (README, CLI_PAGE, HTTP_PAGE) for word in first_words(page) if word[0] == "-"}
    assert named - of_the_program - {"-h", "--help"} <= known


def test_a_shared_flag_has_one_row_with_its_variables_and_default() -> None:
    for setting in table.SETTINGS:
        (row,) = {tuple(row_of(SETTINGS_PAGE, word)) for word in (*setting.flags, *setting.variables)}
        cells = " ".join(row)
        for word in (*setting.flags, *setting.variables):
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", cells), f"{word} stands in {row}"
        default = DEFAULTS.get(setting.target)
        if default and setting.flags and not setting.use_instead:
            assert row[2].strip("`") == str(default), setting.long_flag
        if setting.use_instead:
            assert setting.use_instead in row[-1]
        if setting.refusal:
            assert "not yet" in row[-1]


def test_every_way_of_the_benchmark_is_explained() -> None:
    assert set(WAYS) <= first_words(markdown.section(CLI_PAGE, "bench"))


def test_every_refused_command_is_named() -> None:
    overview = markdown.section(CLI_PAGE, "Commands").partition("\n### ")[0]
    assert set(main._LATER) <= first_words(overview)


def test_exit_codes_and_error_types() -> None:
    rows = {row[0]: row[1].strip("`") for row in markdown.rows(markdown.section(CLI_PAGE, "Exit codes"))}
    kinds: list[type[errors.GuanacoError]] = [errors.GuanacoError, *errors.GuanacoError.__subclasses__()]
    assert {code: kind for code, kind in rows.items() if kind} == {
        str(kind.exit_code): kind.type for kind in kinds
    }


def test_the_json_of_run_and_plan(plan: Plan) -> None:
    plan_shape = plan_json(plan)
    of_card = {field.name for field in fields(DevicePart)}
    assert named_in("plan") == keys_of({**plan_shape, "details": {}}) | of_card
    stats = native_stats()
    answer = Answer("text", "", (1,), "stop", 1, 1.0, 1, 1.0)
    facts = RunFacts(plan, "lru", "auto", (), 1.0, 1, stats, stats, (answer,), ("ngram-mod",), DRAFTING)
    assert named_in("run, demo") == keys_of({**run_json(facts, plan_shape), "plan": {}})


def test_the_json_of_inspect() -> None:
    shape = describe(read_model(demo_model()))
    shape["size_classes"] = [{**shape["size_classes"][0], "slice_bytes": {}}]
    assert named_in("inspect") == keys_of(shape)


def test_the_json_of_simulate() -> None:
    assert named_in("simulate") == {"rows", *(field.name for field in fields(Row))}


def test_the_json_of_trace() -> None:
    stats = native_stats()
    shape = trace._shape(Path("t"), Written(1, 1, 1, True), stats)
    assert named_in("trace") == keys_of(shape)


def test_the_json_of_bench() -> None:
    machine = {"machine", "system", "cores", "ram_bytes", "guanaco", "engine"}
    ratio = {"ratios", "figure", "against", *(field.name for field in fields(Ratio))}
    bound = {"bounds", *BOUND_FIELDS, "prompt_bounds", *PROMPT_BOUND_FIELDS}
    assert named_in("bench") == {"rows", *bench._FIELDS, *machine, *ratio, *bound}


def test_endpoints() -> None:
    app = create_app(Serving(cast(Engine, None)))
    served = {
        f"{method.upper()} {path}" for path, item in app.openapi()["paths"].items() for method in item
    } | {f"GET {app.openapi_url}"}
    rows = markdown.rows(markdown.section(HTTP_PAGE, "Endpoints"))
    assert {row[0].strip("`") for row in rows} == served


def test_metrics(plan: Plan) -> None:
    counts = RequestCounts()
    counts.answered["/v1/completions", 200] += 1
    text = metrics.render(metrics.Snapshot("m", True, 1.0, plan, 1, native_stats(), counts, 0, DRAFTING))
    served = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    rows = markdown.rows(markdown.section(HTTP_PAGE, "Metrics"))
    assert {row[0].strip("`"): row[1] for row in rows} == served


def test_http_errors() -> None:
    rows = {row[0]: row[1].strip("`") for row in markdown.rows(markdown.section(HTTP_PAGE, "Errors"))}
    for status, kind in rows.items():
        answer = problems.error_body(int(status), "")["error"]["type"]
        of_ours = {str(item.http_status): item.type for item in (errors.EngineError, errors.WorkerDiedError)}
        assert kind == of_ours.get(status, answer), status
    assert {str(status) for status in problems._TYPES} <= set(rows)


def test_commands_in_the_pages_are_real() -> None:
    seen = set()
    for page in pages():
        text = page.read_text()
        for line in (*markdown.code_lines(text), *markdown.code_words(text)):
            for words in re.findall(r"(?:^|\s)guanaco ([a-z]+)((?: [^|#]+)?)", line):
                name, rest = words
                assert name in commands(), f"{page}: {line}"
                given = re.findall(r"(?<!\S)--?[a-z][\w-]*", rest.partition(" -- ")[0])
                assert set(given) <= {*options(name), "--help"}, f"{page}: {line}"
                seen.add(name)
    assert set(commands()) == seen


def test_make_targets_and_scripts_in_the_pages_are_real() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        text = page.read_text()
        for line in (*markdown.code_lines(text), *markdown.code_words(text)):
            command = re.match(r"(?:make|python(?: -m)?) (\S+)", line)
            if command is None:
                continue
            if line.startswith("make"):
                assert command[1] in targets, f"{page}: {line}"
            elif " -m " in line:
                assert importlib.util.find_spec(command[1]), f"{page}: {line}"
            else:
                assert (ROOT / command[1]).is_file(), f"{page}: {line}"


def test_every_page_is_listed() -> None:
    index = ROOT / "docs/README.md"
    listed = {
        (index.parent / target.partition("#")[0]).resolve() for target in markdown.links(index.read_text())
    }
    for page in (ROOT / "docs").rglob("*.md"):
        assert page == index or page in listed or page.parent in listed, f"{page} is not in docs/README.md"


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in markdown.links(text):
        assert (page.parent / target.partition("#")[0]).exists(), target
    for word in markdown.code_words(text):
        if re.fullmatch(r"(src|tests|docs|native|benchmarks|tools)/[\w./-]+", word):
            assert (ROOT / word).exists(), word


def test_no_file_names_a_machine_of_ours() -> None:
    folders = "|".join(("work", "home", "root", "tmp/dev", "Users"))
    pattern = re.compile(rf"(?<![\w.{{}}$-])/(?:{folders})/[\w.-]")
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        assert pattern.search(text) is None, path


@pytest.fixture(scope="module")
def plan() -> Plan:
    path = demo_model()
    machine = Hardware(8 * GIB, 6 * GIB, None, None, n_physical_cores=4, n_logical_cores=8)
    return make_plan(read_model(path), machine, LoadConfig(path, load_mode="streaming", max_experts=8))


def native_stats() -> NativeStats:
    numbers = {field.name: 1 for field in fields(NativeStats)}
    return NativeStats(**{**numbers, "state": "ready", "io_mode": "threads", "last_error": ""})  # type: ignore[arg-type]


def named_in(title: str) -> set[str]:
    """The names in the JSON shape that follows ``**title.**``."""
    shape = markdown.section(CLI_PAGE, "JSON").partition(f"**{title}.**")[2].split("```")[1]
    return set(re.findall(r'"(\w+)"', shape))


def keys_of(shape: Any) -> set[str]:
    """Names of an object and of all objects in it."""
    if isinstance(shape, list):
        return {key for item in shape for key in keys_of(item)}
    if isinstance(shape, dict):
        return {*shape, *(key for value in shape.values() for key in keys_of(value))}
    return set()
