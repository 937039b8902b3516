"""BaseTrainer: the same results as a hand-written loop, and the specified work folder."""

from __future__ import annotations

import contextlib
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.runners.training import DEBUGGER, TRAIN, VAL, Blobs, Net, canonical, config, final, node
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from endoscope import SequentialDebugger, load_debug_outputs
from endoscope.errors import ConfigError
from endoscope.runners.config import kinds
from endoscope.runners.config.settings import Settings, key
from endoscope.runners.criterion import BaseCriterion, CriterionError
from endoscope.runners.loops.distributed import Ranks
from endoscope.runners.loops.supervised import SupervisedTrainer
from endoscope.runners.loops.trainer import BaseTrainer
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runners.state.checkpoints import CheckpointError, load_checkpoint
from endoscope.runs import Run
from endoscope.runs.scores import read_scores


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


# ---------------------------------------------------------------- the folder
def test_the_work_folder(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, epochs=5)).run()
    assert names(tmp_path) == {
        "run.json", "config.json", "progress.json", "datapoints",
        "epoch_0", "epoch_1", "epoch_2", "epoch_3", "epoch_4",
    }  # fmt: skip
    every = {"validation_scores.json", "training_losses.json"}
    for epoch in (0, 2):
        assert names(tmp_path / f"epoch_{epoch}") == every
    for epoch in (1, 3, 4):
        assert names(tmp_path / f"epoch_{epoch}") == every | {"checkpoint.pt", "debugger", "outputs"}
        assert sorted(load_debug_outputs(tmp_path / f"epoch_{epoch}")) == list(range(VAL))


@pytest.mark.parametrize(("method", "kept"), [("all", [0, 1, 2]), ("latest", [2]), (2, [1, 2]), (3, [2]), (9, [2])])
def test_which_checkpoints_stay(method: Any, kept: list[int], tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, checkpoint_method=method)).run()
    for name in ("checkpoint.pt", "debugger"):
        assert [e for e in range(3) if (tmp_path / f"epoch_{e}" / name).exists()] == kept


