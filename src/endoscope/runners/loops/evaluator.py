"""BaseEvaluator: one pass over a dataset with the debugger enabled; scores and captures go into the work folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch.utils.data import DataLoader

from endoscope.errors import ConfigError
from endoscope.pages.folders import remove_pages
from endoscope.runners.loops.building import naming
from endoscope.runners.loops.runner import BaseRunner
from endoscope.runners.state import checkpoints
from endoscope.runners.state.leftovers import conflict, remove_results
from endoscope.runs import layout
from endoscope.runs.scores import Scores


class BaseEvaluator(BaseRunner):
    """Evaluate a model as a config describes: scores and captures of every datapoint.

    >>> BaseEvaluator(config, "cpu").run().aggregated
    {'accuracy': 0.975, ...}

    The key ``checkpoint`` names the weights: a checkpoint.pt, an epoch folder, or the folder of a run.
    """

    job: ClassVar[Literal["train", "eval"]] = "eval"

    def __init__(self, config: Mapping[str, Any], device: torch.device | str | None = None) -> None:
        super().__init__(config, device)
        self._check_folder()
        self._init_data()
        self._init_weights()
        self._init_debugger()

    def _check_folder(self) -> None:
        run = self.folder.earlier()
        self.ranks.wait()
        if run.job == "train" or checkpoints.latest_checkpoint(self.work_dir):
            raise ConfigError(f"work_dir: {str(self.work_dir)!r} holds a training run; choose another folder")
        if run.status == "finished" and not self.settings.overwrite:
            raise ConfigError(
                f"work_dir: {str(self.work_dir)!r} holds an evaluation; choose another folder, or set overwrite=True"
            )
        if any((self.work_dir / name).exists() for name in layout.OF_TRAINING):
            raise ConfigError(f"work_dir: {str(self.work_dir)!r} is an epoch of a training run; choose another folder")
        ours = run.job is not None or self.settings.overwrite
        folder = self.work_dir.resolve()  # the work folder itself may be a link
        self._refuse_conflict(conflict([folder], "evaluation", [folder / layout.DATAPOINTS], ours=ours))

    def _remove_old(self) -> None:
        remove_results(self.work_dir.resolve(), "evaluation")
        remove_pages(self.work_dir / layout.DATAPOINTS)

    def _init_data(self) -> None:
        self.eval_loader: DataLoader[Any] = self._loader("eval", shuffle=False)

    def _init_weights(self) -> None:
        if self.settings.checkpoint is None:
            self.progress.report("no checkpoint is given: the model is evaluated as built")
        else:
            with naming("checkpoint"):
                path = _checkpoint_file(Path(self.settings.checkpoint))
                state = checkpoints.load_checkpoint(path, device=self.device)
                checkpoints.load_weights(self.network, state["model"], path)
                stored = state.get("other_buffers", {}).get("model", {})
                fitting = {name: b for name, b in stored.items() if checkpoints.has_place_for(self.network, name, b)}
                checkpoints.load_other_buffers(self.network, fitting)
        self._compile()

    def run(self) -> Scores | None:
        """Evaluate; returns the scores (on rank 0)."""
        with self._running():
            scores = self._eval_epoch_()
        if scores is not None:
            self.progress.report(f"{len(scores.per_datapoint)} datapoints   {self._shown(scores)}")
        return scores

    def _eval_epoch_(self) -> Scores | None:
        """One pass over the data, with the debugger enabled."""
        self.network.eval()
        self.metric.reset_buffer()
        self._seed("evaluation", 0, self.eval_loader)
        self._keep(self.work_dir / layout.DATAPOINTS, self.eval_loader, "inputs", "labels", "meta_info")
        self._keep(self.work_dir / layout.OUTPUTS, self.eval_loader, "outputs")
        self._enable_debugger(self.work_dir)
        self._eval_loop(self.eval_loader, "evaluation")
        return self._after_eval_loop_()

    def _after_eval_loop_(self) -> Scores | None:
        """Save captures and scores. Rank 0 returns the scores of all ranks."""
        return self._save_results(self.work_dir, "evaluation", epoch=None)


def _checkpoint_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    if (path / layout.CHECKPOINT).is_file():
        return path / layout.CHECKPOINT
    latest = checkpoints.latest_checkpoint(path)
    if latest is None:
        raise ConfigError(f"{str(path)!r} holds no {layout.CHECKPOINT}, and no epoch in it does")
    return latest[1]
