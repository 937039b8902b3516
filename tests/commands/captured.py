"""Real captures for the commands, and how to damage one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from click.testing import Result

from endoscope.debuggers import BaseDebugger, FeatureMapDebugger, SequentialDebugger


class Given(BaseDebugger):
    """Returns the datapoint's value under ``given``."""

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> Any:
        return datapoint["given"]


class Model(torch.nn.Module):
    """A convolution that always runs, and a layer that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, bias=False)
        self.unused = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


CONFIG = [
    {"name": "features", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "conv"}}},
    {"name": "unused", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "unused"}}},
    {"name": "given", "debugger_config": Given()},
]

Run = Callable[..., Result]


class Captured:
    """Creates captures: ``captured(folder, {idx: given})`` runs the model once on each datapoint."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = Model()

    def image(self, idx: int) -> torch.Tensor:
        return torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(idx))

    def open(self, folder: Path, **settings: Any) -> SequentialDebugger:
        debugger = SequentialDebugger(CONFIG, self.model, output_dir=folder, **settings)
        debugger.enabled = True
        return debugger

    def feed(self, debugger: SequentialDebugger, given: Mapping[int, Any]) -> None:
        for idx, value in given.items():
            with torch.no_grad():
                self.model(self.image(idx))
            debugger({"given": value, "meta_info": {"idx": idx}}, self.model)

    def __call__(self, folder: Path, given: Mapping[int, Any], **settings: Any) -> Path:
        with self.open(folder, **settings) as debugger:
            self.feed(debugger, given)
        return folder


def flip_byte(folder: Path, *, record: int) -> None:
    """Change one bit of a record's tensors in page_0."""
    lines = (folder / "page_0.jsonl").read_text().splitlines()
    at = json.loads(lines[1 + record])["at"]
    data = bytearray((folder / "page_0.safetensors").read_bytes())
    data[at + 3] ^= 1
    (folder / "page_0.safetensors").write_bytes(data)