def test_what_the_run_says_of_itself(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    run = read(tmp_path / "run.json")
    assert (run["status"], run["job"], run["epochs"], run["seed"]) == ("finished", "train", 3, 7)
    assert run["class_names"] == ["red", "green", "blue"]
    assert run["directions"] == {"accuracy": "higher", "confidence": "higher", "loss": "lower", "macro_f1": "higher"}
    assert run["versions"]["torch"] == torch.__version__
    assert read(tmp_path / "config.json")["optimizer"]["args"]["lr"] == 0.01
    epochs = read(tmp_path / "progress.json")["epochs"]
    assert [e["epoch"] for e in epochs] == [0, 1, 2]
    assert [e["learning_rates"] for e in epochs] == [pytest.approx([0.01 * 0.9**k]) for k in range(3)]
    assert [e["step"] for e in epochs] == [math.ceil(TRAIN / 8) * k for k in (1, 2, 3)]
    for e in epochs:
        folder = tmp_path / f"epoch_{e['epoch']}"
        assert e["scores"] == read_scores(folder / "validation_scores.json").aggregated
        losses = read(folder / "training_losses.json")["loss"]
        assert len(losses) == e["loss"]["count"] == math.ceil(TRAIN / 8)
        assert e["loss"]["mean"] == pytest.approx(np.mean(losses))


def test_stored_datapoints_and_outputs_are_those_of_the_model(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    data, scores = Blobs(VAL, seed=1), read_scores(tmp_path / "epoch_2" / "validation_scores.json")
    model = Net()
    model.load_state_dict(load_checkpoint(tmp_path / "epoch_2" / "checkpoint.pt")["model"])
    model.eval()
    kept, outputs = load_debug_outputs(tmp_path / "datapoints"), load_debug_outputs(tmp_path / "epoch_2" / "outputs")
    assert sorted(kept) == sorted(outputs) == list(scores.per_datapoint) == list(range(VAL))
    for k in range(VAL):
        assert torch.equal(kept[k]["inputs"], data.points[k : k + 1])
        assert kept[k]["labels"].tolist() == [int(data.labels[k])]
        torch.testing.assert_close(outputs[k]["outputs"], model(data.points[k : k + 1]))
        right = float(outputs[k]["outputs"].argmax() == data.labels[k])
        assert scores.per_datapoint[k]["accuracy"] == right


@pytest.mark.parametrize(("sample", "count"), [(None, None), (5, 5), (20, 20), ("all", VAL), (1000, VAL)])
def test_how_many_datapoints_are_kept(sample: Any, count: int | None, tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, save_datapoints=sample)).run()
    assert (tmp_path / "datapoints").exists() == (count is not None)
    if count is not None:
        for folder in (tmp_path / "datapoints", tmp_path / "epoch_2" / "outputs"):
            assert sorted(load_debug_outputs(folder)) == list(range(count))
    assert len(load_debug_outputs(tmp_path / "epoch_2")) == VAL


# ---------------------------------------------------------------- the arithmetic
def by_hand(
    trainer: SupervisedTrainer, *, epochs: int = 3, clip: float | None = None, group: int = 1
) -> dict[str, Any]:
    """The same training, written out; only the trainer's seeding is borrowed."""
    trainer._seed("build", 0, None)
    model, optimizer = Net(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    for epoch in range(3):
        trainer._seed("train", epoch, trainer.train_loader)
        model.train()
        batches = list(trainer.train_loader)
        trainer._seed("train", epoch, trainer.train_loader)
        for k, batch in enumerate(trainer.train_loader):
            size = min(group, len(batches) - k + k % group)
            loss = nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"])
            (loss / size).backward()
            if (k + 1) % group == 0 or k + 1 == len(batches):
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    return canonical(model.state_dict())


@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, {"group": 2}, {"group": 4, "clip": 0.1}])
def test_the_weights_are_those_of_a_loop_by_hand(options: dict[str, Any], tmp_path: Path) -> None:
    keys = {"clip_norm": options.get("clip"), "accumulate": options.get("group", 1)}
    trainer = SupervisedTrainer(config(tmp_path, **keys))
    trainer.run()
    assert canonical(trainer.network.state_dict()) == by_hand(trainer, **options)
    assert canonical(load_checkpoint(tmp_path / "epoch_2" / "checkpoint.pt")["model"]) == by_hand(trainer, **options)


def test_twin_another_seed_gives_other_weights(tmp_path: Path) -> None:
    for seed in (1, 2):
        SupervisedTrainer(config(tmp_path / str(seed), seed=seed)).run()
    assert final(tmp_path / "1")["model"] != final(tmp_path / "2")["model"]


def test_debuggers_change_nothing(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "with")).run()
    SupervisedTrainer(config(tmp_path / "without", debugger=None, save_datapoints=None)).run()
    assert final(tmp_path / "with") == final(tmp_path / "without")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision(precision: str, tmp_path: Path) -> None:
    trainer = SupervisedTrainer(config(tmp_path, precision=precision))
    trainer.run()
    outputs = load_debug_outputs(tmp_path / "epoch_2" / "outputs")[0]["outputs"]
    assert outputs.dtype is getattr(torch, precision)
    assert all(p.dtype is torch.float32 for p in trainer.network.parameters())
    assert trainer.scaler.is_enabled() == (precision == "float16")
    assert read(tmp_path / "progress.json")["epochs"][-1]["loss"]["non_finite"] == 0


class OwnForward(Net):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def test_a_compiled_model_has_plain_names_in_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = nn.Module.compile

    def counting(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", lambda module: plain(module, backend=counting))
    SupervisedTrainer(config(tmp_path, compile=True, model=node(OwnForward))).run()
    assert calls
    assert list(load_checkpoint(tmp_path / "epoch_2" / "checkpoint.pt")["model"]) == list(Net().state_dict())


def test_a_model_that_torch_does_not_compile_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda module: None)
    with pytest.warns(UserWarning, match="compile: the model is a plain Net, in which torch compiles only layers"):
        SupervisedTrainer(config(tmp_path, compile=True))


# ---------------------------------------------------------------- a trainer of one's own
class ForgetsToReturn(SupervisedTrainer):
    def _after_val_loop_(self) -> None:  # type: ignore[override]
        super()._after_val_loop_()


