"""What is expected of experts before anything was selected: the arithmetic, and the file of earlier use."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from guanaco.cache.prior import expected_use
from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from guanaco.engine import profile
from guanaco.engine.heat import LayerHeat
from guanaco.engine.profile import Profile, load_profile, save_profile, updated
from guanaco.model.map import ModelMap


@pytest.fixture(scope="module")
def model() -> ModelMap:
    return read_model(demo_model())


def test_nothing_known_is_nothing_expected() -> None:
    assert expected_use(4, 2) == ()
    assert expected_use(4, 2, (0, 0, 0, 0), (0, 0, 0, 0)) == ()
    assert expected_use(4, 0, (1, 2, 3, 4)) == ()


def test_an_imatrix_alone_is_taken_as_it_is() -> None:
    assert expected_use(4, 2, (10, 20, 10, 0)) == pytest.approx((0.5, 1.0, 0.5, 0.0))
    assert expected_use(4, 2, (98, 1, 1, 0)) == pytest.approx(
        (1.0, 0.02, 0.02, 0.0)
    )  # never over once a token


def test_much_use_speaks_for_itself_and_little_does_not() -> None:
    much = expected_use(4, 2, (), (100_000, 50_000, 50_000, 0))
    assert much == pytest.approx((1.0, 0.5, 0.5, 0.0), abs=1e-3)
    little = expected_use(4, 2, (), (2, 1, 1, 0))
    assert little == pytest.approx((0.556, 0.5, 0.5, 0.444), abs=1e-3)
    assert sum(little) == pytest.approx(2)


def test_use_moves_what_the_imatrix_says() -> None:
    use = expected_use(4, 2, (0, 0, 10, 10), (256, 256, 0, 0))  # as many tokens as the imatrix weighs
    assert use == pytest.approx((0.5, 0.5, 0.5, 0.5))


def heat_of(model: ModelMap, uses: int) -> list[LayerHeat]:
    """Every layer used its first experts."""
    layers = []
    for group in model.groups:
        counts = tuple(uses if e < group.top_k else 0 for e in range(group.n_expert))
        layers.append(LayerHeat(group.layer, (False,) * group.n_expert, (0.0,) * group.n_expert, counts))
    return layers


def all_classes(model: ModelMap) -> tuple[int, ...]:
    return (0,) * len(model.groups)


def test_a_profile_adds_up_over_runs(model: ModelMap, tmp_path: Path) -> None:
    assert load_profile(tmp_path, model) is None
    first = updated(model, all_classes(model), None, heat_of(model, 100))
    assert first is not None
    save_profile(tmp_path, model, first)
    kept = load_profile(tmp_path, model)
    assert kept == first
    second = updated(model, all_classes(model), kept, heat_of(model, 50))
    assert second is not None
    top_k = model.groups[0].top_k
    assert second.uses[0][: top_k + 1] == (*(150.0,) * top_k, 0.0)
    assert not list((tmp_path / "use").glob("*.tmp"))


def test_a_long_history_is_scaled_down(model: ModelMap) -> None:
    long = updated(model, all_classes(model), None, heat_of(model, 1_000_000))
    assert long is not None
    assert sum(long.uses[0]) == pytest.approx(20_000 * model.groups[0].top_k)


def test_a_short_run_is_not_kept(model: ModelMap) -> None:
    assert updated(model, all_classes(model), None, heat_of(model, 7)) is None
    assert updated(model, all_classes(model), None, heat_of(model, 8)) is not None


def test_layers_without_slots_are_not_in_the_heat(model: ModelMap) -> None:
    classes = (-1, *(0,) * (len(model.groups) - 1))
    kept = updated(model, classes, None, heat_of(model, 100)[1:])
    assert kept is not None
    assert sum(kept.uses[0]) == 0
    assert sum(kept.uses[1]) > 0


def test_a_profile_belongs_to_one_model_wherever_it_lies(model: ModelMap, tmp_path: Path) -> None:
    save_profile(tmp_path, model, Profile(tuple((1.0,) * g.n_expert for g in model.groups)))
    assert load_profile(tmp_path, replace(model, name="another")) is None
    (file,) = model.files
    moved = replace(file, path=Path("/elsewhere/x.gguf"), inode=file.inode + 1, mtime_ns=0)
    assert load_profile(tmp_path, replace(model, gguf=replace(model.gguf, files=(moved,)))) is not None
    larger = replace(file, size_bytes=file.size_bytes + 1)
    assert load_profile(tmp_path, replace(model, gguf=replace(model.gguf, files=(larger,)))) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"uses": 3}', '{"uses": [[1]]}', '{"uses": [["x"]]}', "[" * 100_000],
)
def test_a_damaged_profile_is_no_profile(model: ModelMap, tmp_path: Path, text: str) -> None:
    save_profile(tmp_path, model, Profile(tuple((1.0,) * g.n_expert for g in model.groups)))
    (path,) = (tmp_path / "use").iterdir()
    path.write_text(text)
    assert load_profile(tmp_path, model) is None


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_a_profile_of_impossible_numbers_is_none(model: ModelMap, tmp_path: Path, value: float) -> None:
    save_profile(tmp_path, model, Profile(tuple((value,) * g.n_expert for g in model.groups)))
    assert load_profile(tmp_path, model) is None


def test_a_huge_file_is_not_read(model: ModelMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(tmp_path, model, Profile(tuple((1.0,) * g.n_expert for g in model.groups)))
    monkeypatch.setattr(profile, "_MOST_BYTES", 10)
    assert load_profile(tmp_path, model) is None


def test_without_a_folder_nothing_is_kept(model: ModelMap, tmp_path: Path) -> None:
    uses = Profile(tuple((1.0,) * g.n_expert for g in model.groups))
    save_profile(None, model, uses)
    assert load_profile(None, model) is None
    (tmp_path / "file").write_text("in the way")
    save_profile(tmp_path / "file", model, uses)
    assert load_profile(tmp_path / "file", model) is None


def test_only_so_many_models_are_remembered(
    model: ModelMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "_MOST_FILES", 3)
    uses = Profile(tuple((1.0,) * g.n_expert for g in model.groups))
    for number in range(5):
        save_profile(tmp_path, replace(model, name=f"m{number}"), uses)
        for path in (tmp_path / "use").iterdir():
            if json.loads(path.read_text())["name"] == f"m{number}":
                os.utime(path, (time.time() - 100 + number,) * 2)
    names = {json.loads(path.read_text())["name"] for path in (tmp_path / "use").iterdir()}
    assert names == {"m2", "m3", "m4"}
