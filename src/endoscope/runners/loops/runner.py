"""BaseRunner: what training and evaluation share: a model, its data, metric and debugger, a work folder, an end."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from endoscope.capturing.calling import call_model
from endoscope.config import build_from_config, is_node
from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger
from endoscope.errors import ConfigError, EndoscopeError
from endoscope.pages.folders import make_folder
from endoscope.runners.config.plain import as_json
from endoscope.runners.config.settings import Settings
from endoscope.runners.data.batches import UserCollate, to_device
from endoscope.runners.data.datapoints import Datapoints, adapt, class_names
from endoscope.runners.data.loaders import length, make_loader, seed_loader, shuffles
from endoscope.runners.loops.distributed import RankError, Ranks, Share, lost_connection
from endoscope.runners.loops.interrupt import Interrupt, Interrupted
from endoscope.runners.loops.progress import progress
from endoscope.runners.metric import BaseMetric, check_directions
from endoscope.runners.state.datapoint_pages import DatapointPages, Sample
from endoscope.runners.state.run_folder import RunFolder
from endoscope.runs import layout
from endoscope.runs.about import Status
from endoscope.runs.scores import Scores, score_label

log = logging.getLogger("endoscope")

_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class BaseRunner(ABC):
    """Builds what a config describes, and runs it from its beginning to an end that leaves a readable folder.

    ``model`` is what training calls (under torchrun the DDP wrapper); ``network`` is the user's own module in it.
    """

    job: ClassVar[Literal["train", "eval"]]
    settings_class: ClassVar[type[Settings]] = Settings
    """A subclass with more keys has a class with more fields."""

    def __init__(self, config: Mapping[str, Any], device: torch.device | str | None = None) -> None:
        self.config = dict(config)
        self.settings = self.settings_class.from_config(self.config, job=self.job)
        self.device = _device(device if device is not None else self.settings.device)
        self.ranks = Ranks.join(self.device)
        self.work_dir = self.settings.work_dir.absolute()  # wherever the user's code goes later
        make_folder(self.work_dir, "work_dir")
        if not os.access(self.work_dir, os.R_OK):
            raise ConfigError(f"work_dir: cannot read {str(self.work_dir)!r}; choose another")
        self.folder = RunFolder(self.work_dir, job=self.job)
        self._refuse(self.folder.in_use() if self.ranks.first else "")
        self.progress = progress(first_rank=self.ranks.first)
        self._interrupt = Interrupt()
        self._pages: list[DatapointPages] = []
        self._seed("build", 0, None)
        self._init_model()
        self.metric: BaseMetric = self._build("metric")
        if not isinstance(self.metric, BaseMetric):
            raise ConfigError(f"metric: found a {type(self.metric).__name__}; expected an endoscope.runners BaseMetric")
        with naming("metric"):
            check_directions(self.metric)
        self.debugger: SequentialDebugger | None = None
        self.class_names = self.settings.class_names

    def _build(self, key: str, **given: Any) -> Any:
        node = getattr(self.settings, key)
        with naming(key, node.get("args", ()) if is_node(node) else ()):
            return build_from_config(node, key_path=key, **given)

    def _init_model(self) -> None:
        self.network: torch.nn.Module = self._build("model")
        if not isinstance(self.network, torch.nn.Module):
            raise ConfigError(f"model: found a {type(self.network).__name__}; expected a torch.nn.Module")
        self.network.to(self.device)
        self.model: torch.nn.Module = self.network

    def _compile(self) -> None:
        if self.settings.compile:
            self.network.compile()
            forward = getattr(type(self.network), "forward", None)
            if self.ranks.first and str(getattr(forward, "__module__", "")).startswith("torch.nn."):
                warnings.warn(
                    f"compile: the model is a plain {type(self.network).__name__}, of which torch compiles only the "
                    "layers whose forward is not torch's own; write a Module with a forward round it",
                    stacklevel=2,
                )

    def _init_debugger(self) -> None:
        """Build the debugger on the model; its hooks are attached when it is enabled."""
        if self.settings.debugger is not None:
            self.debugger = self._build("debugger", model=self.network)
            if not isinstance(self.debugger, SequentialDebugger):
                raise ConfigError(f"debugger: found a {type(self.debugger).__name__}; expected a SequentialDebugger")

    def _loader(self, split: Literal["train", "val", "eval"], *, shuffle: bool) -> DataLoader[Any]:
        """The loader of a split's dataset; with several ranks, of this rank's share of it."""
        key = f"{split}_dataset"
        with naming(key):
            dataset = adapt(self._build(key), name=key)
            if isinstance(dataset, Datapoints) and len(dataset) == 0:
                raise ConfigError("it has no items")
        sampler: Sampler[int] | None = None
        if self.ranks.several and isinstance(dataset, Datapoints):
            rank, world = self.ranks.rank, self.ranks.world_size
            if split == "train":
                shuffle = shuffles(self.settings.train_dataloader, default=shuffle)
                sampler = DistributedSampler(dataset, world, rank, shuffle=shuffle, seed=self.settings.seed)
            else:
                sampler = Share(len(dataset), rank, world)
        self.class_names = self.class_names or class_names(dataset)
        key = f"{split}_dataloader"
        with naming(key):
            return make_loader(
                getattr(self.settings, key),
                dataset,
                shuffle_default=shuffle,
                seed=self.settings.seed,
                sampler=sampler,
                key_path=key,
            )

    # ---- one datapoint
    def _forward(self, datapoint: dict[str, Any]) -> Any:
        """The model's outputs for a batch; to be overridden where the inputs are given in another way."""
        # The ranks' wrapper expects equally many calls from all of them, which only training gives.
        model = self.model if torch.is_grad_enabled() else self.network
        return call_model(model, datapoint["inputs"], signature_of=self.network)

    def _eval_step(self, datapoint: dict[str, Any]) -> None:
        """One batch of validation or evaluation: outputs, scores, and what the debugger sees."""
        with self._autocast():
            datapoint["outputs"] = self._forward(datapoint)
        datapoint["scores"] = self.metric(datapoint)
        self.metric.add_to_buffer(datapoint["scores"], datapoint["meta_info"]["idx"])
        if self.debugger is not None and self.debugger.enabled:
            datapoint["debug"] = self.debugger(datapoint, self.network)

    def _eval_loop(self, loader: DataLoader[Any], what: str) -> None:
        with torch.no_grad():
            for batch in self.progress.over(loader, what, length(loader)):
                datapoint = to_device(batch, self.device)
                self._eval_step(datapoint)
                for pages in self._pages:
                    pages.add(datapoint)
                self.folder_alive(stage=what)
                self._interrupt.check()

    def _scores(self) -> Scores | None:
        """The scores of all ranks together, on rank 0."""
        partials = self.ranks.gather(self.metric.partial())
        if not self.ranks.first:
            return None
        split = "val" if self.job == "train" else "eval"
        came, scores = sum(len(partial["idx"]) for partial in partials), self.metric.merged(partials)
        if not came:
            raise ConfigError(
                f"{split}_dataset: no datapoint was scored; is it empty, or does an _eval_step of your own not call "
                "self.metric.add_to_buffer?"
            )
        if twice := came - len(scores.per_datapoint):
            warnings.warn(
                f"{split}_dataset: {twice} of {came} datapoints have a meta_info.idx that another one has, and are "
                "left out of the scores; give each a number of its own",
                stacklevel=2,
            )
        return scores

    def _shown(self, scores: Scores) -> str:
        """The scores over all datapoints, for people."""
        by_class, names = self.metric.BY_CLASS, self.class_names
        labels = {name: score_label(name, by_class=by_class, class_names=names) for name in scores.aggregated}
        return "   ".join(f"{labels[name]} {value:.4g}" for name, value in scores.aggregated.items())

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = _DTYPES[self.settings.precision]
        return torch.autocast(self.device.type, dtype) if dtype is not None else contextlib.nullcontext()

    # ---- the debugger, and what is kept beside it
    def _enable_debugger(self, folder: Path) -> None:
        if self.debugger is not None:
            self.debugger.reset_buffer(folder / layout.DEBUGGER, overwrite=True)
            self.debugger.enabled = True

    def _save_debugger(self, folder: Path) -> None:
        if self.debugger is not None and self.debugger.enabled:
            self.debugger.enabled = False
            self.debugger.save_all(folder / layout.DEBUGGER, overwrite=True)

    def _keep(self, folder: Path, loader: DataLoader[Any], *members: str) -> None:
        """From now on keep these members of the datapoints that a loader gives, until `_close_pages`."""
        if sample := self._sample():
            listed = "outputs" not in members and isinstance(loader.collate_fn, UserCollate)
            self._pages.append(DatapointPages(folder, members, sample, listed=listed))

    def _sample(self) -> Sample:
        """This rank's share of ``save_datapoints``."""
        wanted = self.settings.save_datapoints
        if not isinstance(wanted, int):
            return wanted
        return wanted // self.ranks.world_size + (self.ranks.rank < wanted % self.ranks.world_size)

    def _close_pages(self) -> None:
        while self._pages:
            self._pages.pop().close()

    # ---- from beginning to end
    def folder_alive(self, **where: Any) -> None:
        if self.ranks.first:
            self.folder.alive(**where)

    def _about(self) -> dict[str, Any]:
        """What run.json says of this run."""
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
        """Within this block the run is running; afterwards its folder says how it ended."""
        with self._claimed(), _threads(self.settings.torch_threads), self._interrupt:
            if self.ranks.first:
                self.folder.begin(self._about(), as_json(self.config))
            broken = True
            try:
                if self.ranks.first:
                    self._remove_old()
                self.ranks.wait()
                yield
                self._close()
                self._end("finished", None)
                broken = False
            except BaseException as e:
                self._close()
                self._failed(e)
                raise
            finally:
                self._leave(broken=broken)

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """Within this block nobody else runs in the folder."""
        self._refuse(self.folder.claim() if self.ranks.first else "")
        try:
            yield
        finally:
            self.folder.release()

    @abstractmethod
    def _remove_old(self) -> None:
        """Remove what an earlier attempt left of that which this one computes: it may not write all of it again."""

    def _leave(self, *, broken: bool) -> None:
        """The ranks part; the wrapper of the model, which would have no group any more, ends before its group."""
        if self.ranks.began and not broken:
            self.model = self.network
        self.ranks = self.ranks.leave(broken=broken)

    def _refuse(self, reason: str) -> None:
        """End every rank when rank 0 has a reason."""
        if reason := self.ranks.agreed(reason):
            raise ConfigError(reason)

    def _refuse_if(self, in_the_way: str) -> None:
        self._refuse(f"work_dir: {in_the_way}; choose another folder" if in_the_way and self.ranks.first else "")

    def _failed(self, error: BaseException) -> None:
        """Note how the run ended, and raise the reason where ``error`` is only a consequence."""
        told = f"{type(error).__name__}: {error}"[:2000]
        signal, stopped = self._interrupt.noted, isinstance(error, KeyboardInterrupt)
        dead = ""
        if stopped or lost_connection(error):
            dead = self.ranks.died(within_s=3.0 if signal is None else 0.0, interrupted_too=signal is None)
        self.ranks.leave_word("" if dead else told)
        if dead:
            self._interrupt.stay()  # torchrun ends the ranks that are left with a signal: the reason is told first
            self._end_broken("failed", dead)
            raise RankError(f"{dead}; this ended the run: start it again to resume from the last checkpoint") from error
        if signal is not None and isinstance(error, RuntimeError):
            # It went to the workers of a loader or to the other ranks as well, and they were faster.
            self._end_broken("interrupted", f"Interrupted: {Interrupted(signal)}")
            raise Interrupted(signal) from error
        self._end_broken("interrupted" if stopped else "failed", told)

    def _end(self, status: Status, error: str | None) -> None:
        if self.ranks.first:
            self.folder.end(status, error)

    def _end_broken(self, status: Status, error: str) -> None:
        """The same after an error, which must not be hidden by another one."""
        try:
            self._end(status, error)
        except OSError as e:
            log.warning("run.json still says that the run is running: %s", e)

    def _close(self) -> None:
        """End the threads and finish the files; what a debugger or a page cannot do any more is logged, not raised."""
        self._close_pages()
        if self.debugger is not None:
            self.debugger.close()

    # ---- random numbers
    def _seed(self, stage: str, epoch: int, loader: DataLoader[Any] | None) -> None:
        """Every epoch begins from the seed, so that a resumed run draws what an uninterrupted one would have drawn."""
        shared = self._number(stage, epoch)
        own = shared if stage == "build" else shared + self.ranks.rank  # every rank builds the same, and draws its own
        if loader is not None:
            # Validation has one order, so that of every epoch the same first datapoints are kept.
            of = epoch if stage == "train" else 0
            # An iterable dataset may shuffle in its workers and take its rank's share: these draw alike.
            draws = own if isinstance(loader.dataset, Datapoints) else shared
            seed_loader(loader, order=self._number(f"{stage} order", of), draws=draws, epoch=of)
        random.seed(own)
        np.random.seed(own % 2**32)
        torch.manual_seed(own)

    def _number(self, stage: str, epoch: int) -> int:
        """The seed of a stage of an epoch."""
        return int(np.random.SeedSequence((self.settings.seed, epoch, *stage.encode())).generate_state(1)[0])


