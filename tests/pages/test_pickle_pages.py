"""Pickle pages: several writers in one folder, and what a page that cannot be written leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.captures import datapoint, debugger, write

from endoscope.pages import pickle_pages
from endoscope.pages.reader import load_debug_outputs


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def no_links(*paths: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_two_debuggers_share_a_folder(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with debugger(tmp_path, page_format="pickle") as one, debugger(tmp_path, page_format="pickle") as other:
        for k in range(3):
            one.add_to_buffer({"x": torch.tensor(k)}, datapoint(k))
            other.add_to_buffer({"x": torch.tensor(10 + k)}, datapoint(10 + k))
            assert one.flush()
            assert other.flush()
    found = load_debug_outputs(tmp_path, trust_pickle=True)
    assert {i: found[i]["x"].item() for i in found} == {i: i for i in (0, 1, 2, 10, 11, 12)}
    assert names(tmp_path) == ["page_0.pkl", "page_1.pkl"]  # a flush writes its own page anew


class Unwilling:
    """A pickler that fails when half of the page is written."""

    def dump(self, page: Any, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pickle_pages, "joblib", Unwilling)
        write(tmp_path, [(0, {"x": 1})], page_format="pickle")
    assert names(tmp_path) == []
    write(tmp_path, [(0, {"x": 1})], page_format="pickle")
    assert load_debug_outputs(tmp_path, trust_pickle=True) == {0: {"x": 1}}


def test_a_page_that_was_flushed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with debugger(tmp_path, page_format="pickle") as d:
        d.add_to_buffer({"x": 1}, datapoint(0))
        assert d.flush()
        monkeypatch.setattr(pickle_pages.joblib(), "dump", Unwilling().dump)
        d.add_to_buffer({"x": 2}, datapoint(1))
        assert not d.flush()
    assert names(tmp_path) == ["page_0.pkl"]
    assert load_debug_outputs(tmp_path, trust_pickle=True) == {0: {"x": 1}}


def test_a_name_that_cannot_be_given_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "replace", no_links)
    write(tmp_path, [(0, {"x": 1})], page_format="pickle")
    assert names(tmp_path) == []