class CallsNoSuper(SupervisedTrainer):
    def _before_val_loop(self) -> None:
        self.network.eval()
        self.metric.reset_buffer()


class ScoresNothing(SupervisedTrainer):
    def _eval_step(self, datapoint: dict[str, Any]) -> None:
        self._forward(datapoint)


def test_missing_scores_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^runner: ForgetsToReturn\._after_val_loop_ returned no scores; return"):
        ForgetsToReturn(config(tmp_path)).run()
    assert read(tmp_path / "run.json")["status"] == "failed"


def test_an_own_loop_need_not_create_the_folder(tmp_path: Path) -> None:
    CallsNoSuper(config(tmp_path)).run()
    assert read(tmp_path / "run.json")["status"] == "finished"


def test_a_validation_alone(tmp_path: Path) -> None:
    trainer = SupervisedTrainer(config(tmp_path))
    scores = trainer._val_epoch_()
    assert scores is not None and list(scores.per_datapoint) == list(range(VAL))
    assert (tmp_path / "epoch_0" / "validation_scores.json").exists()
    trainer._close()


def test_a_step_without_scores_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^val_dataset: no datapoint was scored; .* not call self.metric.add_to_buff"):
        ScoresNothing(config(tmp_path)).run()


@pytest.mark.parametrize("indices", [{2, 0}, range(0, 3, 2), np.array([2, 0]), (0, 2)])
def test_checkpoint_indices_of_any_kind(indices: Any, tmp_path: Path) -> None:
    class Some(SupervisedTrainer):
        def _init_checkpoint_indices(self) -> None:
            self.checkpoint_indices = indices

    Some(config(tmp_path)).run()
    assert read(tmp_path / "run.json")["checkpoint_epochs"] == [0, 2]
    assert [e for e in range(3) if (tmp_path / f"epoch_{e}" / "debugger").exists()] == [0, 2]


def test_groups_of_parameters_are_clipped_together(tmp_path: Path) -> None:
    class Grouped(SupervisedTrainer):
        def _parameters(self) -> Any:
            a, *rest = self.network.parameters()
            return [{"params": [a], "lr": 0.1}, {"params": rest}]

    seen: list[float] = []

    class Watching(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            seen.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads if g is not None]))))
            return super().step(closure)

    Grouped(config(tmp_path, optimizer=node(Watching, lr=0.01), scheduler=None, clip_norm=0.05, epochs=1)).run()
    assert seen == pytest.approx([0.05] * len(seen), rel=1e-3)
    assert read(tmp_path / "progress.json")["epochs"][0]["learning_rates"] == [0.1, 0.01]


def test_directions_of_a_metric_that_makes_its_own_are_checked_before_training(tmp_path: Path) -> None:
    class Upwards(ClassificationMetric):
        def __init__(self) -> None:
            self.DIRECTIONS = {**type(self).DIRECTIONS, "accuracy": "up"}  # type: ignore[dict-item]

    with pytest.raises(ConfigError, match=r"^metric: Upwards\.DIRECTIONS\['accuracy'\] is 'up'; expected 'higher'"):
        SupervisedTrainer(config(tmp_path, metric=node(Upwards)))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("made", [torch.fx.symbolic_trace, lambda net: torch.jit.trace(net, torch.zeros(2, 6))])
def test_models_whose_class_torch_has_made_can_be_compiled(made: Any, tmp_path: Path) -> None:
    model = made(nn.Sequential(nn.Linear(6, 3)))
    assert SupervisedTrainer(config(tmp_path, model=model, compile=True, debugger=None)).network is model


def test_a_shuffled_validation_keeps_the_same_datapoints_in_every_epoch(tmp_path: Path) -> None:
    loader = node(DataLoader, batch_size=8, shuffle=True)
    SupervisedTrainer(config(tmp_path, val_dataloader=loader, save_datapoints=5, checkpoint_method="all")).run()
    kept = sorted(load_debug_outputs(tmp_path / "datapoints"))
    assert len(kept) == 5 and kept != [0, 1, 2, 3, 4]
    assert [sorted(load_debug_outputs(tmp_path / f"epoch_{e}" / "outputs")) for e in range(3)] == [kept] * 3


