"""Small folders of runs as runners leave them, and as accidents do: for all tests of the viewer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch

from endoscope.capturing.snapshot import snapshot
from endoscope.pages.store import PageStore, StoreSettings
from endoscope.runs.atomic import write_json
from endoscope.runs.fields import Direction
from endoscope.runs.scores import Scores, write_scores
from endoscope.values import per_datapoint, whole_batch

NAN, INF = float("nan"), float("inf")
CLASS_NAMES = ["cat", "dog", "ship"]
DIRECTIONS: dict[str, Direction] = {"loss": "lower", "accuracy": "higher", "macro_f1": "higher"}
INDICES = list(range(12))
TOKENS = ["[CLS]", "a", "small", "<b>model</b>", "fails"]

Rows = Mapping[int, Mapping[str, float]]


# ---------------------------------------------------------------- parts
def write_about(folder: Path, **changed: Any) -> None:
    """run.json of a finished training; None leaves a key out."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about: dict[str, Any] = {
        "format": "endoscope-run",
        "version": 1,
        "job": "train",
        "status": "finished",
        "error": None,
        "started": now,
        "attempt_started": now,
        "updated": now,
        "ended": now,
        "attempts": 1,
        "command": ["endoscope", "train", "config.py"],
        "pid": 17,
        "seed": 0,
        "device": "cpu",
        "precision": "float32",
        "world_size": 1,
        "directions": DIRECTIONS,
        "class_names": CLASS_NAMES,
        "epochs": 3,
        "checkpoint_epochs": [1, 2],
        **changed,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", {key: value for key, value in about.items() if value is not None})


def write_progress(folder: Path, epochs: int, *, stage: str | None = None, updated: datetime | None = None) -> None:
    done = [
        {
            "epoch": epoch,
            "step": 4 * (epoch + 1),
            "learning_rates": [0.1],
            "loss": {"mean": 1.0 / (epoch + 1), "count": 4, "non_finite": 0},
            "scores": {"loss": 1.0 / (epoch + 1), "accuracy": 0.5 + 0.1 * epoch, "macro_f1": 0.4},
            "train_s": 1.5,
            "val_s": 0.5,
        }
        for epoch in range(epochs)
    ]
    now = {"now": {"stage": stage, "step": 4 * epochs + 1}} if stage else {}
    when = (updated or datetime.now(UTC)).isoformat(timespec="seconds")
    write_json(folder / "progress.json", {"updated": when, "epochs": done, **now})


def usual_rows(epoch: int, indices: list[int] = INDICES) -> dict[int, dict[str, float]]:
    """Scores that differ by epoch; datapoint 3 has NaN as its loss in every odd epoch."""
    rows = {}
    for k in indices:
        loss = NAN if k == 3 and epoch % 2 else ((7 * k + 3 * epoch) % 11) / (epoch + 2)
        rows[k] = {"loss": loss, "accuracy": float((k + epoch) % 3 > 0)}
    return rows


