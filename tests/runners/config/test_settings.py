from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from endoscope.debuggers.feature_map import FeatureMapDebugger
from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger
from endoscope.errors import ConfigError
from endoscope.runners.config import kinds
from endoscope.runners.config.settings import Job, Settings, documented_keys, key, key_names
from endoscope.runners.metrics.regression import RegressionMetric

DOCS = Path(__file__).parents[3] / "docs" / "config.md"
NODE = "a node {'class': ..., 'args': {...}}"


def score(datapoint: Any) -> dict[str, torch.Tensor]:
    return {"error": datapoint["outputs"].sum(1)}


def config(**changes: Any) -> dict[str, Any]:
    data = TensorDataset(torch.zeros(4, 3), torch.zeros(4))
    whole: dict[str, Any] = {
        "work_dir": "runs/x",
        "epochs": 2,
        "train_dataset": data,
        "val_dataset": data,
        "eval_dataset": data,
        "model": {"class": torch.nn.Linear, "args": {"in_features": 3, "out_features": 1}},
        "criterion": {"class": torch.nn.MSELoss},
        "metric": RegressionMetric(),
        "optimizer": {"class": torch.optim.SGD, "args": {"lr": 0.1}},
    }
    whole.update(changes)
    return {name: value for name, value in whole.items() if value is not ...}


