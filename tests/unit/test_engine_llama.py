"""The engine's version pin and the settings that travel to a worker."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from guanaco.config import LoadConfig, SamplingConfig
from guanaco.engine import llama, worker
from guanaco.errors import EngineError
from tests.support.specs import demo_settings, demo_spec

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_pin_is_the_packages_own() -> None:
    wanted = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    assert f"{llama.ENGINE_NAME}=={llama.ENGINE_VERSION}" in wanted
    assert llama.import_engine().__version__ == llama.ENGINE_VERSION


def test_another_version_is_refused_with_both_names() -> None:
    with pytest.raises(EngineError) as caught:
        llama.check_version("2025.1.1")
    assert "2025.1.1" in caught.value.message
    assert llama.ENGINE_VERSION in caught.value.message
    assert caught.value.details == {"installed": "2025.1.1", "required": llama.ENGINE_VERSION}


def test_an_installed_engine_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama.import_engine(), "__version__", "1.2.3")
    with pytest.raises(EngineError, match=r"version 1\.2\.3"):
        llama.import_engine()


def test_a_missing_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match=f"pip install xllamacpp=={llama.ENGINE_VERSION}"):
        llama.import_engine()


def test_settings_survive_the_journey() -> None:
    spec = demo_spec(LoadConfig(Path(), alias="x", n_threads_batch=3))
    settings = llama.worker_settings(
        spec.config,
        spec.plan,
        SamplingConfig(temperature=0.5, seed=3),
        first_file=Path("/models/a b.gguf"),
        alias="x",
        api_key="secret",
        preload="/lib/x.so",
        verbose=True,
    )
    assert llama.WorkerSettings.from_json(settings.to_json()) == settings
    assert settings.n_threads_batch == 3
    assert settings.n_ctx == spec.plan.n_ctx


def test_only_our_parent_can_talk_to_a_worker() -> None:
    settings = demo_settings()
    params = llama.common_params(settings, llama.import_engine())
    assert params.hostnames == ["127.0.0.1"]
    assert params.port == 0
    assert params.api_keys == ["secret"]
    assert not params.ui
    assert params.cors_origins == "localhost"


def test_a_library_that_was_not_preloaded_is_noticed() -> None:
    worker.check_preloaded("/opt/lib/libguanaco.so", "7f00-7f01 r-xp 0 08:01 5 /opt/lib/libguanaco.so\n")
    with pytest.raises(EngineError, match="could not be preloaded"):
        worker.check_preloaded("/opt/lib/libguanaco.so", "7f00-7f01 r-xp 0 08:01 5 /usr/lib/libc.so.6\n")


@pytest.mark.parametrize("cpus", [(), (0, 5, 511)])
def test_threads_are_bound_to_their_processors(cpus: tuple[int, ...]) -> None:
    settings = demo_settings(cpus=cpus)
    params = llama.common_params(llama.WorkerSettings.from_json(settings.to_json()), llama.import_engine())
    for each in (params.cpuparams, params.cpuparams_batch):
        assert len(each.cpumask) == llama.MOST_CPUS
        assert tuple(cpu for cpu, is_in in enumerate(each.cpumask) if is_in) == cpus
        assert each.mask_valid == each.strict_cpu == bool(cpus)
