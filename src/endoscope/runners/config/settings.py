"""Settings: every key of a config with its default and its meaning. The only place that lists them.

``docs/config.md`` is generated from this module. Nothing is built: nodes are checked and stay nodes.
"""
# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch

from endoscope.config import check_node, is_node
from endoscope.errors import ConfigError, closest
from endoscope.runners.config import kinds
from endoscope.runners.config.kinds import Kind, Refused
from endoscope.runners.metric import BaseMetric

Job = Literal["train", "eval"]
JOBS: dict[Job, str] = {"train": "train", "eval": "evaluate"}

_BOTH: tuple[Job, ...] = ("train", "eval")
_TRAIN: tuple[Job, ...] = ("train",)
_EVAL: tuple[Job, ...] = ("eval",)


@dataclass(frozen=True)
class Key:
    """One key: its accepted values and meaning, the jobs that require it and the jobs that use it."""

    kind: Kind
    meaning: str
    required: tuple[Job, ...]
    jobs: tuple[Job, ...]
    default_text: str | None

    def describe_default(self, default: Any) -> str:
        if self.required:
            return "required" if self.required == self.jobs == _BOTH else f"required to {JOBS[self.required[0]]}"
        return self.default_text or f"`{default!r}`"


def key(
    kind: Kind,
    meaning: str,
    *,
    default: Any = None,
    required: tuple[Job, ...] = (),
    jobs: tuple[Job, ...] = _BOTH,
    default_text: str | None = None,
) -> Any:
    """A field of `Settings`: its accepted values, its meaning, and its default or the jobs that require it."""
    return dataclasses.field(default=default, metadata={"key": Key(kind, meaning, required, jobs, default_text)})