def write_table(
    folder: Path, rows: Rows, *, epoch: int | None, directions: Mapping[str, Direction] = DIRECTIONS
) -> None:
    """The score file of an epoch, or of an evaluation (``epoch=None``)."""
    names = [*dict.fromkeys(name for row in rows.values() for name in row)]
    aggregated = {name: sum(row.get(name, 0.0) for row in rows.values()) / max(len(rows), 1) for name in names}
    scores = Scores(
        directions=directions,
        aggregated=aggregated,
        non_finite={name: sum(row.get(name, 0.0) != row.get(name, 0.0) for row in rows.values()) for name in names},
        per_datapoint=rows,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_scores(scores, folder, split="evaluation" if epoch is None else "validation", epoch=epoch)


def write_pages(folder: Path, batches: Mapping[tuple[int, ...], Mapping[str, Any]], *, notes: Any = None) -> None:
    """One record for each batch of datapoints: members whose first dimension is the batch."""
    store = PageStore(folder, StoreSettings(1 << 20, 1 << 24, overwrite=True))
    for indices, members in batches.items():
        store.put(list(indices), {name: snapshot(value) for name, value in members.items()}, notes or {})
    store.close()


def _batches(make: Callable[[list[int]], dict[str, Any]], indices: list[int]) -> dict[tuple[int, ...], dict[str, Any]]:
    """Batches of four."""
    parts = [indices[k : k + 4] for k in range(0, len(indices), 4)]
    return {tuple(part): make(part) for part in parts}


def _seeded(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(key) % (1 << 31))


def inputs_of(indices: list[int]) -> dict[str, Any]:
    """Images of 3 x 8 x 8, classes, and texts."""
    images = torch.stack([torch.rand(3, 8, 8, generator=_seeded(1, k)) for k in indices])
    return {
        "inputs": images,
        "labels": torch.tensor([k % 3 for k in indices]),
        "meta_info": {
            "idx": torch.tensor(indices),
            "image_filepath": per_datapoint([f"images/{k}.png" for k in indices]),
        },
    }


def outputs_of(indices: list[int], epoch: int = 0) -> dict[str, Any]:
    return {"outputs": torch.stack([torch.randn(3, generator=_seeded(2, epoch, k)) for k in indices])}


def seen_of(indices: list[int], epoch: int = 0) -> dict[str, Any]:
    """What debuggers give: 2-D to 5-D tensors (the batch is the first dimension), tokens, texts, numbers."""
    b = len(indices)
    g = _seeded(3, epoch, *indices)
    features = torch.randn(b, 10, 4, 4, generator=g)
    features[0, 0, 0, 0] = NAN
    return {
        "head": {"layer_name": "head", "output": torch.randn(b, 3, generator=g)},  # 2-D
        "encoder": {"layer_name": "encoder.0", "output": torch.randn(b, 5, 6, generator=g)},  # 3-D
        "features": {"layer_name": "conv1", "feature_map": features},  # 4-D
        "video": {"layer_name": "conv3d", "feature_map": torch.rand(b, 2, 3, 4, 4, generator=g)},  # 5-D
        "attention": {
            "layer_name": "encoder.0.attention",
            "attention": torch.softmax(torch.randn(b, 2, 5, 5, generator=g), -1),
            "tokens": whole_batch(TOKENS),
        },
        "gradcam": {
            "gradcam": torch.rand(b, 8, 8, generator=g),
            "target_class": per_datapoint([k % 3 for k in indices]),
        },
        "text": {"caption": per_datapoint([f"datapoint {k}: <script>alert(1)</script>" for k in indices])},
        "activations/conv1": {
            "layer_name": "conv1",
            "activation_stats": {"mean": torch.rand(b, generator=g), "sparsity": torch.rand(b, generator=g)},
        },
        "number": whole_batch(0.5),
    }


def write_epoch(
    folder: Path, epoch: int, *, rows: Rows | None = None, capture: bool = True, indices: list[int] = INDICES
) -> None:
    """epoch_N: scores, losses, and with ``capture`` pages."""
    inside = folder / f"epoch_{epoch}"
    write_table(inside, usual_rows(epoch, indices) if rows is None else rows, epoch=epoch)
    write_json(inside / "training_losses.json", {"loss": [1.0, 0.5 / (epoch + 1)], "part": [0.5, 0.25]})
    if capture:
        write_pages(inside / "outputs", _batches(lambda part: outputs_of(part, epoch), indices))
        write_pages(inside / "debugger", _batches(lambda part: seen_of(part, epoch), indices))


# ---------------------------------------------------------------- runs
def training(folder: Path, *, epochs: int = 3, indices: list[int] = INDICES, **about: Any) -> Path:
    """A finished training; every epoch but the first has pages."""
    write_about(folder, epochs=epochs, **about)
    write_json(folder / "config.json", {"epochs": epochs, "model": {"class": "user_code.Net", "args": {}}})
    write_progress(folder, epochs)
    write_pages(folder / "datapoints", _batches(inputs_of, indices))
    for epoch in range(epochs):
        write_epoch(folder, epoch, capture=epoch > 0, indices=indices)
    return folder


def evaluation(folder: Path, *, rows: Rows | None = None, **about: Any) -> Path:
    """A finished evaluation."""
    write_about(folder, **{"job": "eval", "epochs": None, "checkpoint_epochs": None, **about})
    write_json(folder / "config.json", {"model": {"class": "user_code.Net", "args": {}}})
    write_table(folder, usual_rows(0) if rows is None else rows, epoch=None)
    write_pages(folder / "datapoints", _batches(inputs_of, INDICES))
    write_pages(folder / "outputs", _batches(outputs_of, INDICES))
    write_pages(folder / "debugger", _batches(seen_of, INDICES))
    return folder


def live(folder: Path, *, epochs: int = 2) -> Path:
    """A training that goes on: this process is said to be its own, and it has just been heard of."""
    training(folder, epochs=epochs, status="running", ended=None, pid=os.getpid(), **_this_process())
    write_progress(folder, epochs, stage=f"epoch {epochs} training")
    return folder


def crashed(folder: Path) -> Path:
    """A training that failed in its second epoch, whose folder is half written."""
    training(folder, epochs=1, status="failed", error="RuntimeError: CUDA out of memory\n  at step 7")
    (folder / "epoch_1").mkdir()
    write_json(folder / "epoch_1" / "training_losses.json", {"loss": [1.0, NAN]})
    return folder


def killed(folder: Path) -> Path:
    """A training that says that it is running, and was last heard of a day ago."""
    training(folder, epochs=2, status="running", ended=None, updated=_yesterday().isoformat(), pid=1 << 22)
    write_progress(folder, 2, stage="epoch 2 training", updated=_yesterday())
    return folder


def empty(folder: Path) -> Path:
    """A folder with nothing in it."""
    folder.mkdir(parents=True)
    return folder


def just_started(folder: Path) -> Path:
    """A run that has written nothing but what it is."""
    write_about(folder, status="running", ended=None, pid=os.getpid(), **_this_process())
    return folder


def damaged(folder: Path) -> Path:
    """A training whose second epoch has cut scores and a record with a flipped byte; the third is whole."""
    training(folder)
    scores = folder / "epoch_1" / "validation_scores.json"
    scores.write_bytes(scores.read_bytes()[:200])
    page = next((folder / "epoch_1" / "debugger").glob("*.safetensors"))
    content = bytearray(page.read_bytes())
    content[len(content) // 2] ^= 0xFF
    page.write_bytes(content)
    lines = next((folder / "epoch_1" / "outputs").glob("page_*.jsonl"))
    lines.write_bytes(lines.read_bytes()[:-400])
    for catalogue in (folder / "epoch_1" / "outputs").glob("catalogue*"):
        catalogue.unlink()
    (folder / "config.json").write_text("{not json")
    return folder


def hostile(folder: Path, text: str) -> Path:
    """A training in which names, classes, tokens, texts and files are ``text``, as far as each can hold it."""
    name = text.replace("/", "\u2215").replace("\0", "")[:60] or "x"
    directions: dict[str, Direction] = {text: "lower"}
    write_about(folder, directions=directions, class_names=[text] * 3, epochs=1, error=text, status="failed")
    write_json(folder / "config.json", {text: text})
    members = inputs_of([0, 1])
    members["meta_info"]["image_filepath"] = per_datapoint([text, name])
    write_pages(folder / "datapoints", {(0, 1): members})
    write_table(folder / "epoch_0", {0: {text: 1.0}, 1: {text: 2.0}}, epoch=0, directions=directions)
    write_pages(folder / "epoch_0" / "outputs", {(0, 1): outputs_of([0, 1])})
    seen = {text: {"layer_name": text, "feature_map": torch.rand(2, 3, 4, 4), text: whole_batch([text] * 3)}}
    write_pages(folder / "epoch_0" / "debugger", {(0, 1): seen}, notes={"absent": {text: text}})
    return folder


def large(folder: Path, *, datapoints: int = 10_000, epochs: int = 20) -> Path:
    """Scores of many datapoints in many epochs, without pages."""
    write_about(folder, epochs=epochs, checkpoint_epochs=[])
    write_progress(folder, epochs)
    for epoch in range(epochs):
        losses = torch.rand(datapoints, generator=_seeded(4, epoch), dtype=torch.float64).tolist()
        rows = {k: {"loss": loss, "accuracy": float(loss < 0.5)} for k, loss in enumerate(losses)}
        write_epoch(folder, epoch, rows=rows, capture=False)
    return folder


def _yesterday() -> datetime:
    return datetime.now(UTC) - timedelta(days=1)


def _this_process() -> dict[str, Any]:
    from endoscope.runs import process

    return {"process": process.identity(os.getpid())}


# ---------------------------------------------------------------- what must stay as it is
def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder: mode, time of the last write, content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (about.st_mode, about.st_mtime_ns, content)
    return found


@contextmanager
def serving(*folders: Path) -> Iterator[str]:
    """A real server of the runs in ``folders``, on a thread of this process; gives its address, token included."""
    from endoscope.viewer.serve import Server

    server = Server(folders)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join(20)