# ---------------------------------------------------------------- what was there before
class Stopped(SupervisedTrainer):
    def _save_checkpoint(self) -> None:
        raise KeyboardInterrupt


def test_nothing_is_left_of_a_run_that_had_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Stopped(config(tmp_path, checkpoint_method="all")).run()
    assert {p.name for p in (tmp_path / "epoch_0").iterdir()} >= {"debugger", "outputs"}
    (tmp_path / "epoch_0" / "training_losses.json").write_text("of a longer epoch")
    SupervisedTrainer(config(tmp_path, seed=8, checkpoint_method=3)).run()
    assert not {p.name for p in (tmp_path / "epoch_0").iterdir()} & {"debugger", "outputs"}
    assert read(tmp_path / "epoch_0" / "training_losses.json")["loss"]
    assert sorted(load_debug_outputs(tmp_path / "epoch_2")) == list(range(VAL))


class StopsInEpoch1(SupervisedTrainer):
    def _train_step(self, datapoint: dict[str, Any]) -> Tensor:
        if self.epoch == 1:
            raise KeyboardInterrupt
        return super()._train_step(datapoint)


def test_results_of_later_epochs_are_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, epochs=5, checkpoint_method="all")).run()
    for epoch in (1, 2, 3, 4):
        (tmp_path / f"epoch_{epoch}" / "checkpoint.pt").unlink()
    (tmp_path / "epoch_4" / "notes.txt").write_text("mine")
    (tmp_path / "epoch_9").mkdir()
    (tmp_path / "epoch_9" / "validation_scores.json").write_text("{}")
    trainer = StopsInEpoch1(config(tmp_path, epochs=3, checkpoint_method="all"))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert names(tmp_path / "epoch_0") > {"debugger", "outputs", "validation_scores.json", "training_losses.json"}
    assert names(tmp_path / "epoch_1") == set()
    assert names(tmp_path / "epoch_4") == {"notes.txt"}
    assert names(tmp_path / "epoch_9") == {"validation_scores.json"}
    assert [e["epoch"] for e in read(tmp_path / "progress.json")["epochs"]] == [0]


@pytest.mark.parametrize("how", ["finished", "interrupted"])
def test_a_run_without_checkpoints_is_not_run_over(how: str, tmp_path: Path) -> None:
    class Interrupted(SupervisedTrainer):
        def _train_step(self, datapoint: dict[str, Any]) -> Tensor:
            if self.epoch == 2 and how == "interrupted":
                raise KeyboardInterrupt
            return super()._train_step(datapoint)

    with contextlib.suppress(KeyboardInterrupt):
        Interrupted(config(tmp_path, checkpoint_method="all")).run()
    for file in tmp_path.glob("epoch_*/checkpoint.pt"):
        file.unlink()
    done = 3 if how == "finished" else 2
    with pytest.raises(ConfigError, match=f"holds a run of {done} epochs whose checkpoints are gone"):
        SupervisedTrainer(config(tmp_path))
    assert sorted(load_debug_outputs(tmp_path / "epoch_1")) == list(range(VAL))


def test_foreign_captures_are_not_replaced(tmp_path: Path) -> None:
    pages = tmp_path / "epoch_2" / "debugger"
    with SequentialDebugger(DEBUGGER["args"]["debuggers_config"], Net(), output_dir=pages) as debugger:
        debugger.add_to_buffer({"maps": torch.ones(3)}, {"meta_info": {"idx": 5}})
    with pytest.raises(ConfigError, match=r"work_dir: '.*epoch_2/debugger/.*' was not made by a run"):
        SupervisedTrainer(config(tmp_path))
    assert list(load_debug_outputs(pages)) == [5]
    SupervisedTrainer(config(tmp_path, epochs=2)).run()  # does not come so far
    assert list(load_debug_outputs(pages)) == [5]