def _loader_key(dataset: str, jobs: tuple[Job, ...], arguments: str) -> Any:
    return key(
        kinds.optional(kinds.node("dataset")),
        f"the loader that makes batches of `{dataset}`; the runner adds `dataset`",
        jobs=jobs,
        default_text=f"a `DataLoader` with `{arguments}`",
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A checked config with its defaults filled in; made by `from_config`.

    >>> settings = Settings.from_config(config, job="train")
    >>> settings.epochs, settings.seed
    (10, 0)

    A runner with additional keys has a subclass with more fields:

    >>> @dataclass(frozen=True, kw_only=True)
    ... class MarginSettings(Settings):
    ...     margin: float = key(kinds.positive(), "the margin of the loss", default=0.2)
    ...     warmup: int | None = None           # checked against a plain annotation
    """

    work_dir: Path = key(kinds.path(), "the folder of the run; created if it does not exist", required=_BOTH)
    epochs: int = key(
        kinds.whole(at_least=1), "number of passes over `train_dataset`", default=0, required=_TRAIN, jobs=_TRAIN
    )
    seed: int = key(
        kinds.whole(at_least=0, at_most=2**32 - 1),
        "seed of all random numbers: initial weights, order of the data, augmentation",
        default=0,
    )
    train_dataset: Any = key(kinds.dataset(), "the dataset to train on", required=_TRAIN, jobs=_TRAIN)
    val_dataset: Any = key(kinds.dataset(), "the dataset for validation after each epoch", required=_TRAIN, jobs=_TRAIN)
    eval_dataset: Any = key(kinds.dataset(), "the dataset to evaluate on", required=_EVAL, jobs=_EVAL)
    train_dataloader: Any = _loader_key("train_dataset", _TRAIN, "batch_size=32, shuffle=True")
    val_dataloader: Any = _loader_key("val_dataset", _TRAIN, "batch_size=32")
    eval_dataloader: Any = _loader_key("eval_dataset", _EVAL, "batch_size=32")
    model: Any = key(
        kinds.node_or("a torch.nn.Module", lambda value: isinstance(value, torch.nn.Module)),
        "the model",
        required=_BOTH,
    )
    criterion: Any = key(
        kinds.node_or("a callable", callable), "the loss; called with outputs and labels", required=_TRAIN, jobs=_TRAIN
    )
    metric: Any = key(
        kinds.node_or("a BaseMetric", lambda value: isinstance(value, BaseMetric)),
        "computes the scores of every datapoint",
        required=_BOTH,
    )
    optimizer: Any = key(kinds.node("params"), "the optimizer; the runner adds `params`", required=_TRAIN, jobs=_TRAIN)
    scheduler: Any = key(
        kinds.optional(kinds.node("optimizer")), "changes the learning rate; the runner adds `optimizer`", jobs=_TRAIN
    )
    scheduler_step: Literal["epoch", "step"] = key(
        kinds.choice("epoch", "step"),
        "whether the scheduler steps after each epoch or each step",
        default="epoch",
        jobs=_TRAIN,
    )
    scheduler_score: str | None = key(
        kinds.optional(kinds.text()),
        "the validation score for `ReduceLROnPlateau`; its `mode` must match the score",
        jobs=_TRAIN,
        default_text="the score `loss` if the metric has one, otherwise the training loss",
    )
    checkpoint_method: int | Literal["all", "latest"] = key(
        kinds.either(kinds.whole(at_least=1), kinds.choice("all", "latest")),
        "the checkpoint epochs, whose checkpoints are kept and in whose validation the debugger runs: every n-th and "
        "the last; all; only the last",
        default="latest",
        jobs=_TRAIN,
    )
    checkpoint: Path | None = key(
        kinds.optional(kinds.path()),
        "the weights to evaluate: a `checkpoint.pt`, an epoch folder, or the folder of a run (its last checkpoint); "
        "without it the model is evaluated as built",
        jobs=_EVAL,
    )
    debugger: Any = key(
        kinds.optional(kinds.node("model")),
        "the `SequentialDebugger` that runs during validation or evaluation; the runner adds `model`",
    )
    device: str = key(
        kinds.device(), "where the model runs; `'auto'` is CUDA if available, else the CPU", default="auto"
    )
    precision: Literal["float32", "bfloat16", "float16"] = key(
        kinds.choice("float32", "bfloat16", "float16"),
        "precision of the forward pass, by autocast; `'float16'` also scales the loss",
        default="float32",
    )
    torch_threads: int | None = key(
        kinds.optional(kinds.whole(at_least=1)),
        "number of CPU threads that torch uses during the run; `None` leaves it unchanged",
    )
    accumulate: int = key(kinds.whole(at_least=1), "number of batches per optimizer step", default=1, jobs=_TRAIN)
    unused_parameters: bool = key(
        kinds.flag(),
        "with several ranks: whether some parameters may get no gradient in a step "
        "(`find_unused_parameters` of `DistributedDataParallel`, which then searches for them in every step)",
        default=False,
        jobs=_TRAIN,
    )
    clip_norm: float | None = key(
        kinds.optional(kinds.positive()), "gradients are scaled down to at most this norm, all together", jobs=_TRAIN
    )
    compile: bool = key(
        kinds.flag(),
        "whether to compile the model with `torch.compile`; in a plain `nn.Sequential` torch compiles only layers with "
        "a forward of your own, and a warning says so",
        default=False,
    )
    save_datapoints: int | Literal["all"] | None = key(
        kinds.optional(kinds.either(kinds.whole(at_least=1), kinds.choice("all"))),
        "how many validated or evaluated datapoints to store in the run for the viewer, with inputs, labels, meta_info "
        "and, at checkpoint epochs, outputs: the first n, all, or none",
        default=2000,
    )
    class_names: tuple[str, ...] | None = key(
        kinds.optional(kinds.texts()),
        "names of the classes, for display; the default is the dataset's `class_names` or `classes`",
    )
    overwrite: bool = key(
        kinds.flag(),
        "whether to replace results of an earlier evaluation, or captures of your own, in `work_dir`",
        default=False,
        jobs=_EVAL,
    )
    runner: Any = key(
        kinds.optional(kinds.a_class()),
        "your subclass of `BaseTrainer` or `BaseEvaluator`",
        default_text="`SupervisedTrainer` or `SupervisedEvaluator`",
    )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, job: Job) -> Self:
        """Check a config for a job and fill in the defaults. Raises `ConfigError` at the first mistake.

        One config may serve both jobs. Of keys that only the other job uses, just the spelling is checked.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"the config is {kinds.shown(config)}; expected a dict from keys to values")
        keys = {name: known for name, known, _ in cls._keys()}
        for name in config:
            if name not in keys:
                near = closest(str(name), keys) or "; docs/config.md lists the keys"
                raise ConfigError(f"{name}: no such key{near}")
        values = {}
        for name, known in keys.items():
            if name in config and job in known.jobs:
                values[name] = _read(name, known, config[name])
            elif job in known.required:
                needed = f"needed to {JOBS[job]}: {known.meaning}"
                raise ConfigError(f"{name}: missing; {needed}\nexpected {known.kind.expected}")
        return cls(**values)

    @classmethod
    def _keys(cls) -> Iterator[tuple[str, Key, Any]]:
        for field in dataclasses.fields(cls):
            yield field.name, field.metadata.get("key") or _plain_key(cls, field), _default(field)


def _plain_key(settings: type[Settings], field: dataclasses.Field[Any]) -> Key:
    """A field that a subclass adds without `key`: checked against its annotation."""
    try:
        annotation = typing.get_type_hints(settings).get(field.name)
    except (NameError, TypeError):  # a name imported for type checkers only
        annotation = None
    required = _BOTH if _default(field) is dataclasses.MISSING else ()
    return Key(kinds.annotated(annotation), f"a setting of {settings.__name__}", required, _BOTH, None)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def key_names(settings: type[Settings] = Settings) -> Sequence[str]:
    """The names of all keys."""
    return [name for name, _, _ in settings._keys()]


def documented_keys(settings: type[Settings] = Settings) -> str:
    """All keys as a Markdown table, which `docs/config.md` contains."""
    rows = ["| key | default | value | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {known.describe_default(default)} | {known.kind.expected} | {known.meaning} |"
        for name, known, default in settings._keys()
    ]
    return "\n".join(rows) + "\n"


def read_key(name: str, value: Any) -> Any:
    """One value of a config, checked like in `Settings.from_config`."""
    known = next(known for key_name, known, _ in Settings._keys() if key_name == name)
    return _read(name, known, value)


def _read(name: str, known: Key, value: Any) -> Any:
    if is_node(value, name):
        check_node(value, given=known.kind.given, key_path=name)
    try:
        return known.kind.read(value)
    except Refused as refused:
        not_a_node = " without 'class'" if isinstance(value, dict) and "class" not in value else ""
        found = f"found {kinds.shown(value)}{not_a_node}"
        raise ConfigError(f"{name}: {found}; expected {known.kind.expected}{refused}") from None