@contextlib.contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    """Within this block torch computes with so many threads; None leaves it alone."""
    if wanted is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def naming(key: str, arguments: Iterable[str] = ()) -> Iterator[None]:
    """An exception of what a key describes, while it is built, becomes an error that names the key.

    arguments: those of the key's node, with which an error of our own may begin, as in ``debuggers_config[0]: ...``.
    """
    try:
        yield
    except EndoscopeError as e:
        told = str(e)
        if not told.startswith((f"{key}:", f"{key}.", f"{key}[")):
            e.args = (f"{key}.args.{told}" if told.partition("[")[0] in arguments else f"{key}: {told}",)
        raise
    except Exception as e:
        frames = traceback.extract_tb(e.__traceback__)
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        raise ConfigError(f"{key}: it could not be built: {type(e).__name__}: {e}{where}") from e


def _device(wanted: torch.device | str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"device: {wanted!r} is no device; try 'cpu', 'cuda' or 'auto'") from None
    if device.type == "meta":
        raise ConfigError("device: on 'meta' tensors have no values, so nothing can run there; try 'cpu' or 'auto'")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device: {str(device)!r} is asked for, and torch finds no CUDA device here")
        if str(device) == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    try:
        torch.empty(0, device=device)
    except Exception as e:
        told = str(e).partition("\n")[0]
        raise ConfigError(f"device: torch cannot use {str(device)!r} here: {told}; try 'cpu' or 'auto'") from e
    return device