def test_no_link_is_followed_and_no_file_is_taken_for_a_folder(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "other")).run()
    for name, make in {
        "epoch_1": lambda path: path.symlink_to(tmp_path / "other" / "epoch_0"),
        "epoch_2": lambda path: path.write_text("a file"),
        "epoch_0/debugger": lambda path: path.symlink_to(tmp_path / "other" / "epoch_2" / "debugger"),
        "datapoints": lambda path: path.symlink_to(tmp_path / "other" / "datapoints"),
        "epoch_0/validation_scores.json": lambda path: path.mkdir(),
    }.items():
        run = tmp_path / name.replace("/", "_")
        (run / name).parent.mkdir(parents=True)
        make(run / name)
        with pytest.raises(ConfigError, match=rf"^work_dir: '.*{name}' is (a link|not a folder|a folder); choose"):
            SupervisedTrainer(config(run))
    assert sorted(load_debug_outputs(tmp_path / "other" / "epoch_2")) == list(range(VAL))


def test_linked_epochs_are_resumed_from_and_nothing_behind_a_link_is_removed(tmp_path: Path) -> None:
    run, aside = tmp_path / "run", tmp_path / "aside"
    SupervisedTrainer(config(run)).run()
    aside.mkdir()
    for name in ("datapoints", "epoch_1", "epoch_2"):
        (run / name).rename(aside / name)
        (run / name).symlink_to(aside / name)
    SupervisedTrainer(config(run)).run()  # is finished
    (aside / "epoch_2" / ".run.json.1").write_text("of a process that was killed")
    SupervisedTrainer(config(run, epochs=4, checkpoint_method="latest")).run()
    assert read(run / "run.json")["status"] == "finished"
    assert (aside / "epoch_1" / "checkpoint.pt").exists() and (aside / "epoch_2" / ".run.json.1").exists()


def test_a_checkpoint_in_the_folder_of_another_epoch_is_not_resumed_from(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path)).run()
    (tmp_path / "epoch_4").mkdir()
    (tmp_path / "epoch_2" / "checkpoint.pt").rename(tmp_path / "epoch_4" / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"epoch_4/checkpoint.pt' belongs to epoch 2\ndelete this file to resume"):
        SupervisedTrainer(config(tmp_path, epochs=6))


