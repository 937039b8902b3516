"""BaseTrainer: epochs of training, each validated; checkpoints to resume from; debuggers at checkpoint epochs."""

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
from endoscope.runners.criterion import BaseCriterion, CriterionError, LossSummary, as_criterion
from endoscope.runners.data.batches import to_device
from endoscope.runners.data.loaders import length
from endoscope.runners.loops.distributed import differing_gradients, lost_connection, settle_buckets
from endoscope.runners.loops.optimizing import check_optimizer, check_scheduler, scheduler_score
from endoscope.runners.loops.runner import BaseRunner
from endoscope.runners.loops.steps import Steps
from endoscope.runners.state import checkpoints
from endoscope.runners.state.leftovers import in_the_way, remove_results
from endoscope.runners.state.same_run import check_same_run, warn_of_changes
from endoscope.runs import layout
from endoscope.runs.atomic import write_json
from endoscope.runs.scores import Scores, write_scores
from endoscope.schedule import checkpoint_epochs


class BaseTrainer(BaseRunner, ABC):
    """Train a model as a config describes; ``_train_step`` says what one batch costs.

    >>> class Trainer(BaseTrainer):
    ...     def _train_step(self, datapoint):
    ...         datapoint["outputs"] = self._forward(datapoint)
    ...         return self.criterion(datapoint["outputs"], datapoint["labels"])
    >>> Trainer(config, "cpu").run()

    After every epoch ``work_dir/epoch_N`` holds the scores of validation and a checkpoint; checkpoints of epochs that
    ``checkpoint_method`` does not name go when the next one is whole. A work folder with a checkpoint is resumed.
    docs/runners.md says what a trainer of one's own may change, and what it has to keep to.
    """

    job: ClassVar[Literal["train", "eval"]] = "train"
    checkpoint_indices: list[int]

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

    # ---- building
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
        parts = {"model": self.network, "criterion": self.criterion, "optimizer": self.optimizer}
        for name, part in {**parts, "scheduler": self.scheduler}.items():
            if part is not None:
                checkpoints.check_storable(name, part.state_dict())

    def _parameters(self) -> list[torch.nn.Parameter]:
        """What is trained: the model's parameters, and those of a criterion that learns."""
        own = list(self.criterion.parameters())
        if own and self.ranks.several:
            raise ConfigError("criterion: it has parameters, whose gradients ranks do not share; train on one rank")
        return [*self.network.parameters(), *own]

    def _init_checkpoint_indices(self) -> None:
        """The epochs whose checkpoints stay, and that the debugger looks into."""
        self.checkpoint_indices = checkpoint_epochs(self.settings.checkpoint_method, self.settings.epochs)

    def _init_state(self) -> None:
        """Go on from the last whole checkpoint of the work folder, if it has one; then compile and distribute."""
        found = checkpoints.latest_checkpoint(self.work_dir)
        self.ranks.wait()
        earlier = self.folder.earlier()
        if earlier.job == "eval":
            raise ConfigError(f"work_dir: {str(self.work_dir)!r} holds an evaluation; choose another folder")
        done = self.folder.done_before() if found is None else 0
        if done > 1 or (found is None and earlier.status == "finished"):  # the first may be noted and not yet whole
            where = f"work_dir: {str(self.work_dir)!r}"
            raise ConfigError(f"{where} holds a run of {done} epochs whose checkpoints are gone; choose another folder")
        if found is not None:
            before = check_same_run(self.work_dir, self.config, self.settings_class)
            self._load(*found)
            if self.ranks.first and self.epoch < self.settings.epochs:
                self._warn_of_changes(before)
        self._replaced = self._to_compute(max(self.settings.epochs, earlier.epochs or 0))
        if self.epoch < self.settings.epochs:
            ours = found is not None or earlier.job is not None
            pages = [self.work_dir / layout.DATAPOINTS] if self._datapoints_epoch >= self.epoch else []
            self._refuse_if(in_the_way(self._replaced, "validation", pages, ours=ours))
        self._compile()
        if self.ranks.several:
            on = [self.device.index] if self.device.type == "cuda" else None
            unused = self.settings.unused_parameters
            try:
                self.model = DistributedDataParallel(self.network, device_ids=on, find_unused_parameters=unused)
            except (RuntimeError, ValueError) as e:
                if lost_connection(e):
                    raise
                raise ConfigError(f"model: torch cannot share it among ranks: {e}") from e
            if self.ranks.world_size > 2 and self.device.type == "cpu" and not unused:
                settle_buckets(self.model)

    def _warn_of_changes(self, before: Mapping[str, Any]) -> None:
        earlier = self.folder.earlier()
        had = {"device": earlier.device and earlier.device.split(":")[0], "world_size": earlier.world_size}
        had = {name: value for name, value in had.items() if value is not None}
        if before:
            had["torch_threads"] = before.get("torch_threads")
        has = {"device": self.device.type, "world_size": self.ranks.world_size}
        warn_of_changes(had, {**has, "torch_threads": self.settings.torch_threads})

    def _read_checkpoint(self, epoch: int, path: Path) -> dict[str, Any]:
        try:
            state = checkpoints.load_checkpoint(path, device=self.device)
            if missing := [name for name in ("step", "criterion", "optimizer", "scaler") if name not in state]:
                raise checkpoints.CheckpointError(f"the checkpoint {str(path)!r} has no {missing[0]!r} to go on with")
            if state.get("epoch", epoch) != epoch:
                raise checkpoints.CheckpointError(f"the checkpoint {str(path)!r} is that of epoch {state['epoch']}")
        except checkpoints.CheckpointError as e:
            earlier = checkpoints.latest_checkpoint(self.work_dir, before=epoch)
            then = "no earlier one is there: choose another work_dir to begin anew"
            if earlier is not None:
                then = f"when this file is deleted, the run goes on after epoch {earlier[0]}, whose checkpoint is there"
            raise checkpoints.CheckpointError(f"{e}\n{then}") from e
        return state

    def _load(self, epoch: int, path: Path) -> None:
        state = self._read_checkpoint(epoch, path)
        checkpoints.load_weights(self.network, state["model"], path)
        for name, part in {"model": self.network, "criterion": self.criterion}.items():
            checkpoints.load_other_buffers(part, state.get("other_buffers", {}).get(name, {}))
        self.criterion.load_state_dict(state["criterion"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self._extra = state.get("extra", {})
        self.epoch, self.step = epoch + 1, state["step"]
        self.folder.resume(self.epoch)
        earlier = self.folder.earlier()
        kept = earlier.checkpoint_epochs or ()  # perhaps of a shorter run
        self.checkpoint_indices = sorted({*self.checkpoint_indices, *(e for e in kept if e <= epoch)})
        kept_in = earlier.details.get("datapoints_epoch", 0)
        there = (self.work_dir / layout.DATAPOINTS).is_dir() and type(kept_in) is int and kept_in <= epoch
        self._datapoints_epoch = kept_in if there else self.epoch

    # ---- running
    def _to_compute(self, until: int) -> list[Path]:
        """The folders that are there of epochs which this attempt computes, or an earlier one did and has no
        checkpoint of."""
        return [f for epoch, f in layout.epoch_folders(self.work_dir).items() if self.epoch <= epoch < until]

    def _remove_old(self) -> None:
        for folder in self._replaced:
            remove_results(folder, "validation")
        if self._datapoints_epoch >= self.epoch:
            remove_pages(self.work_dir / layout.DATAPOINTS)

    def run(self) -> None:
        """Train until ``epochs`` are done. Raises `Interrupted` after Ctrl-C or SIGTERM, with everything saved."""
        if self.epoch >= self.settings.epochs and self.folder.status == "finished":
            self.progress.say(f"{self.work_dir} is finished: {self.epoch} epochs. Set more epochs to go on.")
            self._leave(broken=False)
            return
        self._refuse(self._why_not_storable() if self.ranks.first else "")
        extra, self._extra = self._extra, {}
        if extra:
            self._load_extra_state(extra)
        with self._running():
            if self.epoch:
                self.progress.say(f"resuming {self.work_dir} after epoch {self.epoch - 1}")
                self._remove_checkpoints(before=self.epoch - 1)
            while self.epoch < self.settings.epochs:
                self._epoch_()
                self.epoch += 1

    def _epoch_(self) -> None:
        began = time.monotonic()
        self.epoch_dir.mkdir(exist_ok=True)  # here, for who overrides _before_val_loop
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        losses = self._train_epoch_()
        trained = time.monotonic()
        scores = self._val_epoch_()
        self._after_epoch(losses, scores)
        if not self.ranks.first:  # it writes
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
            train_s=round(trained - began, 3),
            val_s=round(time.monotonic() - trained, 3),
        )
        write_json(self.epoch_dir / layout.TRAINING_LOSSES, losses.by_name())
        self._save_checkpoint()
        took = f"{time.monotonic() - began:.1f} s"
        self.progress.say(f"epoch {self.epoch}   training loss {losses.mean:.4g}   {self._shown(scores)}   {took}")

    @property
    def epoch_dir(self) -> Path:
        return self.work_dir / layout.epoch_folder(self.epoch)

    # ---- training
    def _before_train_loop(self) -> None:
        self.model.train()
        self.criterion.reset_buffer()
        self.optimizer.zero_grad(set_to_none=True)
        self._seed("train", self.epoch, self.train_loader)

    def _train_epoch_(self) -> LossSummary:
        self._before_train_loop()
        total = length(self.train_loader)
        what = f"epoch {self.epoch} training"
        came = False
        batches = self.progress.over(self.train_loader, what, total)
        for batch, parts, step_now in self._steps.over(batches, total, ranks=self.ranks, epoch=self.epoch):
            came = True
            self._train_batch(to_device(batch, self.device), parts=parts, step_now=step_now)
            self.folder_alive(stage=what, step=self.step)
            self._interrupt.check()
        if not came:
            where = " on one rank or more" if self.ranks.several else ""
            raise ConfigError(
                f"train_dataset: it gave no batch{where}; is it empty, or smaller than one with drop_last=True?"
            )
        return self._losses()

    def _train_batch(self, datapoint: dict[str, Any], *, parts: int, step_now: bool) -> None:
        with contextlib.nullcontext() if step_now else self._without_sync():
            with self._autocast():
                loss = self._train_step(datapoint)
            self._check_loss(loss)
            self.criterion.add_to_buffer(loss)
            self.scaler.scale(loss / parts if parts > 1 else loss).backward()  # type: ignore[no-untyped-call]
        if step_now:
            if self.ranks.several and not self._gradients_checked:
                self._gradients_checked = bool(self._check_gradients())
            self._optimize()

    @abstractmethod
    def _train_step(self, datapoint: dict[str, Any]) -> torch.Tensor:
        """The loss of one batch. The gradient, and the step when it is due, are the trainer's."""

    def _check_loss(self, loss: Any) -> None:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
            return
        if not isinstance(loss, torch.Tensor):
            found = "None" if loss is None else f"a {type(loss).__name__}"
        else:
            found = "a loss without a gradient" if loss.numel() == 1 else f"a tensor of shape {tuple(loss.shape)}"
        raise CriterionError(
            f"{type(self).__name__}._train_step returned {found}; expected the loss of the batch, a scalar tensor with "
            "a gradient: return self.criterion(datapoint['outputs'], datapoint['labels'])"
        )

    def _check_gradients(self) -> bool:
        """Before the first step: have all ranks the same gradients? Returns whether that can be told; if not, it is
        asked again. To be overridden by a trainer that shares them itself, in `_optimize`."""
        reason = differing_gradients(self.network, self.ranks)
        if reason:
            raise ConfigError(
                f"runner: after {type(self).__name__}._train_step the ranks have different gradients ({reason}): each "
                "would train a model of its own\n"
                "compute the loss from self._forward(datapoint) or self.model(...), not from self.network or its parts"
            )
        return reason is not None

    def _without_sync(self) -> contextlib.AbstractContextManager[Any]:
        """Gradients that are only added up need not be sent to the other ranks."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else contextlib.nullcontext()

    def _optimize(self) -> None:
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            trained = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(trained, self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.scheduler is not None and self.settings.scheduler_step == "step":
            self.scheduler.step()

    def _losses(self) -> LossSummary:
        """Of this epoch, averaged over the ranks."""
        own = self.criterion.summarize()
        gathered = self.ranks.gather(own.by_name())
        return LossSummary.averaged(gathered) if self.ranks.several and gathered else own

    # ---- validation
    def _val_epoch_(self) -> Scores | None:
        self._before_val_loop()
        self._eval_loop(self.val_loader, f"epoch {self.epoch} validation")
        return self._after_val_loop_()

    def _before_val_loop(self) -> None:
        """Evaluation mode; at checkpoint epochs the debugger is enabled and outputs are kept."""
        self.ranks.share_buffers(self.network, self.criterion)
        self.network.eval()
        self.metric.reset_buffer()
        self._seed("validation", self.epoch, self.val_loader)
        self.epoch_dir.mkdir(exist_ok=True)  # again, for who validates without an epoch
        if self.epoch == self._datapoints_epoch:
            self._keep(self.work_dir / layout.DATAPOINTS, self.val_loader, "inputs", "labels", "meta_info")
        if self.epoch in self.checkpoint_indices:
            self._keep(self.epoch_dir / layout.OUTPUTS, self.val_loader, "outputs")
            self._enable_debugger(self.epoch_dir)

    def _after_val_loop_(self) -> Scores | None:
        """Save what the debugger saw and the scores; rank 0 returns those of all ranks."""
        self._save_debugger(self.epoch_dir)
        self._close_pages()
        scores = self._scores()
        if scores is not None:
            write_scores(scores, self.epoch_dir, split="validation", epoch=self.epoch)
        self.ranks.wait()
        return scores

    # ---- after an epoch
    def _after_epoch(self, losses: LossSummary, scores: Scores | None) -> None:
        if self.scheduler is None or self.settings.scheduler_step != "epoch":
            return
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            found = {} if scores is None else scores.aggregated
            wanted = self.settings.scheduler_score if self.ranks.first else None
            score = scheduler_score(wanted, found, losses.mean)
            self.scheduler.step(self.ranks.agreed(score))  # that of rank 0
        else:
            self.scheduler.step()

    def _save_checkpoint(self) -> None:
        """Written last in an epoch: an epoch with a checkpoint is whole. Those that are not to stay then go."""
        state = {
            "epoch": self.epoch,
            "step": self.step,
            "model": self.network.state_dict(),
            "criterion": self.criterion.state_dict(),
            "other_buffers": {
                "model": checkpoints.other_buffers(self.network),
                "criterion": checkpoints.other_buffers(self.criterion),
            },
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "scaler": self.scaler.state_dict(),
            "extra": self._extra_state(),
        }
        checkpoints.save_checkpoint(self.epoch_dir / layout.CHECKPOINT, state)
        self._remove_checkpoints(before=self.epoch)

    def _extra_state(self) -> dict[str, Any]:
        """What a trainer of one's own has to find again when it is resumed, besides model, criterion, optimizer and
        scheduler: an average of the weights, a second optimizer. Tensors, numbers, text and containers of them.

        Called on rank 0, with every checkpoint and once before the first step; all ranks are given it back.
        """
        return {}

    def _why_not_storable(self) -> str:
        try:
            checkpoints.check_storable("_extra_state", self._extra_state())
        except ConfigError as e:
            return str(e)
        return ""

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        """Go on from what `_extra_state` gave; called by `run`, when the trainer is built."""

    def _remove_checkpoints(self, *, before: int) -> None:
        for epoch, folder in layout.epoch_folders(self.work_dir).items():
            if epoch < before and epoch not in self.checkpoint_indices and not folder.is_symlink():
                (folder / layout.CHECKPOINT).unlink(missing_ok=True)

    def _about(self) -> dict[str, Any]:
        return {
            **super()._about(),
            "epochs": self.settings.epochs,
            "checkpoint_epochs": self.checkpoint_indices,
            "datapoints_epoch": self._datapoints_epoch,
        }
