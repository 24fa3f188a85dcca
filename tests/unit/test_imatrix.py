"""The imatrix beside a model: found, read within bounds, refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.cli.demo import demo_model
from guanaco.cli.loading import read_model
from guanaco.errors import ModelError
from guanaco.model.imatrix import find_imatrix, read_expert_counts
from guanaco.model.map import ModelMap
from tests.support.imatrices import write_imatrix


@pytest.fixture(scope="module")
def model() -> ModelMap:
    return read_model(demo_model())


def rising(model: ModelMap) -> list[list[float]]:
    return [[float(e + group.layer) for e in range(group.n_expert)] for group in model.groups]


@pytest.mark.parametrize(
    ("name", "beside", "found"),
    [
        ("m.gguf", "m.imatrix.gguf", True),
        ("m-00001-of-00003.gguf", "m.imatrix.gguf", True),
        ("m-00001-of-00003.gguf", "m-00001-of-00003.imatrix.gguf", True),
        ("m-00001-of-00003.gguf", "m-00002-of-00003.imatrix.gguf", False),
        ("m.gguf", "n.imatrix.gguf", False),
        ("m", "m.imatrix.gguf", True),
    ],
)
def test_the_name_is_the_models(tmp_path: Path, name: str, beside: str, found: bool) -> None:
    (tmp_path / beside).touch()
    assert find_imatrix(tmp_path / name) == (tmp_path / beside if found else None)


def test_a_folder_of_that_name_is_none(tmp_path: Path) -> None:
    (tmp_path / "m.imatrix.gguf").mkdir()
    assert find_imatrix(tmp_path / "m.gguf") is None


def test_counts_are_read_by_expert(model: ModelMap, tmp_path: Path) -> None:
    counts = rising(model)
    path = write_imatrix(model, tmp_path / "m.imatrix.gguf", counts)
    assert read_expert_counts(path, model.groups) == tuple(map(tuple, counts))


def test_a_layer_that_was_not_run_is_unknown(model: ModelMap, tmp_path: Path) -> None:
    counts = rising(model)
    counts[1] = []
    counts[2] = [7.0]  # one number for all experts: they were chosen equally often
    found = read_expert_counts(write_imatrix(model, tmp_path / "i", counts), model.groups)
    assert [len(layer) for layer in found] == [32, 0, 0, 32]


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0] * 31 + [float("nan")], [1.0] * 31 + [-2.0]])
def test_counts_of_something_else_are_refused(model: ModelMap, tmp_path: Path, values: list[float]) -> None:
    counts = rising(model)
    counts[0] = values
    path = write_imatrix(model, tmp_path / "i", counts)
    with pytest.raises(ModelError) as caught:
        read_expert_counts(path, model.groups)
    assert str(path) in caught.value.message
    assert "ffn_gate_exps.weight.counts" in caught.value.message


def test_another_kind_of_file_is_refused(model: ModelMap, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"general\.type is None, not 'imatrix'"):
        read_expert_counts(demo_model(), model.groups)
    path = write_imatrix(model, tmp_path / "i", rising(model), kind="model")
    with pytest.raises(ModelError, match=r"general\.type is 'model', not 'imatrix'"):
        read_expert_counts(path, model.groups)


def test_a_file_that_is_cut_off_is_refused(model: ModelMap, tmp_path: Path) -> None:
    path = write_imatrix(model, tmp_path / "i", rising(model))
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=str(path)):
            read_expert_counts(path, model.groups)
