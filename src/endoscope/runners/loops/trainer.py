"""BaseTrainer: epochs of training, each followed by validation and a checkpoint; debuggers run at checkpoint epochs."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from endoscope.errors import ConfigError
from endoscope.pages.folders import remove_pages
from endoscope.runners.criterion import BaseCriterion, LossSummary, as_criterion
from endoscope.runners.data.batches import to_device
from endoscope.runners.data.loaders import length
from endoscope.runners.loops.distributed import check_gradients
from endoscope.runners.loops.optimizing import check_loss, check_optimizer, check_scheduler, scheduler_score
from endoscope.runners.loops.runner import BaseRunner
from endoscope.runners.loops.steps import Steps
from endoscope.runners.state import checkpoints
from endoscope.runners.state.leftovers import conflict, remove_results
from endoscope.runners.state.resuming import check_folder, resume
from endoscope.runners.state.training_state import TrainingState
from endoscope.runs import layout
from endoscope.runs.atomic import write_json
from endoscope.runs.scores import Scores
from endoscope.schedule import checkpoint_epochs


class BaseTrainer(BaseRunner, ABC):
    """Train a model as a config describes. A subclass defines the loss of a batch.

    >>> class Trainer(BaseTrainer):
    ...     def _train_step(self, datapoint):
    ...         datapoint["outputs"] = self._forward(datapoint)
    ...         return self.criterion(datapoint["outputs"], datapoint["labels"])
    >>> Trainer(config, "cpu").run()

    After every epoch, ``work_dir/epoch_N`` holds the validation scores and a checkpoint. Checkpoints of epochs that
    ``checkpoint_method`` does not name are removed when the next one is complete. A work folder with a checkpoint is
    resumed. docs/runners.md describes what a subclass may override.
    """

    job: ClassVar[Literal["train", "eval"]] = "train"
    checkpoint_indices: list[int]

    # ---- building
    def __init__(self, config: Mapping[str, Any], device: torch.device | str | None = None) -> None:
        super().__init__(config, device)
        self.epoch = 0
        self.step = 0
        self._steps = Steps(self.settings.accumulate)
        self._datapoints_epoch = 0
        self._gradients_checked = False
        self._extra: dict[str, Any] = {}
        self._init_data()
        self._init_criterion()
        self._init_optimizer()
        self._init_checkpoint_indices()
        self.checkpoint_indices = sorted(map(int, self.checkpoint_indices))
        self._init_debugger()
        self._init_state()

    def _init_data(self) -> None:
        self.train_loader: DataLoader[Any] = self._loader("train", shuffle=True)
        self.val_loader: DataLoader[Any] = self._loader("val", shuffle=False)

    def _init_criterion(self) -> None:
        self.criterion: BaseCriterion = as_criterion(self._build("criterion")).to(self.device)

    def _init_optimizer(self) -> None:
        s = self.settings
        if not any(p.requires_grad for p in self.network.parameters()):
            raise ConfigError("model: none of its parameters requires a gradient; there is nothing to train")
        self.optimizer: torch.optim.Optimizer = self._build("optimizer", params=self._parameters())
        check_optimizer(self.optimizer, with_closure=type(self)._optimize is not BaseTrainer._optimize)
        self.scheduler: Any = self._build("scheduler", optimizer=self.optimizer) if s.scheduler is not None else None
        check_scheduler(self.scheduler, s, {**self.metric.DIRECTIONS, **self.metric.AGGREGATED})
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=s.precision == "float16")
        self._training_state().check_storable()

    def _parameters(self) -> list[torch.nn.Parameter]:
        """The parameters to train: those of the model, and those of a criterion that learns."""
        of_criterion = list(self.criterion.parameters())
        if of_criterion and self.ranks.several:
            raise ConfigError("criterion: it has parameters, whose gradients ranks do not share; train on one rank")
        return [*self.network.parameters(), *of_criterion]

    def _init_checkpoint_indices(self) -> None:
        """The checkpoint epochs: their checkpoints are kept, and the debugger runs in their validation."""
        self.checkpoint_indices = checkpoint_epochs(self.settings.checkpoint_method, self.settings.epochs)

    def _init_state(self) -> None:
        """Resume from the last checkpoint of the work folder, if any; then compile and distribute the model."""
        checkpoint = checkpoints.latest_checkpoint(self.work_dir)
        self.ranks.wait()
        check_folder(self.folder, resumed=checkpoint is not None)
        if checkpoint is not None:
            self._resume(checkpoint)
        earlier = self.folder.earlier()
        until = max(self.settings.epochs, earlier.epochs or 0)
        self._old_epochs = [f for k, f in layout.epoch_folders(self.work_dir).items() if self.epoch <= k < until]
        if self.epoch < self.settings.epochs:
            pages = [self.work_dir / layout.DATAPOINTS] if self._datapoints_epoch >= self.epoch else []
            ours = checkpoint is not None or earlier.job is not None
            self._refuse_conflict(conflict(self._old_epochs, "validation", pages, ours=ours))
        self._compile()
        self.model = self.ranks.wrap(self.network, self.device, unused_parameters=self.settings.unused_parameters)

    def _resume(self, checkpoint: tuple[int, Path]) -> None:
        about = self._about() if self.ranks.first else {}
        parts, settings = self._training_state(), self.settings
        resumed = resume(
            self.folder, checkpoint, parts, config=self.config, settings=settings, about=about, device=self.device
        )
        self.epoch, self.step, self._extra = resumed.epoch, resumed.step, resumed.extra
        self.checkpoint_indices = sorted({*self.checkpoint_indices, *resumed.checkpoint_epochs})
        self._datapoints_epoch = resumed.datapoints_epoch

    def _training_state(self) -> TrainingState:
        return TrainingState(self.network, self.criterion, self.optimizer, self.scheduler, self.scaler)

    # ---- the run
    def run(self) -> None:
        """Train until ``epochs`` are done. Raises `Interrupted` after Ctrl-C or SIGTERM, with everything saved."""
        if self.epoch >= self.settings.epochs and self.folder.earlier().status == "finished":
            self.progress.report(f"{self.work_dir} is finished: {self.epoch} epochs. Set more epochs to continue.")
            self._unwrap()
            return
        if self.ranks.first:
            checkpoints.check_storable("_extra_state", self._extra_state())
        extra, self._extra = self._extra, {}
        if extra:
            self._load_extra_state(extra)
        with self._running():
            if self.epoch:
                self.progress.report(f"resuming {self.work_dir} after epoch {self.epoch - 1}")
                self._remove_checkpoints(before=self.epoch - 1)
            while self.epoch < self.settings.epochs:
                self._epoch_()
                self.epoch += 1

    def _remove_old(self) -> None:
        for folder in self._old_epochs:
            remove_results(folder, "validation")
        if self._datapoints_epoch >= self.epoch:
            remove_pages(self.work_dir / layout.DATAPOINTS)

    # ---- one epoch
    @property
    def epoch_dir(self) -> Path:
        return self.work_dir / layout.epoch_folder(self.epoch)

    def _epoch_(self) -> None:
        start = time.monotonic()
        self.epoch_dir.mkdir(exist_ok=True)  # here, because a subclass may override _before_val_loop
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        losses = self._train_epoch_()
        trained = time.monotonic()
        scores = self._val_epoch_()
        self._after_epoch(losses, scores)
        if not self.ranks.first:
            return
        if scores is None:
            raise ConfigError(
                f"runner: {type(self).__name__}._after_val_loop_ returned no scores; return what super()'s returns"
            )
        self.folder.epoch_done(
            epoch=self.epoch,
            step=self.step,
            learning_rates=rates,
            loss={k: v for k, v in asdict(losses).items() if k not in ("values", "parts")},
            scores=dict(scores.aggregated),
            train_s=round(trained - start, 3),
            val_s=round(time.monotonic() - trained, 3),
        )
        write_json(self.epoch_dir / layout.TRAINING_LOSSES, losses.by_name())
        self._save_checkpoint()
        seconds = time.monotonic() - start
        self.progress.report(
            f"epoch {self.epoch}   training loss {losses.mean:.4g}   {self._shown(scores)}   {seconds:.1f} s"
        )

    def _before_train_loop(self) -> None:
        self.model.train()
        self.criterion.reset_buffer()
        self.optimizer.zero_grad(set_to_none=True)
        self._seed("train", self.epoch, self.train_loader)

    def _train_epoch_(self) -> LossSummary:
        self._before_train_loop()
        total = length(self.train_loader)
        stage = f"epoch {self.epoch} training"
        batches = self.progress.over(self.train_loader, stage, total)
        for batch, parts, step_now in self._steps.over(batches, total, ranks=self.ranks):
            self._train_batch(to_device(batch, self.device), parts=parts, step_now=step_now)
            self._after_batch(stage=stage, step=self.step)
        own = self.criterion.summarize()
        gathered = self.ranks.gather(own.by_name())
        return LossSummary.averaged(gathered) if self.ranks.several and gathered else own

    # ---- one batch
    def _train_batch(self, datapoint: dict[str, Any], *, parts: int, step_now: bool) -> None:
        with contextlib.ExitStack() as stack:
            if not step_now and isinstance(self.model, DistributedDataParallel):
                stack.enter_context(self.model.no_sync())  # the gradients are only accumulated
            with self._autocast():
                loss = self._train_step(datapoint)
            check_loss(loss, type(self).__name__)
            self.criterion.add_to_buffer(loss)
            self.scaler.scale(loss / parts if parts > 1 else loss).backward()  # type: ignore[no-untyped-call]
        if step_now:
            if self.ranks.several and not self._gradients_checked:
                self._gradients_checked = bool(self._check_gradients())
            self._optimize()

    @abstractmethod
    def _train_step(self, datapoint: dict[str, Any]) -> torch.Tensor:
        """The loss of one batch. The trainer computes the gradient and makes the step."""

    def _check_gradients(self) -> bool:
        """Before the first step, check that all ranks have the same gradients. Returns False if that is unclear; then
        the next step is checked. A trainer that shares gradients itself, in `_optimize`, overrides this method."""
        return check_gradients(self.network, self.ranks, type(self).__name__)

    def _optimize(self) -> None:
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.scheduler is not None and self.settings.scheduler_step == "step":
            self.scheduler.step()

    # ---- validation
    def _val_epoch_(self) -> Scores | None:
        self._before_val_loop()
        self._eval_loop(self.val_loader, f"epoch {self.epoch} validation")
        return self._after_val_loop_()

    def _before_val_loop(self) -> None:
        """Switch to evaluation mode. At checkpoint epochs, enable the debugger and store outputs."""
        self.ranks.share_buffers(self.network, self.criterion)
        self.network.eval()
        self.metric.reset_buffer()
        self._seed("validation", self.epoch, self.val_loader)
        self.epoch_dir.mkdir(exist_ok=True)  # here too, for a validation without an epoch
        if self.epoch == self._datapoints_epoch:
            self._keep(self.work_dir / layout.DATAPOINTS, self.val_loader, "inputs", "labels", "meta_info")
        if self.epoch in self.checkpoint_indices:
            self._keep(self.epoch_dir / layout.OUTPUTS, self.val_loader, "outputs")
            self._enable_debugger(self.epoch_dir)

    def _after_val_loop_(self) -> Scores | None:
        """Save captures and scores. Rank 0 returns the scores of all ranks."""
        return self._save_results(self.epoch_dir, "validation", epoch=self.epoch)

    # ---- after an epoch
    def _after_epoch(self, losses: LossSummary, scores: Scores | None) -> None:
        """Step the scheduler, if it steps after each epoch."""
        if self.scheduler is None or self.settings.scheduler_step != "epoch":
            return
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            name = self.settings.scheduler_score if self.ranks.first else None
            score = scheduler_score(name, {} if scores is None else scores.aggregated, losses.mean)
            self.scheduler.step(self.ranks.agreed(score))
        else:
            self.scheduler.step()

    def _save_checkpoint(self) -> None:
        """Written last in an epoch: an epoch with a checkpoint is complete."""
        state = {"epoch": self.epoch, "step": self.step, **self._training_state().state_dict()}
        checkpoints.save_checkpoint(self.epoch_dir / layout.CHECKPOINT, {**state, "extra": self._extra_state()})
        self._remove_checkpoints(before=self.epoch)

    def _remove_checkpoints(self, *, before: int) -> None:
        checkpoints.remove_checkpoints(self.work_dir, before=before, keep=self.checkpoint_indices)

    def _extra_state(self) -> dict[str, Any]:
        """State of a subclass that a resumed run needs, such as an average of the weights: tensors, numbers, text and
        containers of them. Called on rank 0, with every checkpoint and once before the first step."""
        return {}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `_extra_state` returned; called by `run` on every rank."""

    def _about(self) -> dict[str, Any]:
        return {
            **super()._about(),
            "epochs": self.settings.epochs,
            "checkpoint_epochs": self.checkpoint_indices,
            "datapoints_epoch": self._datapoints_epoch,
        }
