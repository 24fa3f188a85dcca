"""A node's settings: bounds, changes as a whole, and the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.errors import UsageError
from guanaco.node.settings import InferenceSettings, changed, load_settings, save_settings, settings_json

_DEFAULT = InferenceSettings()


def test_what_is_not_named_stays() -> None:
    once = changed(_DEFAULT, {"ctx_length": 8192, "memory": "8GiB"})
    twice = changed(once, {"cpu_moe_layers": 12, "idle_unload_s": 300, "multi_model_reserve": False})
    assert twice == InferenceSettings(12, 999, 8192, 8 << 30, 300.0, False)
    assert changed(twice, {"ctx_length": None, "memory": None, "idle_unload_s": None}).ctx_length is None
    assert changed(twice, {}) == twice


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"cpu_moe_layers": -2}, "cpu_moe_layers is -2, but must be a whole number from -1 to 999"),
        ({"cpu_moe_layers": 1.0}, "cpu_moe_layers is 1.0"),
        ({"cpu_moe_layers": None}, "cpu_moe_layers is null"),
        ({"gpu_layers": True}, "gpu_layers is true"),
        ({"gpu_layers": "9"}, 'gpu_layers is "9"'),
        ({"ctx_length": 0}, "from 2 to 2147483647, or null"),
        ({"memory": "much"}, "memory: 'much' is not a size"),
        ({"memory": 0}, "memory: '0' is not a size above zero"),
        ({"memory": 1.5}, "memory: 1.5 is not a size"),
        ({"idle_unload_s": -1}, "idle_unload_s is -1"),
        ({"idle_unload_s": float("nan")}, "idle_unload_s is NaN"),
        ({"idle_unload_s": 10**400}, "idle_unload_s is 1000"),
        ({"multi_model_reserve": 1}, "multi_model_reserve is 1, but must be true or false"),
        ({"ctx_lenght": 1}, "'ctx_lenght' is not a setting; there are cpu_moe_layers"),
        ([], "must be a JSON object"),
        (None, "must be a JSON object"),
        ({"gpu_layers": "x" * 1000}, "..."),
    ],
)
def test_a_wrong_value_is_named_with_what_it_may_be(wanted: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        changed(_DEFAULT, wanted)
    assert message in error.value.message
    assert len(error.value.message) < 300


def test_they_are_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "guanaco" / "inference.json"
    assert load_settings(path) == _DEFAULT
    kept = changed(_DEFAULT, {"memory": "3GB", "ctx_length": 4096, "idle_unload_s": 1.5})
    save_settings(path, kept)
    assert load_settings(path) == kept
    assert [item.name for item in path.parent.iterdir()] == ["inference.json"]
    assert changed(_DEFAULT, settings_json(kept)) == kept


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"gpu_layers": -1}', '{"what": 1}', " " * 70000, "\xff", "[" * 60000]
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inference.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match="holds no usable settings"):
        load_settings(path)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the settings are as before"):
        save_settings(tmp_path / "file" / "inference.json", _DEFAULT)
