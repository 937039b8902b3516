"""Loops that are run with and without debuggers, and the comparison of everything that they computed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.sameness import canonical
from torch import Tensor, nn

from endoscope import SequentialDebugger

Moment = Literal["before backward", "after backward", "after step"]
Nodes = list[dict[str, Any]]


# ---------------------------------------------------------------- models
class Encoder(nn.Module):
    """With an activation that has no fused kernel; the fused path is the subject of test_fast_path."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        silu = nn.functional.silu
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, activation=silu, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=x[..., 0] > 1).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        sequence, (hidden, _) = self.lstm(x)
        return self.head(sequence[:, -1] + hidden[0])


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8, momentum=None),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.3, inplace=True),
        nn.Linear(8, 3),
    )


@dataclass(frozen=True)
class Case:
    """A model and the shape of its batches."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.build()
        list(model.modules())[-2].eval()  # one layer is frozen by the user: nobody may wake it
        return model

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(100 + step)
        x = torch.randn(4, *self.shape, generator=generator)
        return x, torch.randint(3, (4,), generator=generator)

    def __str__(self) -> str:
        return self.name


CASES = [Case("cnn", cnn, (3, 8, 8)), Case("encoder", Encoder, (5, 6)), Case("lstm", Recurrent, (5, 6))]


# ---------------------------------------------------------------- what a loop computed
def generators() -> dict[str, Any]:
    return {
        "rng torch": (torch.initial_seed(), torch.get_rng_state().numpy().tobytes()),
        "rng python": random.getstate(),
        "rng numpy": repr(np.random.get_state()),
    }


HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs",
         "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks")  # fmt: skip


def hooks_of(model: nn.Module) -> list[Any]:
    """Every hook dictionary of every module: which object it is, and what it holds in which order."""
    dicts = [getattr(m, name) for m in model.modules() for name in HOOKS]
    dicts += [v for k, v in vars(nn.modules.module).items() if k.startswith("_global_") and isinstance(v, dict)]
    return [(id(d), [(k, id(v)) for k, v in d.items()]) for d in dicts]


class UserHooks:
    """The user's own hooks on a model: what fired, in which order."""

    def __init__(self, model: nn.Module) -> None:
        self.fired: list[str] = []
        self.model = model
        last = list(model.modules())[-1]
        for module in (model, last):
            for k in range(2):
                name = f"{type(module).__name__} {k}"
                module.register_forward_hook(lambda m, i, o, n=name: self.fired.append(f"{n} forward"))
                module.register_forward_pre_hook(lambda m, i, n=name: self.fired.append(f"{n} pre"))
        last.register_full_backward_hook(lambda m, i, o: self.fired.append("backward"))

    def order(self) -> list[list[Any]]:
        """The names of the user's hooks in each dictionary, in their order."""
        dicts = [getattr(m, n) for m in self.model.modules() for n in ("_forward_pre_hooks", "_forward_hooks")]
        return [[h.__defaults__ for h in d.values() if getattr(h, "__module__", "") == __name__] for d in dicts]


class Trace(dict[str, Any]):
    """What a loop computed, by name."""

    def take(self, prefix: str, **values: Any) -> None:
        self.update({f"{prefix}: {name}": canonical(value) for name, value in values.items()})


def differences(one: Trace, other: Trace) -> set[str]:
    """The names of what differs, without the step."""
    names = [*dict.fromkeys([*one, *other])]
    return {n.partition(": ")[2] or n for n in names if one.get(n, "absent") != other.get(n, "absent")}


@dataclass(frozen=True)
class Loop:
    """How a model is run; the same for both sides of a comparison."""

    case: Case
    moment: Moment = "after backward"
    steps: int = 2
    micro: int = 1
    cast: bool = False
    evaluate: Callable[[], contextlib.AbstractContextManager[Any]] | None = None

    def run(self, nodes: Nodes | None = None, folder: Path | None = None, **options: Any) -> Trace:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        model, trace = self.case.model(), Trace()
        if self.evaluate:
            model.eval()
        user = UserHooks(model)
        held = [[id(t) for t in ts] for ts in (model.parameters(), model.buffers())]
        before = hooks_of(model)
        debugger = None
        if nodes is not None:
            debugger = SequentialDebugger(nodes, model, output_dir=folder, **options)
            debugger.enabled = True
        try:
            (self._evaluate if self.evaluate else self._train)(model, trace, debugger, user)
        finally:
            if debugger is not None:
                debugger.close()
        trace.take("end", hooks=before == hooks_of(model), fired=user.fired, gradient_mode=torch.is_grad_enabled())
        trace.take("end", objects=held == [[id(t) for t in ts] for ts in (model.parameters(), model.buffers())])
        return trace

    def _train(self, model: nn.Module, trace: Trace, debugger: SequentialDebugger | None, user: UserHooks) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(self.steps):
            optimizer.zero_grad()
            for part in range(self.micro):
                x, y = self.case.batch(step * self.micro + part)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cast):
                    outputs = model(x)
                    loss = nn.functional.cross_entropy(outputs, y) / self.micro
                datapoint = {"inputs": x, "labels": y, "outputs": outputs, "meta_info": {"idx": [*range(4)]}}
                look = (lambda d=datapoint: debugger(d, model)) if debugger is not None else (lambda: None)
                if self.moment == "before backward":
                    look()
                loss.backward()
                if self.moment == "after backward":
                    look()
                trace.take(f"{step}.{part}", outputs=outputs, loss=loss, inputs=x, labels=y, version=outputs._version)
            trace.take(f"{step}", gradients={n: p.grad for n, p in model.named_parameters()})
            optimizer.step()
            if self.moment == "after step":
                look()
            trace.take(f"{step}", optimizer=optimizer.state_dict())
            self._look(model, trace, user, step)

    def _evaluate(self, model: nn.Module, trace: Trace, debugger: SequentialDebugger | None, user: UserHooks) -> None:
        assert self.evaluate
        for step in range(self.steps):
            x, y = self.case.batch(step)
            with self.evaluate(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cast):
                outputs = model(x)
                if debugger is not None:
                    meta = {"idx": torch.arange(4) + 4 * step}
                    debugger({"inputs": x, "labels": y, "outputs": outputs, "meta_info": meta}, model)
            trace.take(f"{step}", outputs=outputs, inputs=x, inference=outputs.is_inference())
            self._look(model, trace, user, step)

    def _look(self, model: nn.Module, trace: Trace, user: UserHooks, step: int) -> None:
        trace.take(
            f"{step}",
            weights=dict(model.named_parameters()),
            buffers=dict(model.named_buffers()),
            versions=[t._version for ts in (model.parameters(), model.buffers()) for t in ts],
            flags=[m.training for m in model.modules()],
            order=user.order(),
            **generators(),
        )


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Small tensors: torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "debugger"