def refusal(job: Job = "train", **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_config(config(**changes), job=job)
    return str(caught.value)


def test_missing_keys_have_their_defaults() -> None:
    settings = Settings.from_config(config(), job="train")
    assert settings.work_dir == Path("runs/x")
    assert settings.epochs == 2
    defaults = {
        "seed": 0, "scheduler": None, "scheduler_step": "epoch", "checkpoint_method": "latest", "checkpoint": None,
        "debugger": None, "device": "auto", "precision": "float32", "accumulate": 1, "clip_norm": None,
        "compile": False, "save_datapoints": 2000, "class_names": None, "train_dataloader": None,
        "val_dataloader": None, "eval_dataloader": None,
    }  # fmt: skip
    assert {name: getattr(settings, name) for name in defaults} == defaults


def test_values_override_defaults() -> None:
    given = {
        "seed": 7, "scheduler_step": "step", "checkpoint_method": 5, "device": "cuda:1", "precision": "bfloat16",
        "accumulate": 4, "clip_norm": 1.0, "compile": True, "save_datapoints": 100,
    }  # fmt: skip
    settings = Settings.from_config(config(**given), job="train")
    assert {name: getattr(settings, name) for name in given} == given


def test_nodes_stay_nodes_and_objects_stay_objects() -> None:
    whole = config(model=torch.nn.Linear(3, 1))
    settings = Settings.from_config(whole, job="train")
    assert settings.model is whole["model"]
    assert settings.optimizer is whole["optimizer"]
    assert settings.train_dataset is whole["train_dataset"]


def test_nothing_is_built() -> None:
    built = []

    def build() -> torch.nn.Module:
        built.append("model")
        return torch.nn.Linear(3, 1)

    settings = Settings.from_config(config(model={"class": build}), job="train")
    assert built == []
    settings.model["class"]()  # the twin: a call would have been noticed
    assert built == ["model"]


def test_settings_cannot_be_changed() -> None:
    settings = Settings.from_config(config(), job="train")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.epochs = 3  # type: ignore[misc]


def test_paths_and_devices_are_read() -> None:
    settings = Settings.from_config(config(work_dir="~/runs", checkpoint=Path("a.pt"), device=torch.device("cuda", 1)),
                                    job="eval")  # fmt: skip
    assert settings.work_dir == Path.home() / "runs"
    assert settings.checkpoint == Path("a.pt")
    assert settings.device == "cuda:1"


def test_class_names_become_a_tuple() -> None:
    assert Settings.from_config(config(class_names=["cat", "dog"]), job="eval").class_names == ("cat", "dog")


# ---- unknown and missing keys
def test_an_unknown_key_names_the_nearest_or_the_page_with_all() -> None:
    assert refusal(optimiser=1).startswith("optimiser: no such key; closest: 'optimizer'")
    assert refusal(zzz=1) == "zzz: no such key; docs/config.md lists the keys"


def test_an_unknown_key_is_reported_before_a_missing_one() -> None:
    assert refusal(optimizer=..., optimiser=1).startswith("optimiser: no such key")


def test_a_key_that_is_no_text_is_unknown() -> None:
    with pytest.raises(ConfigError, match="^3: no such key"):
        Settings.from_config({**config(), 3: 4}, job="train")  # type: ignore[dict-item]


TO_TRAIN = ["work_dir", "epochs", "train_dataset", "val_dataset", "model", "criterion", "metric", "optimizer"]
TO_EVALUATE = ["work_dir", "eval_dataset", "model", "metric"]


@pytest.mark.parametrize("name", TO_TRAIN)
def test_training_needs(name: str) -> None:
    assert refusal("train", **{name: ...}).startswith(f"{name}: missing; needed to train: ")


@pytest.mark.parametrize("name", TO_EVALUATE)
def test_evaluating_needs(name: str) -> None:
    assert refusal("eval", **{name: ...}).startswith(f"{name}: missing; needed to evaluate: ")


def test_each_job_is_content_with_what_it_needs() -> None:
    whole = config()
    Settings.from_config({name: whole[name] for name in TO_TRAIN}, job="train")
    Settings.from_config({name: whole[name] for name in TO_EVALUATE}, job="eval")


def test_a_missing_key_says_what_it_is_and_what_fits() -> None:
    assert refusal(optimizer=...) == (
        f"optimizer: missing; needed to train: the optimizer; the runner adds `params`\nexpected {NODE}"
    )


def test_a_job_does_not_check_what_only_the_other_one_uses() -> None:
    Settings.from_config(config(optimizer={"class": "no_such.Optimizer"}), job="eval")
    assert "no_such" in refusal("train", optimizer={"class": "no_such.Optimizer"})


def test_a_config_that_is_no_dict() -> None:
    with pytest.raises(ConfigError, match="^the config is a list; expected a dict from keys to values$"):
        Settings.from_config([], job="train")  # type: ignore[arg-type]


# ---- wrong values
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("work_dir", "", "work_dir: found ''; expected a path"),
        ("work_dir", 3, "work_dir: found 3; expected a path"),
        ("epochs", 0, "epochs: found 0; expected a whole number, 1 or more"),
        ("epochs", 1.5, "epochs: found 1.5; expected a whole number, 1 or more"),
        ("epochs", "3", "epochs: found '3'; expected a whole number, 1 or more"),
        ("epochs", True, "epochs: found True; expected a whole number, 1 or more"),
        ("epochs", None, "epochs: found None; expected a whole number, 1 or more"),
        ("seed", -1, "seed: found -1; expected a whole number, 0 to 4294967295"),
        ("seed", 2**32, "seed: found 4294967296; expected a whole number, 0 to 4294967295"),
        ("train_dataset", "mnist", f"train_dataset: found 'mnist'; expected {NODE} or a Dataset"),
        ("train_dataset", 3, f"train_dataset: found 3; expected {NODE} or a Dataset"),
        ("val_dataset", TensorDataset, f"val_dataset: found the class TensorDataset; expected {NODE} or a Dataset"),
        ("val_dataset", {"args": {}}, f"val_dataset: found a dict without 'class'; expected {NODE} or a Dataset"),
        ("train_dataloader", {}, f"train_dataloader: found a dict without 'class'; expected {NODE}, or None"),
        ("train_dataloader", 32, f"train_dataloader: found 32; expected {NODE}, or None"),
        ("model", torch.nn.Linear, f"model: found the class Linear; expected {NODE} or a torch.nn.Module"),
        ("model", score, f"model: found a function; expected {NODE} or a torch.nn.Module"),
        ("criterion", torch.nn.MSELoss, f"criterion: found the class MSELoss; expected {NODE} or a callable"),
        ("metric", 3, f"metric: found 3; expected {NODE} or a BaseMetric"),
        ("metric", score, f"metric: found a function; expected {NODE} or a BaseMetric"),
        ("metric", RegressionMetric, f"metric: found the class RegressionMetric; expected {NODE} or a BaseMetric"),
        ("torch_threads", 0, "torch_threads: found 0; expected a whole number, 1 or more, or None"),
        ("optimizer", None, f"optimizer: found None; expected {NODE}"),
        ("scheduler_step", "epochs", "scheduler_step: found 'epochs'; expected 'epoch' or 'step'; closest: 'epoch'"),
        (
            "checkpoint_method",
            0,
            "checkpoint_method: found 0; expected a whole number, 1 or more, or 'all' or 'latest'",
        ),
        (
            "checkpoint_method",
            "last",
            "checkpoint_method: found 'last'; expected a whole number, 1 or more, or 'all' or 'latest'; "
            "closest: 'latest'",
        ),
        ("debugger", "features", f"debugger: found 'features'; expected {NODE}, or None"),
        ("device", "gpu", "device: found 'gpu'; expected 'auto' or a device like 'cpu' or 'cuda:0'"),
        ("device", 0, "device: found 0; expected 'auto' or a device like 'cpu' or 'cuda:0'"),
        (
            "precision",
            "bfloat",
            "precision: found 'bfloat'; expected 'float32', 'bfloat16' or 'float16'; closest: 'bfloat16'",
        ),
        ("precision", 16, "precision: found 16; expected 'float32', 'bfloat16' or 'float16'"),
        ("precision", [], "precision: found a list; expected 'float32', 'bfloat16' or 'float16'"),
        (
            "precision",
            np.zeros(2),
            "precision: found an ndarray of shape (2,); expected 'float32', 'bfloat16' or 'float16'",
        ),
        ("work_dir", "a\0b", "work_dir: found 'a\\x00b'; expected a path"),
        ("accumulate", 0, "accumulate: found 0; expected a whole number, 1 or more"),
        ("clip_norm", 0, "clip_norm: found 0; expected a number above 0, or None"),
        ("clip_norm", float("nan"), "clip_norm: found nan; expected a number above 0, or None"),
        ("clip_norm", "1", "clip_norm: found '1'; expected a number above 0, or None"),
        ("compile", 1, "compile: found 1; expected True or False"),
        ("save_datapoints", 0, "save_datapoints: found 0; expected a whole number, 1 or more, or 'all', or None"),
        ("class_names", "cat", "class_names: found 'cat'; expected a list of strings, or None"),
        ("class_names", [1], "class_names: found a list; expected a list of strings, or None"),
    ],
)
def test_a_value_that_does_not_fit(name: str, value: Any, expected: str) -> None:
    assert refusal("train", **{name: value}) == expected


