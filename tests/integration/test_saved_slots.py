"""Slots saved to files and taken back, after a restart too; no damaged or foreign file reaches the engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guanaco.cli.demo import demo_model
from tests.support.cli import Served, asked, run_guanaco, served, wait_until

TEXT = "Once upon a time there was a small dog who lived near the sea. Every day it walked to the water and"
BODY = {"prompt": TEXT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
STREAM = ("--memory", "256MiB", "--load-mode", "streaming", "-c", "1024")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    # With a shift an answer may go on for as long as a test wants a busy slot.
    words = ("-np", "2", "--context-shift", "--slot-save-path", str(folder))
    with served(str(demo_model()), *STREAM, *words) as running:
        yield running


def act(server: Served, slot: int, action: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return httpx.post(f"{server.url}/slots/{slot}", params={"action": action}, json=body or {}, timeout=60)


def answer(server: Served, **more: object) -> dict[str, Any]:
    response = httpx.post(f"{server.url}/v1/completions", json={**BODY, **more}, timeout=60)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_a_conversation_comes_back(server: Served, folder: Path) -> None:
    first = answer(server, id_slot=0)
    saved = act(server, 0, "save", {"filename": "one"})
    assert saved.status_code == 200, saved.text
    assert saved.json()["filename"] == "one"
    assert saved.json()["n_saved"] > 20
    assert (folder / "one").stat().st_size == saved.json()["n_written"]
    assert sorted(path.name for path in folder.iterdir()) == ["one", "one.mark"]
    assert act(server, 0, "erase").status_code == 200
    back = act(server, 0, "restore", {"filename": "one"})
    assert back.status_code == 200, back.text
    assert back.json()["n_restored"] == saved.json()["n_saved"]
    again = answer(server, id_slot=0)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["timings"]["prompt_n"] <= 2, "it was not read again"


def test_after_a_restart_too(server: Served, folder: Path) -> None:
    answer(server, id_slot=0)
    expected = answer(server, id_slot=0)["choices"][0]["text"]
    assert act(server, 0, "save", {"filename": "two"}).status_code == 200
    with served(str(demo_model()), *STREAM, "-np", "2", "--slot-save-path", str(folder)) as other:
        back = act(other, 0, "restore", {"filename": "two"})
        assert back.status_code == 200, back.text
        again = answer(other, id_slot=0)
    assert again["choices"][0]["text"] == expected
    assert again["timings"]["prompt_n"] <= 2


@pytest.mark.parametrize("damage", ["cut", "bit", "longer", "empty", "no mark", "bad mark", "other model"])
def test_what_is_not_as_it_was_saved_is_refused(server: Served, folder: Path, damage: str) -> None:
    answer(server, id_slot=0)
    assert act(server, 0, "save", {"filename": "good"}).status_code == 200
    path, mark = folder / "bad", folder / "bad.mark"
    shutil.copy(folder / "good", path)
    shutil.copy(folder / "good.mark", mark)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "bit":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif damage == "longer":
        path.write_bytes(content + b"x")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no mark":
        mark.unlink()
    elif damage == "bad mark":
        mark.write_text("[]")
    else:
        mark.write_text(json.dumps({**json.loads(mark.read_text()), "origin": "elsewhere"}))
    refused = act(server, 1, "restore", {"filename": "bad"})
    assert refused.status_code == (404 if damage == "no mark" else 400)
    assert "bad" in refused.json()["error"]["message"]
    assert answer(server)["choices"][0]["text"], "the engine is well"


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "", ".hid", "x.mark", "x.partial", "x.", "a..b", "n" * 129, "a\0b"]
)
def test_names_never_become_paths(server: Served, name: str) -> None:
    for action in ("save", "restore"):
        refused = act(server, 0, action, {"filename": name})
        assert refused.status_code == 400, action
        assert "filename" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("slot", "action", "body", "status", "words"),
    [
        (7, "save", {"filename": "x"}, 400, "no slot 7; they go from 0 to 1"),
        (-1, "erase", {}, 400, "no slot -1"),
        (0, "dance", {}, 400, "save, restore or erase"),
        (0, "save", {}, 400, "filename"),
        (0, "save", {"filename": 3}, 400, "filename"),
        (0, "restore", {"filename": "never"}, 404, "no slot was saved as 'never'"),
    ],
)
def test_bad_requests(
    server: Served, slot: int, action: str, body: dict[str, Any], status: int, words: str
) -> None:
    refused = act(server, slot, action, body)
    assert refused.status_code == status
    assert words in refused.json()["error"]["message"]


def test_a_slot_of_another_number_of_slots_is_refused(server: Served, folder: Path) -> None:
    answer(server, id_slot=0)
    assert act(server, 0, "save", {"filename": "of-two"}).status_code == 200
    with served(str(demo_model()), *STREAM, "--slot-save-path", str(folder)) as other:
        refused = act(other, 0, "restore", {"filename": "of-two"})
    assert refused.status_code == 400
    assert "another -np" in refused.json()["error"]["message"]


def test_without_the_flag_slots_are_not_saved() -> None:
    with served(str(demo_model()), *STREAM) as server:
        for action in ("save", "restore", "erase"):
            assert act(server, 0, action, {"filename": "x"}).status_code == 501


def test_what_cannot_be_kept_leaves_what_was_there(server: Served, folder: Path) -> None:
    """A folder stands where the file should be."""
    answer(server, id_slot=0)
    assert act(server, 0, "save", {"filename": "kept"}).status_code == 200
    before = (folder / "kept").read_bytes()
    (folder / "kept").rename(folder / "aside")
    (folder / "kept").mkdir()
    refused = act(server, 0, "save", {"filename": "kept"})
    assert refused.status_code == 500
    assert "kept could not be kept" in refused.json()["error"]["message"]
    (folder / "kept").rmdir()
    (folder / "aside").rename(folder / "kept")
    assert act(server, 0, "restore", {"filename": "kept"}).status_code == 200
    assert (folder / "kept").read_bytes() == before
    assert not list(folder.glob("*.partial"))


def test_who_leaves_while_a_slot_is_busy_saves_nothing(server: Served, folder: Path) -> None:
    """And holds up nobody."""
    with asked(server, {"prompt": "Once", "max_tokens": 100_000, "ignore_eos": True, "id_slot": 1}):
        wait_until(lambda: server.metric("llamacpp:requests_processing") == 1, 5, "slot 1 is busy")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/slots/1", params={"action": "save"}, json={"filename": "late"}, timeout=0.5
            )
        answer(server, id_slot=0)
        assert act(server, 0, "save", {"filename": "other"}).status_code == 200
    wait_until(lambda: server.metric("llamacpp:requests_processing") == 0, 5, "slot 1 is free")
    assert act(server, 1, "erase").status_code == 200
    assert not (folder / "late").exists()
    assert not list(folder.glob("*.partial"))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run_guanaco("serve", str(demo_model()), "--slot-save-path", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "is no folder; make it" in done.stderr
