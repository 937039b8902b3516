"""The code of README.md runs, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall("```python\n(.*?)```", TEXT, re.DOTALL)


class Net(nn.Module):
    """What the page calls ``model``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Conv2d(3, 6, 3)
        self.layer4 = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer4(self.layer1(x)).mean((2, 3)))


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    names = {
        "model": Net(), "criterion": nn.CrossEntropyLoss(), "x": x, "y": y,
        "loader": [(x, y, torch.arange(k, k + 4)) for k in range(0, 20, 4)], "__name__": "readme",
    }  # fmt: skip
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    debugger = names["TopChannels"]("layer4")  # type: ignore[operator]
    assert debugger.process_forward(None, (), torch.rand(2, 8, 4, 4))["top"].shape == (2, 5)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([\w/.-]+)\)", TEXT))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
