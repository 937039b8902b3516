"""The names in the folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from endoscope.runs import layout


def test_epochs_are_in_numerical_order(tmp_path: Path) -> None:
    assert layout.epoch_folders(tmp_path / "none") == {}
    for name in ("epoch_2", "epoch_10", "epoch_11", "epoch_007", "epoch_x", "epoch_-1", "other", "epoch_" + "9" * 60):
        (tmp_path / name).mkdir()
    assert layout.epoch_folders(tmp_path) == {n: tmp_path / f"epoch_{n}" for n in (2, 10, 11)}


@pytest.mark.parametrize("epoch", [0, 7, 10, 123456789])
def test_a_folder_names_its_epoch(epoch: int) -> None:
    assert layout.epoch_of(layout.epoch_folder(epoch)) == epoch


@pytest.mark.parametrize("name", ["epoch_", "epoch_00", "epoch_٣", "epoch_1\n", "Epoch_1", "epoch_1234567890"])
def test_names_that_are_not_epochs(name: str) -> None:
    assert layout.epoch_of(name) is None
