"""Asks the addresses as the page asks them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.viewer import runs
from tests.viewer.asgi import Answer, Client, entered

from endoscope.runs import Run
from endoscope.viewer.app import create_app
from endoscope.viewer.library import Library

TOKEN = "the-token"


class Viewer:
    """A client, and the ids of the runs it may ask for."""

    def __init__(self, folder: Path) -> None:
        self.library = Library([folder])
        self.client: Client = entered(create_app(self.library, token=TOKEN), TOKEN)
        self.ids = [entry.id for entry in self.library.entries()]

    def get(self, what: str, **query: Any) -> Any:
        answer = self.ask(what, **query)
        assert answer.status == 200, answer.text
        return answer.json

    def ask(self, what: str, **query: Any) -> Answer:
        return self.client.get(f"/api/{what}", **{"run": self.ids[0], **query})

    def items(self, **query: Any) -> dict[tuple[str | None, str], Any]:
        reply = self.get("datapoint", **query)
        return {(item["debugger"], item["name"]): item for section in reply["sections"] for item in section["items"]}

    def pixels(self, src: str) -> np.ndarray:
        answer = self.client.get(src)
        assert answer.status == 200, answer.text
        assert answer.header("content-type") == "image/png"
        return np.asarray(Image.open(io.BytesIO(answer.body)).convert("RGBA"))


def run_of(viewer: Viewer, which: int = 0) -> Run:
    return viewer.library.run(viewer.ids[which])


def labelled(folder: Path, labels: Any, outputs: torch.Tensor, **about: Any) -> Viewer:
    """A run with one epoch whose datapoint 0 is the only failure."""
    indices = [*range(len(outputs))]
    runs.write_about(folder / "run", **about)
    inputs = {**runs.inputs_of(indices), "labels": labels}
    runs.write_pages(folder / "run" / "datapoints", {tuple(indices): inputs})
    runs.write_pages(folder / "run" / "epoch_0" / "outputs", {tuple(indices): {"outputs": outputs}})
    rows = {k: {"loss": 9.0 if k == 0 else 0.1 * k} for k in indices}
    runs.write_table(folder / "run" / "epoch_0", rows, epoch=0)
    return Viewer(folder)
