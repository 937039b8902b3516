"""How many bytes a read would fetch, known before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.errors import DatapointNotFoundError
from endoscope.pages.reader import DebugOutputs
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.values import whole_batch


@pytest.fixture
def outputs(tmp_path: Path) -> DebugOutputs:
    store = PageStore(tmp_path / "pages", StoreSettings(1 << 20, 1 << 24))
    shared = whole_batch(torch.zeros(100, dtype=torch.uint8))
    seen = {"rows": {"t": torch.zeros(4, 1000), "shared": shared}, "text": "none", "one": torch.zeros(4, 2)}
    store.put([0, 1, 2, 3], {name: snapshot(value) for name, value in seen.items()}, {})
    store.put(9, {"rows": snapshot(torch.zeros(1, 10))}, {})
    store.close()
    return DebugOutputs(tmp_path / "pages")


def test_it_is_that_of_the_datapoints_own_rows_and_of_what_all_share(outputs: DebugOutputs) -> None:
    assert outputs.size(2, "rows") == 4 * 1000 + 100
    assert outputs.size(2, "one") == 8
    assert outputs.size(9, "rows") == 40


def test_without_tensors_or_without_the_debugger_it_is_nothing(outputs: DebugOutputs) -> None:
    assert outputs.size(2, "text") == outputs.size(2, "absent") == 0


def test_a_datapoint_that_is_not_there(outputs: DebugOutputs) -> None:
    with pytest.raises(DatapointNotFoundError, match="no datapoint 5"):
        outputs.size(5, "rows")