def test_ranks_share_the_order_and_draw_apart_but_for_streams(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(Blobs(8))

    for dataset, apart in ((node(Blobs, count=TRAIN), True), (node(Stream), False)):
        loader = node(DataLoader, batch_size=8, shuffle=True if apart else None)
        trainer = SupervisedTrainer(config(tmp_path / str(apart), train_dataset=dataset, train_dataloader=loader))
        seeds = []
        for rank in (0, 1):
            trainer.ranks = Ranks(rank, 2)
            trainer._seed("train", 1, trainer.train_loader)
            order = trainer.train_loader.sampler.generator.initial_seed() if apart else 0
            assert trainer.train_loader.generator is not None
            seeds.append((order, trainer.train_loader.generator.initial_seed(), torch.initial_seed()))
        first, second = seeds
        assert first[0] == second[0]
        assert (first[1] != second[1]) is apart
        assert first[2] != second[2]


# ---------------------------------------------------------------- schedulers
def rates(folder: Path) -> list[float]:
    return [e["learning_rates"][0] for e in read(folder / "progress.json")["epochs"]]


def test_a_scheduler_for_every_step(tmp_path: Path) -> None:
    steps = math.ceil(TRAIN / 8)
    SupervisedTrainer(config(tmp_path, scheduler_step="step")).run()
    assert rates(tmp_path) == pytest.approx([0.01, 0.01 * 0.9**steps, 0.01 * 0.9 ** (2 * steps)])


def test_a_scheduler_that_looks_at_the_scores(tmp_path: Path) -> None:
    plateau = node(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=100.0)
    SupervisedTrainer(config(tmp_path, scheduler=plateau, epochs=4)).run()
    assert rates(tmp_path) == pytest.approx([0.01, 0.005, 0.0025, 0.00125])


def test_the_score_that_a_scheduler_looks_at(tmp_path: Path) -> None:
    class Falling(ClassificationMetric):
        def aggregate(self, *given: Any) -> dict[str, float]:
            return {**super().aggregate(*given), "macro_f1": -float(len(list(tmp_path.glob("epoch_*"))))}

    plateau = node(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, mode="max")
    changed = {"scheduler": plateau, "scheduler_score": "macro_f1", "metric": node(Falling)}
    SupervisedTrainer(config(tmp_path, epochs=4, **changed)).run()
    assert rates(tmp_path) == pytest.approx([0.01, 0.01, 0.005, 0.0025])


@pytest.mark.parametrize(
    ("args", "changed", "message"),
    [
        (
            {"mode": "max"},
            {},
            r"^scheduler\.args\.mode: found 'max', but ReduceLROnPlateau uses the score 'loss', of which lower",
        ),
        (
            {},
            {"scheduler_score": "accuracy"},
            r"^scheduler\.args\.mode: found 'min', .* 'accuracy', of which higher is",
        ),
        (
            {},
            {"scheduler_score": "acuracy"},
            "^scheduler_score: the metric has no score 'acuracy'; closest: 'accuracy'",
        ),
        ({}, {"scheduler_step": "step"}, "^scheduler_step: ReduceLROnPlateau needs the scores of an epoch"),
        (None, {"scheduler_score": "loss"}, "^scheduler_score: only ReduceLROnPlateau uses a score; remove it"),
    ],
)
def test_a_score_that_a_scheduler_cannot_look_at(
    args: Any, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if args is not None:
        changed = {"scheduler": node(torch.optim.lr_scheduler.ReduceLROnPlateau, **args), **changed}
    with pytest.raises(ConfigError, match=message):
        SupervisedTrainer(config(tmp_path, **changed))


class Unstorable(torch.optim.SGD):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "owner": self}


def test_an_optimizer_that_could_not_be_resumed_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^optimizer: its state_dict\(\) holds more than"):
        SupervisedTrainer(config(tmp_path, optimizer=node(Unstorable, lr=0.1)))
    assert not list(tmp_path.glob("epoch_*"))


# ---------------------------------------------------------------- the user's own
class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        data = Blobs(20)
        return iter([data[k] for k in range(20)])


def test_an_iterable_dataset(tmp_path: Path) -> None:
    loader = node(DataLoader, batch_size=8)
    trainer = SupervisedTrainer(config(tmp_path, train_dataset=node(Stream), train_dataloader=loader, accumulate=2))
    trainer.run()
    assert trainer.step == 3 * 2  # three batches an epoch: one step for two, one for the last


@dataclass(frozen=True, kw_only=True)
class MarginSettings(Settings):
    margin: float = key(kinds.positive(), "how far apart", default=0.5)


class Margin(BaseTrainer):
    """A step and a key of its own."""

    settings_class: ClassVar[type[Settings]] = MarginSettings

    def _train_step(self, datapoint: dict[str, Any]) -> Tensor:
        datapoint["outputs"] = self.network(datapoint["inputs"])
        return nn.functional.multi_margin_loss(datapoint["outputs"], datapoint["labels"], margin=self.settings.margin)


def test_an_own_trainer(tmp_path: Path) -> None:
    trainer = Margin(config(tmp_path, margin=2.0, epochs=8))
    trainer.run()
    losses = [e["loss"]["mean"] for e in read(tmp_path / "progress.json")["epochs"]]
    assert losses[-1] < losses[0]
    with pytest.raises(ConfigError, match="margn"):
        Margin(config(tmp_path / "b", margn=2.0))


class Broken(Blobs):
    def __getitem__(self, k: int) -> Any:
        if k == 11:
            raise OSError("the disk is gone")
        return super().__getitem__(k)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        SupervisedTrainer(config(tmp_path, train_dataset=node(Broken, count=TRAIN))).run()
    run = read(tmp_path / "run.json")
    assert run["status"] == "failed"
    assert "the disk is gone" in run["error"]


class Infinite(nn.Module):
    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels) * float("nan")