def test_a_checkpoint_is_a_path() -> None:
    assert refusal("eval", checkpoint=3) == "checkpoint: found 3; expected a path, or None"


@pytest.mark.parametrize("name", ["scheduler", "checkpoint", "debugger", "clip_norm", "save_datapoints", "class_names",
                                  "train_dataloader", "val_dataloader"])  # fmt: skip
def test_none_fits_where_there_may_be_none(name: str) -> None:
    assert getattr(Settings.from_config(config(**{name: None}), job="train"), name) is None


# ---- nodes that cannot be built
@pytest.mark.parametrize(
    ("name", "node", "expected"),
    [
        (
            "optimizer",
            {"class": torch.optim.SGD, "args": {"lrr": 0.1}},
            "optimizer.args.lrr: SGD takes no such argument; closest: 'lr'",
        ),
        (
            "optimizer",
            {"class": torch.optim.SGD, "args": {"params": []}},
            "optimizer.args.params: given by the config and the code that builds SGD; remove it from the config",
        ),
        ("model", {"class": "torch.nn.Linar"}, "model.class: module 'torch.nn' has no 'Linar'; closest: 'Linear'"),
        ("model", {"class": torch.nn.Linear, "arg": {}}, "model.arg: a node has the keys 'class' and 'args' only"),
        (
            "model",
            {"class": torch.nn.Linear, "args": {"in_features": 3}},
            "model.args.out_features: Linear: missing a required argument: 'out_features'",
        ),
        (
            "train_dataset",
            {"class": TensorDataset, "args": {"tensors": 1}},
            "train_dataset.args.tensors: TensorDataset takes no such argument",
        ),
        (
            "val_dataloader",
            {"class": DataLoader, "args": {"batchsize": 8}},
            "val_dataloader.args.batchsize: DataLoader takes no such argument; closest: 'batch_size'",
        ),
        (
            "scheduler",
            {"class": torch.optim.lr_scheduler.StepLR},
            "scheduler.args.step_size: StepLR: missing a required argument: 'step_size'",
        ),
        (
            "debugger",
            {"class": FeatureMapDebugger, "args": {"layer_name": "a"}},
            "debugger.class: FeatureMapDebugger does not take 'model', which the caller passes",
        ),
    ],
)
def test_a_node_that_cannot_be_built_names_the_path(name: str, node: Any, expected: str) -> None:
    assert refusal("train", **{name: node}).splitlines()[0].startswith(expected)


