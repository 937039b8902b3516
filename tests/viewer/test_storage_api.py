"""/api/storage: pages, sizes, damage."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.viewer import runs
from tests.viewer.asgi import entered

from endoscope.capturing.snapshot import snapshot
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.runs import run
from endoscope.viewer.app import create_app
from endoscope.viewer.library import Library


def storage(folder: Path) -> Any:
    answer = entered(create_app(Library([folder]), token="t"), "t").get("/api/storage")
    assert answer.status == 200
    return answer.json


def test_pages_are_counted_and_sizes_add_up(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    found = storage(folder)
    names = [one["name"] for one in found["folders"]]
    assert names == ["datapoints", "epoch_1/outputs", "epoch_1/debugger", "epoch_2/outputs", "epoch_2/debugger"]
    for one in found["folders"]:
        inside = folder / one["name"]
        assert one["bytes"] == sum(path.stat().st_size for path in inside.iterdir())
        (page,) = one["pages"]
        own = sum((inside / f"page_0.{suffix}").stat().st_size for suffix in ("safetensors", "jsonl"))
        assert page == {
            "name": "page_0",
            "records": 3,
            "datapoints": 12,
            "bytes": own,
            "closed": True,
            "dropped": 0,
        }
        assert (one["damage"], one["damaged"]) == ([], 0)
    assert found["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert found["bytes"] == sum(one["bytes"] for one in (*found["folders"], *found["files"]))
    assert {"run.json", "epoch_0/validation_scores.json"} <= {one["name"] for one in found["files"]}
    assert found["problems"] == []


def test_the_cost_of_capturing_compares_validations_with_and_without_it(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a", epochs=5)
    progress = json.loads((folder / "progress.json").read_text())
    for epoch, seconds in zip(progress["epochs"], (1.0, 3.0, 7.0, 4.0, 5.0), strict=True):
        epoch["val_s"] = seconds
    (folder / "progress.json").write_text(json.dumps(progress))
    assert storage(folder)["cost"] == {
        "captured": {"epochs": 4, "median_s": 4.5},
        "others": {"epochs": 1, "median_s": 1.0},
    }
    shutil.rmtree(folder / "epoch_0")
    shutil.rmtree(folder / "epoch_1" / "debugger")
    captured = {"captured": {"epochs": 4, "median_s": 4.5}, "others": {"epochs": 1, "median_s": 1.0}}
    assert storage(folder)["cost"] == captured  # its outputs are kept
    shutil.rmtree(folder / "epoch_1" / "outputs")
    found = storage(folder)["cost"]
    assert found == {"captured": {"epochs": 3, "median_s": 5.0}, "others": {"epochs": 2, "median_s": 2.0}}


def test_a_run_without_times_or_debug_outputs_has_no_cost(tmp_path: Path) -> None:
    assert storage(runs.evaluation(tmp_path / "a"))["cost"] is None
    folder = runs.training(tmp_path / "b", epochs=1)
    assert storage(folder)["cost"] is None


def test_the_pages_of_a_folder_are_listed_one_by_one(tmp_path: Path) -> None:
    folder = runs.evaluation(tmp_path / "a")
    store = PageStore(folder / "debugger", StoreSettings(1 << 12, 1 << 24, overwrite=True))
    for k in range(20):
        store.put([k], {"text": snapshot("x" * 2000)}, {})
    store.close()
    pages = next(one for one in storage(folder)["folders"] if one["name"] == "debugger")["pages"]
    assert len(pages) > 1
    assert sum(page["records"] for page in pages) == sum(page["datapoints"] for page in pages) == 20


def test_damage_that_opening_shows_is_listed(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    pages = folder / "epoch_2" / "outputs"
    (pages / "catalogue.jsonl").unlink()
    lines = (pages / "page_0.jsonl").read_bytes().split(b"\n")
    lines[1] = lines[1][:-10] + b"0123456789"
    (pages / "page_0.jsonl").write_bytes(b"\n".join(lines))
    found = next(one for one in storage(folder)["folders"] if one["name"] == "epoch_2/outputs")
    assert found["damaged"] == len(found["damage"]) >= 1
    assert found["damage"][0]["file"] == "page_0.jsonl"
    assert found["damage"][0]["reason"]
    assert sum(page["records"] for page in found["pages"]) == 2


def flipped(page: Path) -> None:
    content = bytearray(page.read_bytes())
    content[-1] ^= 1
    page.write_bytes(content)


@pytest.mark.parametrize("first", ["storage", "datapoint"])
def test_damage_found_in_a_datapoint_is_counted_in_any_order_of_requests(first: str, tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    flipped(folder / "epoch_2" / "outputs" / "page_0.safetensors")
    client = entered(create_app(Library([folder]), token="t"), "t")

    def damaged() -> dict[str, int]:
        return {one["name"]: one["damaged"] for one in client.get("/api/storage").json["folders"] if one["damaged"]}

    if first == "storage":
        assert damaged() == {}
    assert "checksum" in client.get("/api/datapoint", epoch=2, dp=11).text
    assert damaged() == damaged() == {"epoch_2/outputs": 1}


def test_found_damage_is_remembered_after_many_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_OPEN_FOLDERS", 2)
    folder = runs.training(tmp_path / "a", epochs=4)
    page = folder / "epoch_3" / "outputs" / "page_0.safetensors"
    whole = page.read_bytes()
    flipped(page)
    client = entered(create_app(Library([folder]), token="t"), "t")

    def damaged() -> int:
        return sum(one["damaged"] for one in client.get("/api/storage").json["folders"])

    client.get("/api/datapoint", epoch=3, dp=11)
    assert damaged() == damaged() == 1
    page.write_bytes(whole)  # it was copied here again
    assert damaged() == 0


def test_a_closed_page_that_was_cut_is_damaged(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    page = folder / "epoch_2" / "debugger" / "page_0.safetensors"
    written = page.stat().st_size
    os.truncate(page, written // 2)
    found = next(one for one in storage(folder)["folders"] if one["name"] == "epoch_2/debugger")
    reason = f"{written // 2} bytes long, written as {written}"
    assert found["damage"] == [{"file": "page_0.safetensors", "record": None, "reason": reason}]
    assert (found["damaged"], found["pages"][0]["closed"]) == (1, True)


def test_a_page_that_is_cut_while_the_viewer_is_open_is_damaged(tmp_path: Path) -> None:
    folder = runs.training(tmp_path / "a")
    client = entered(create_app(Library([folder]), token="t"), "t")

    def damaged() -> int:
        return sum(one["damaged"] for one in client.get("/api/storage").json["folders"])

    assert damaged() == 0
    os.truncate(folder / "epoch_2" / "debugger" / "page_0.safetensors", 1000)
    assert damaged() == 1


def test_a_page_that_is_being_written_is_open_and_grows(tmp_path: Path) -> None:
    folder = runs.live(tmp_path / "a")
    client = entered(create_app(Library([folder]), token="t"), "t")
    store = PageStore(folder / "epoch_1" / "debugger", StoreSettings(1 << 20, 1 << 24, overwrite=True))

    def page() -> Any:
        folders = client.get("/api/storage").json["folders"]
        return next(one for one in folders if one["name"] == "epoch_1/debugger")["pages"][0]

    for k in range(3):
        store.put([k], {"number": snapshot(k)}, {})
        store.flush()
        assert (page()["records"], page()["closed"]) == (k + 1, False)
    store.close()
    assert page()["closed"]


def test_pickle_pages_are_reported_and_not_opened(tmp_path: Path) -> None:
    folder = runs.evaluation(tmp_path / "a")
    for path in (folder / "debugger").iterdir():
        path.unlink()
    (folder / "debugger" / "page_0.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    found = storage(folder)
    assert next(one for one in found["folders"] if one["name"] == "debugger")["pages"] == []
    assert any("pickle pages, which can run code and are not opened" in problem for problem in found["problems"])


def test_links_among_the_files_are_neither_counted_nor_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100_000)
    folder = runs.evaluation(tmp_path / "a")
    before = storage(folder)["bytes"]
    (folder / "debugger" / "page_1.jsonl").symlink_to(tmp_path / "secret")
    (folder / "epoch_0").symlink_to(tmp_path)
    assert storage(folder)["bytes"] == before


def test_an_empty_run_has_nothing(tmp_path: Path) -> None:
    found = storage(runs.just_started(tmp_path / "a"))
    assert found["folders"] == []
    assert [one["name"] for one in found["files"]] == ["run.json"]
