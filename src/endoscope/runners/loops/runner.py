"""BaseRunner: what training and evaluation share. A model, data, metric and debugger; a work folder; an orderly end."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal

import torch
from torch.utils.data import DataLoader

from endoscope.capturing.calling import call_model
from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger
from endoscope.errors import ConfigError
from endoscope.pages.folders import ensure_folder
from endoscope.runners.config.plain import as_json
from endoscope.runners.config.settings import Settings
from endoscope.runners.data.batches import UserCollate, to_device
from endoscope.runners.data.datapoints import class_names
from endoscope.runners.data.loaders import length
from endoscope.runners.loops.building import build, build_loader, compile_model, expect, naming, usable_device
from endoscope.runners.loops.distributed import RankError, Ranks, leave_broken_group, lost_connection
from endoscope.runners.loops.interrupt import Interrupt, Interrupted
from endoscope.runners.loops.progress import progress
from endoscope.runners.loops.seeding import seed_stage
from endoscope.runners.metric import BaseMetric, check_directions
from endoscope.runners.state.datapoint_pages import DatapointPages, Sample
from endoscope.runners.state.run_folder import RunFolder
from endoscope.runs import layout
from endoscope.runs.about import Status
from endoscope.runs.scores import Scores, score_label, write_scores

log = logging.getLogger("endoscope")

_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class BaseRunner(ABC):
    """Builds what a config describes and runs it. However the run ends, its folder is readable.

    ``model`` is what training calls (under torchrun, the DDP wrapper); ``network`` is the user's module in it.
    """

    job: ClassVar[Literal["train", "eval"]]
    settings_class: ClassVar[type[Settings]] = Settings
    """A runner with additional keys has a subclass with more fields."""

    # ---- building
    def __init__(self, config: Mapping[str, Any], device: torch.device | str | None = None) -> None:
        self.config = dict(config)
        self.settings = self.settings_class.from_config(self.config, job=self.job)
        self.device = usable_device(device if device is not None else self.settings.device)
        self.ranks = Ranks.join(self.device)
        self.work_dir = self.settings.work_dir.absolute()  # the user's code may change the current folder
        ensure_folder(self.work_dir, "work_dir")
        if not os.access(self.work_dir, os.R_OK):
            raise ConfigError(f"work_dir: cannot read {str(self.work_dir)!r}; choose another")
        self.folder = RunFolder(self.work_dir, job=self.job)
        self._refuse(self.folder.in_use() if self.ranks.first else "")
        self.progress = progress(first_rank=self.ranks.first)
        self._interrupt = Interrupt()
        self._pages: list[DatapointPages] = []
        self._seed("build", 0, None)
        self._init_model()
        self.metric: BaseMetric = expect(self._build("metric"), BaseMetric, "metric")
        with naming("metric"):
            check_directions(self.metric)
        self.debugger: SequentialDebugger | None = None
        self.class_names = self.settings.class_names

    def _build(self, key: str, **given: Any) -> Any:
        return build(self.settings, key, **given)

    def _init_model(self) -> None:
        self.network: torch.nn.Module = expect(self._build("model"), torch.nn.Module, "model")
        self.network.to(self.device)
        self.model: torch.nn.Module = self.network

    def _compile(self) -> None:
        if self.settings.compile:
            compile_model(self.network, warn=self.ranks.first)

    def _init_debugger(self) -> None:
        """Build the debugger on the model. Its hooks are attached when it is enabled."""
        if self.settings.debugger is not None:
            self.debugger = expect(self._build("debugger", model=self.network), SequentialDebugger, "debugger")

    def _loader(self, split: Literal["train", "val", "eval"], *, shuffle: bool) -> DataLoader[Any]:
        loader = build_loader(self.settings, split, shuffle=shuffle, ranks=self.ranks)
        self.class_names = self.class_names or class_names(loader.dataset)
        return loader

    def _seed(self, stage: str, epoch: int, loader: DataLoader[Any] | None) -> None:
        seed_stage(self.settings.seed, stage, epoch, rank=self.ranks.rank, loader=loader)

    # ---- one batch
    def _forward(self, datapoint: dict[str, Any]) -> Any:
        """The model's outputs for a batch. Override it if the model takes its inputs in another way."""
        # The DDP wrapper expects equally many calls from all ranks, which is only the case in training.
        model = self.model if torch.is_grad_enabled() else self.network
        return call_model(model, datapoint["inputs"], signature_of=self.network)

    def _eval_step(self, datapoint: dict[str, Any]) -> None:
        """One batch of validation or evaluation: outputs, scores, and the debugger."""
        with self._autocast():
            datapoint["outputs"] = self._forward(datapoint)
        datapoint["scores"] = self.metric(datapoint)
        self.metric.add_to_buffer(datapoint["scores"], datapoint["meta_info"]["idx"])
        if self.debugger is not None and self.debugger.enabled:
            datapoint["debug"] = self.debugger(datapoint, self.network)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = _DTYPES[self.settings.precision]
        return torch.autocast(self.device.type, dtype) if dtype is not None else contextlib.nullcontext()

    # ---- one pass over a dataset
    def _eval_loop(self, loader: DataLoader[Any], stage: str) -> None:
        with torch.no_grad():
            for batch in self.progress.over(loader, stage, length(loader)):
                datapoint = to_device(batch, self.device)
                self._eval_step(datapoint)
                for pages in self._pages:
                    pages.add(datapoint)
                self._after_batch(stage=stage)

    def _after_batch(self, **position: Any) -> None:
        if self.ranks.first:
            self.folder.alive(**position)
        self._interrupt.check()

    def _scores(self) -> Scores | None:
        """The scores of all ranks together, on rank 0."""
        partials = self.ranks.gather(self.metric.partial())
        if not self.ranks.first:
            return None
        split = "val" if self.job == "train" else "eval"
        count, scores = sum(len(partial["idx"]) for partial in partials), self.metric.merged(partials)
        if not count:
            raise ConfigError(
                f"{split}_dataset: no datapoint was scored; is it empty, or does your _eval_step not call "
                "self.metric.add_to_buffer?"
            )
        if repeated := count - len(scores.per_datapoint):
            warnings.warn(
                f"{split}_dataset: {repeated} of {count} datapoints have the meta_info.idx of another one and are left "
                "out of the scores; give each its own number",
                stacklevel=2,
            )
        return scores

    def _shown(self, scores: Scores) -> str:
        """The scores over all datapoints, for the screen."""
        by_class, names = self.metric.BY_CLASS, self.class_names
        labels = {name: score_label(name, by_class=by_class, class_names=names) for name in scores.aggregated}
        return "   ".join(f"{labels[name]} {value:.4g}" for name, value in scores.aggregated.items())

    # ---- captures and stored datapoints
    def _enable_debugger(self, folder: Path) -> None:
        if self.debugger is not None:
            self.debugger.reset_buffer(folder / layout.DEBUGGER, overwrite=True)
            self.debugger.enabled = True

    def _save_results(self, folder: Path, split: layout.Split, *, epoch: int | None) -> Scores | None:
        """Save captures, stored datapoints and scores. Rank 0 returns the scores of all ranks."""
        if self.debugger is not None and self.debugger.enabled:
            self.debugger.enabled = False
            self.debugger.save_all(folder / layout.DEBUGGER, overwrite=True)
        self._close_pages()
        scores = self._scores()
        if scores is not None:
            write_scores(scores, folder, split=split, epoch=epoch)
        self.ranks.wait()
        return scores

    def _keep(self, folder: Path, loader: DataLoader[Any], *members: str) -> None:
        """Store these members of the datapoints of a loader, until `_close_pages`."""
        sample: Sample = self.settings.save_datapoints
        if isinstance(sample, int):  # this rank's share
            sample = sample // self.ranks.world_size + (self.ranks.rank < sample % self.ranks.world_size)
        if sample:
            listed = "outputs" not in members and isinstance(loader.collate_fn, UserCollate)
            self._pages.append(DatapointPages(folder, members, sample, listed=listed))

    def _close_pages(self) -> None:
        while self._pages:
            self._pages.pop().close()

    # ---- from beginning to end
    def _about(self) -> dict[str, Any]:
        """What run.json records about this run."""
        return {
            "seed": self.settings.seed,
            "device": str(self.device),
            "precision": self.settings.precision,
            "world_size": self.ranks.world_size,
            "directions": {**self.metric.DIRECTIONS, **self.metric.AGGREGATED},
            "class_names": self.class_names,
            "by_class": list(self.metric.BY_CLASS),
            "save_datapoints": self.settings.save_datapoints,
        }

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Within this block the run is running; afterwards run.json records how it ended."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.folder.release)
            self._refuse(self.folder.claim() if self.ranks.first else "")
            if self.settings.torch_threads is not None:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(self.settings.torch_threads)
            stack.enter_context(self._interrupt)
            if self.ranks.first:
                self.folder.begin(self._about(), as_json(self.config))
            stack.push(self._failed)
            if self.ranks.first:
                self._remove_old()
            self.ranks.wait()
            yield
            self._close()
            self._end("finished", None)
        self._unwrap()

    @abstractmethod
    def _remove_old(self) -> None:
        """Remove earlier results of what this attempt computes; it may not write all of them again."""

    def _failed(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Record an error, and raise its cause if it is only a consequence."""
        if error is None:
            return
        self._close()
        cause = self._cause(error)
        try:
            status: Status = "interrupted" if isinstance(cause, KeyboardInterrupt) else "failed"
            self._end(status, f"{type(cause).__name__}: {cause}"[:2000])
        except OSError as e:  # it must not hide the first error
            log.warning("run.json still records the run as running: %s", e)
        if cause is not error:
            raise cause from error

    def _cause(self, error: BaseException) -> BaseException:
        if self._interrupt.signal is not None and isinstance(error, RuntimeError):
            return Interrupted(self._interrupt.signal)  # loader workers and other ranks got the signal, too, and ended
        if self.ranks.several and lost_connection(error):
            leave_broken_group()
            return RankError(
                "another rank ended; torchrun shows its error: start the run again to resume from the last checkpoint"
            )
        return error

    def _end(self, status: Status, error: str | None) -> None:
        if self.ranks.first:
            self.folder.end(status, error)

    def _close(self) -> None:
        """End the threads and complete the files. Errors of debuggers and pages are logged, not raised."""
        self._close_pages()
        if self.debugger is not None:
            self.debugger.close()

    def _unwrap(self) -> None:
        """Drop the DDP wrapper: it must not outlive the group of the ranks."""
        self.model = self.network

    def _refuse(self, reason: str) -> None:
        """Raise on every rank if rank 0 has a reason."""
        if reason := self.ranks.agreed(reason):
            raise ConfigError(reason)

    def _refuse_conflict(self, conflict: str) -> None:
        self._refuse(f"work_dir: {conflict}; choose another folder" if conflict and self.ranks.first else "")