def test_a_loss_that_is_no_number_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SupervisedTrainer(config(tmp_path, criterion=node(Infinite), epochs=1)).run()
    epoch = read(tmp_path / "progress.json")["epochs"][0]
    assert math.isnan(epoch["loss"]["mean"])
    assert epoch["loss"]["non_finite"] == epoch["loss"]["count"] == math.ceil(TRAIN / 8)
    assert math.isnan(epoch["scores"]["loss"])
    assert "training loss nan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("work_dri", "x", "work_dri: no such key; closest: 'work_dir'"),
        ("epochs", 0, "epochs: found 0"),
        ("model", node(Net, dropuot=1), "model.args.dropuot"),
        ("optimizer", node("torch.optim.Adamm"), "optimizer.class"),
        ("debugger", node("endoscope.SequentialDebugger", debuggers_config=[{"name": "x", "debugger_config": node(
            "endoscope.debuggers.FeatureMapDebugger", layer_name="aa")}]), "no layer is called 'aa'"),
        ("device", "cuda:7", "device"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_anything_is_trained(key: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        SupervisedTrainer(config(tmp_path, **{key: value}))
    assert message in str(error.value)
    assert not list(tmp_path.glob("epoch_*"))


def test_the_users_random_numbers_are_not_ours_to_keep(tmp_path: Path) -> None:
    """A run seeds everything itself: what was drawn before it makes no difference."""
    for name in ("a", "b"):
        random.random(), np.random.rand(), torch.rand(5)
        SupervisedTrainer(config(tmp_path / name)).run()
    assert final(tmp_path / "a") == final(tmp_path / "b")


class Weighted(BaseCriterion):
    """Learns how much its loss weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels) * torch.exp(-self.weight) + self.weight


def test_a_criterion_that_learns(tmp_path: Path) -> None:
    trainer = SupervisedTrainer(config(tmp_path, criterion=node(Weighted)))
    trainer.run()
    assert trainer.criterion.weight.item() != 0
    again = SupervisedTrainer(config(tmp_path, criterion=node(Weighted), epochs=4))
    assert again.criterion.weight.item() == trainer.criterion.weight.item()


class TwoParts(BaseCriterion):
    def forward(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"entropy": nn.functional.cross_entropy(outputs, labels), "size": outputs.square().mean()}


def test_named_parts_of_the_loss_are_kept(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path, criterion=node(TwoParts), epochs=1)).run()
    losses = read(tmp_path / "epoch_0" / "training_losses.json")
    assert list(losses) == ["loss", "entropy", "size"]
    assert losses["loss"] == pytest.approx(np.add(losses["entropy"], losses["size"]))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "optimizer",
            node(torch.optim.Adam, lr=-1.0),
            "optimizer: it could not be built: ValueError: Invalid learning",
        ),
        ("train_dataloader", node(DataLoader, batch_size=0), "train_dataloader: it could not be built: ValueError"),
        ("val_dataset", node(Blobs, count="hello"), "val_dataset: it could not be built: TypeError"),
    ],
)
def test_what_cannot_be_built_is_named_by_its_key(key: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        SupervisedTrainer(config(tmp_path, **{key: value}))
    assert message in str(error.value)


def test_an_iterable_dataset_trains_as_one_with_a_length(tmp_path: Path) -> None:
    """Also where the last step has fewer batches than the others."""
    loader = node(DataLoader, batch_size=8, shuffle=False)
    common = {"train_dataloader": loader, "accumulate": 2, "model": node(Net, dropout=0.0)}
    SupervisedTrainer(config(tmp_path / "a", train_dataset=node(Blobs, count=20), **common)).run()
    common["train_dataloader"] = node(DataLoader, batch_size=8)
    SupervisedTrainer(config(tmp_path / "b", train_dataset=node(Stream), **common)).run()
    assert final(tmp_path / "a")["model"] == final(tmp_path / "b")["model"]


# ---------------------------------------------------------------- what a step returns
@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda loss: None, "None"),
        (lambda loss: loss.item(), "a float"),
        (lambda loss: {"loss": loss}, "a dict"),
        (lambda loss: loss.repeat(3), r"a tensor of shape \(3,\)"),
        (lambda loss: loss.detach(), "a loss without a gradient"),
    ],
)
def test_a_step_that_returns_no_loss(returned: Any, found: str, tmp_path: Path) -> None:
    class Own(SupervisedTrainer):
        def _train_step(self, datapoint: dict[str, Any]) -> Any:
            return returned(super()._train_step(datapoint))

    message = (
        rf"^Own._train_step returned {found}; expected the loss of the batch, a scalar tensor with a gradient: return"
    )
    with pytest.raises(CriterionError, match=message):
        Own(config(tmp_path)).run()


# ---------------------------------------------------------------- threads
def test_torch_computes_with_so_many_threads_while_it_runs(tmp_path: Path) -> None:
    seen = []

    class Own(SupervisedTrainer):
        def _train_step(self, datapoint: dict[str, Any]) -> Any:
            seen.append(torch.get_num_threads())
            return super()._train_step(datapoint)

    before = torch.get_num_threads()
    Own(config(tmp_path / "a", torch_threads=before + 1, epochs=1)).run()
    assert {*seen} == {before + 1}
    assert torch.get_num_threads() == before
    seen.clear()
    Own(config(tmp_path / "b", epochs=1)).run()
    assert {*seen} == {before}
    with pytest.warns(UserWarning, match="^torch_threads: the run is resumed with"):
        Own(config(tmp_path / "a", torch_threads=before, epochs=2)).run()


# ---------------------------------------------------------------- names of classes
class PerClass(ClassificationMetric):
    AGGREGATED: ClassVar[Any] = {**ClassificationMetric.AGGREGATED, **{f"hits/{n}": "higher" for n in range(4)}}
    BY_CLASS = ("hits",)

    def aggregate(self, scores: Any, evidence: Any, sums: Any) -> dict[str, float]:
        return {**super().aggregate(scores, evidence, sums), **{f"hits/{n}": float(n) for n in range(4)}}


def test_scores_of_classes_are_shown_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SupervisedTrainer(config(tmp_path, metric=node(PerClass), epochs=1)).run()
    assert "   hits/red 0   hits/green 1   hits/blue 2   hits/3 3   " in capsys.readouterr().out
    run = Run(tmp_path)
    assert run.about.by_class == ("hits",)
    assert "hits/0" in run.progress.epochs[0].scores
    SupervisedTrainer(config(tmp_path / "renamed", metric=node(PerClass), epochs=1, class_names=["a"])).run()
    assert "   hits/a 0   hits/1 1   " in capsys.readouterr().out


# ---------------------------------------------------------------- models that return a dict
class DictNet(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": super().forward(x), "features": x}


def test_a_model_that_returns_a_dict_trains_as_one_that_does_not(tmp_path: Path) -> None:
    SupervisedTrainer(config(tmp_path / "plain")).run()
    SupervisedTrainer(config(tmp_path / "dict", model=node(DictNet))).run()
    assert final(tmp_path / "plain") == final(tmp_path / "dict")
    outputs = Run(tmp_path / "dict").epochs[-1].outputs
    assert outputs is not None
    assert outputs[3]["outputs"]["logits"].shape == (1, 3)


class Tokens(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {"input_ids": [1, 2 + k % 3, 3], "attention_mask": [1, 1, 1], "label": k % 2}


def bert() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=10, **sizes))  # type: ignore[no-any-return]


def test_a_model_of_hugging_face(tmp_path: Path) -> None:
    changed = {"train_dataset": node(Tokens), "val_dataset": node(Tokens), "model": bert(), "debugger": None}
    SupervisedTrainer(config(tmp_path, epochs=1, **changed)).run()
    run = Run(tmp_path)
    assert run.problems == []
    (epoch,) = run.epochs
    assert epoch.scores is not None and epoch.outputs is not None
    assert len(epoch.scores.indices) == 12
    assert epoch.outputs[0]["outputs"]["logits"].shape == (1, 2)


class Nameless(Blobs):
    classes = ()  # type: ignore[assignment]


@pytest.mark.parametrize("without", ["train_dataset", "val_dataset"])
def test_class_names_of_either_dataset(without: str, tmp_path: Path) -> None:
    trainer = SupervisedTrainer(config(tmp_path, **{without: node(Nameless, count=9)}))
    assert trainer.class_names == ("red", "green", "blue")