def test_a_mistake_deep_in_the_debugger_names_the_path() -> None:
    inner = {"name": "f", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer": "a"}}}
    debugger = {"class": SequentialDebugger, "args": {"debuggers_config": [inner]}}
    path = "debugger.args.debuggers_config[0].debugger_config.args.layer"
    assert refusal(debugger=debugger).startswith(f"{path}: FeatureMapDebugger takes no such argument")
    inner["debugger_config"]["args"] = {"layer_name": "a"}  # type: ignore[index]
    Settings.from_config(config(debugger=debugger), job="train")


# ---- keys of a subclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginSettings(Settings):
    margin: float = key(kinds.positive(), "the margin of the loss", default=0.2)
    note: str = "none"


def test_a_subclass_has_keys_of_its_own() -> None:
    assert MarginSettings.from_config(config(), job="train").margin == 0.2
    settings = MarginSettings.from_config(config(margin=1, note="x"), job="train")
    assert (settings.margin, settings.note) == (1.0, "x")
    with pytest.raises(ConfigError, match="^margin: found 'a'; expected a number above 0$"):
        MarginSettings.from_config(config(margin="a"), job="train")
    assert refusal(margin=1).startswith("margin: no such key")
    assert "margin" in key_names(MarginSettings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainSettings(Settings):
    whole: int = 0
    part: float = 0.5
    on: bool = False
    where: Path = Path("a")
    mode: Literal["a", "b"] = "a"
    step: Literal[1, 2] = 1
    perhaps: int | None = None
    either: int | str = 0
    several: list[int] = dataclasses.field(default_factory=list)
    table: dict[str, int] | None = None
    needed: str


def plain(**changed: Any) -> PlainSettings:
    return PlainSettings.from_config(config(**{"needed": "x", **changed}), job="train")


def test_a_plain_annotation_is_kept_to() -> None:
    settings = plain(whole=-3, part=2, on=True, where="b", mode="b", step=2, perhaps=4, either="t", several=[1])
    assert (settings.whole, settings.part, settings.on, settings.where) == (-3, 2.0, True, Path("b"))
    assert (settings.mode, settings.step, settings.perhaps, settings.either) == ("b", 2, 4, "t")
    assert (settings.several, plain().several, plain(perhaps=None).perhaps) == ([1], [], None)
    assert isinstance(settings.part, float)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("whole", 1.5, "found 1.5; expected a whole number"),
        ("whole", True, "found True; expected a whole number"),
        ("whole", "3", "found '3'; expected a whole number"),
        ("part", "a", "found 'a'; expected a number"),
        ("on", 1, "found 1; expected True or False"),
        ("where", 3, "found 3; expected a path"),
        ("mode", "c", "found 'c'; expected 'a' or 'b'"),
        ("step", True, "found True; expected 1 or 2"),
        ("perhaps", "x", "found 'x'; expected a whole number, or None"),
        ("either", 1.5, "found 1.5; expected a whole number, or a string"),
        ("needed", None, "found None; expected a string"),
    ],
)
def test_a_value_that_does_not_fit_its_annotation(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: {re.escape(expected)}"):
        plain(**{name: value})


def test_other_annotations_are_not_checked() -> None:
    assert plain(several="x", table=3).several == "x"  # type: ignore[comparison-overlap]


def test_a_field_without_a_default_must_be_given() -> None:
    with pytest.raises(
        ConfigError, match="^needed: missing; needed to train: a setting of PlainSettings\nexpected a string$"
    ):
        PlainSettings.from_config(config(), job="train")


def test_an_annotation_that_cannot_be_resolved_is_not_checked() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Local(Settings):
        own: Nowhere = 0  # type: ignore[name-defined]  # noqa: F821

    assert Local.from_config(config(own="x"), job="train").own == "x"


def test_the_runner_of_the_document_has_its_keys() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    example: dict[str, Any] = {"__name__": __name__}
    exec(next(block for block in blocks if "MarginTrainer" in block), example)
    settings = example["MarginTrainer"].settings_class
    assert settings.from_config(config(margin=1, warmup=3), job="train").warmup == 3
    with pytest.raises(ConfigError, match="^margin: found -1; expected a number above 0"):
        settings.from_config(config(margin=-1), job="train")


def test_own_keys_have_rows_like_the_others() -> None:
    rows = documented_keys(PlainSettings).splitlines()
    assert "| `several` | `[]` | any value | a setting of PlainSettings |" in rows
    assert "| `needed` | required | a string | a setting of PlainSettings |" in rows
    assert "| `perhaps` | `None` | a whole number, or None | a setting of PlainSettings |" in rows


# ---- the document
def test_the_document_holds_the_table_of_keys() -> None:
    assert documented_keys() in DOCS.read_text()


def test_the_table_has_a_row_for_each_field_with_a_meaning() -> None:
    rows = [line.split(" | ") for line in documented_keys().splitlines()[2:]]
    assert [row[0].strip("| `") for row in rows] == [field.name for field in dataclasses.fields(Settings)]
    assert all(len(row) == 4 and all(row) for row in rows)


def test_the_table_says_which_keys_are_required() -> None:
    rows = {line.split("`")[1]: line.split(" | ")[1] for line in documented_keys().splitlines()[2:]}
    assert {name for name, default in rows.items() if default in ("required", "required to train")} == set(TO_TRAIN)
    assert {name for name, default in rows.items() if default in ("required", "required to evaluate")} == set(
        TO_EVALUATE
    )


@pytest.mark.parametrize("job", ["train", "eval"])
def test_the_example_of_the_document_is_a_right_config(job: Job) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    example: dict[str, Any] = {}
    exec(next(block for block in blocks if "config = {" in block), example)
    Settings.from_config(example["config"], job=job)
