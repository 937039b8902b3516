"""Checkpoints: complete, safe to load, with clear errors."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from endoscope.errors import ConfigError
from endoscope.runners.state import checkpoints
from endoscope.runners.state.checkpoints import (
    CheckpointError,
    check_storable,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"epoch": 3, "model": {"w": torch.arange(3)}, "scheduler": None})
    found = load_checkpoint(path)
    assert (found["format"], found["epoch"], found["scheduler"]) == (checkpoints.FORMAT, 3, None)
    assert torch.equal(found["model"]["w"], torch.arange(3))


class FullAfter(io.RawIOBase):
    """A file on a disk with little room."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(data))


@pytest.mark.parametrize("room", [0, 1000, 50_000])
def test_a_full_disk_is_reported_and_the_earlier_checkpoint_stays(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"epoch": 0})
    real = torch.save
    monkeypatch.setattr(torch, "save", lambda state, file: real(state, FullAfter(file, room)))
    with pytest.raises(CheckpointError, match=r"checkpoint.pt' cannot be written: No space left on device"):
        save_checkpoint(path, {"epoch": 1, "model": {"w": torch.zeros(100_000)}})
    assert load_checkpoint(path)["epoch"] == 0
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_an_error_of_torch_that_is_not_the_disks_is_not_taken_for_it(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, RuntimeError), match="lambda|local"):
        save_checkpoint(tmp_path / "checkpoint.pt", {"f": lambda: None})
    assert os.listdir(tmp_path) == []


class Plain:
    pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"nonsense", "cannot be read"),
        ([1, 2], "holds a list, not a dict"),
        ({"model": Plain()}, r"it holds a .*test_checkpoints.Plain$"),
        ({"format": checkpoints.FORMAT, "version": 99}, "newer Endoscope"),
    ],
)
def test_an_unreadable_file_is_reported_in_one_line(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


def test_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path)


def test_weights_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit the model") as raised:
        load_weights(nn.Linear(2, 3), nn.Linear(2, 4).state_dict(), "checkpoint.pt")
    first, *lines = str(raised.value).splitlines()
    assert first == "the checkpoint 'checkpoint.pt' does not fit the model:"
    assert lines[1].startswith("  size mismatch for weight: copying a param with shape torch.Size([4, 2])")
    assert all(line.isprintable() for line in lines)  # the command line shows a tab as \\t


@pytest.mark.parametrize(
    "state",
    [
        nn.Linear(2, 3).state_dict(),
        nn.LazyLinear(3).state_dict(),
        {"a": [1, 2.0, "text", None, (True, torch.zeros(2))]},
        torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), [1]).state_dict(),
    ],
)
def test_plain_state_can_be_stored(state: Any) -> None:
    check_storable("model", state)


@pytest.mark.parametrize(
    ("value", "named"),
    [(np.float64(0.1), "numpy"), (Path("a"), "pathlib"), (Plain(), "Plain"), (lambda: None, "lambda")],
)
def test_anything_else_is_refused_and_named(value: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^optimizer: its state_dict\(\) holds more than .*{named}"):
        check_storable("optimizer", {"lr": value})


def test_the_last_epoch_counts_as_a_number_and_only_with_a_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    assert latest_checkpoint(tmp_path) is None
    for name in ("epoch_2", "epoch_10", "epoch_11", "epoch_007", "epoch_x", "epoch_-1", "other"):
        (tmp_path / name).mkdir()
    for name in ("epoch_2", "epoch_10", "epoch_007"):
        (tmp_path / name / "checkpoint.pt").touch()
    (tmp_path / "epoch_11" / ".checkpoint.pt.123").touch()  # killed while it was written
    assert latest_checkpoint(tmp_path) == (10, tmp_path / "epoch_10" / "checkpoint.pt")
