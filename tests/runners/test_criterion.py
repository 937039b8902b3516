from __future__ import annotations

import copy
import functools
import math
from collections import OrderedDict
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from endoscope.config import build_from_config
from endoscope.deferred import DeferredError
from endoscope.errors import ConfigError
from endoscope.runners.criterion import BaseCriterion, CriterionError, LossSummary, TorchCriterion, as_criterion

NAN, INF = math.nan, math.inf


class Returning(BaseCriterion):
    """A criterion that returns what it is told to."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, outputs: Any, labels: Any) -> Any:
        return self.returned


class Parts(BaseCriterion):
    def forward(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"distance": (outputs - labels).abs().mean(), "size": outputs.square().mean()}


# ---------------------------------------------------------------- summary
@given(st.lists(st.floats(-1e300, 1e300), min_size=1))
def test_a_summary_of_finite_values_is_exact(values: list[float]) -> None:
    summary = LossSummary.of(values)
    assert summary.mean == summary.finite_mean
    assert summary.mean == pytest.approx(float(sum(map(Fraction, values)) / len(values)), rel=1e-12, abs=1e-290)
    assert (summary.first, summary.last) == (values[0], values[-1])
    assert (summary.min, summary.max) == (min(values), max(values))
    assert (summary.count, summary.non_finite, summary.values) == (len(values), 0, values)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_non_finite_value_is_not_averaged_away(bad: float) -> None:
    summary = LossSummary.of([1.0, bad, 3.0])
    assert math.isnan(summary.mean)
    assert summary.finite_mean == 2.0
    assert (summary.count, summary.non_finite) == (3, 1)


def test_min_and_max_keep_infinities_and_are_nan_with_a_nan() -> None:
    assert (LossSummary.of([1.0, INF, -INF]).min, LossSummary.of([1.0, INF, -INF]).max) == (-INF, INF)
    for values in ([1.0, NAN], [NAN, 1.0]):
        assert math.isnan(LossSummary.of(values).min)
        assert math.isnan(LossSummary.of(values).max)


def test_a_summary_of_nothing_says_so() -> None:
    summary = LossSummary.of([])
    assert (summary.count, summary.non_finite, summary.values) == (0, 0, [])
    assert all(
        map(math.isnan, (summary.mean, summary.finite_mean, summary.first, summary.last, summary.min, summary.max))
    )


def test_the_mean_of_values_whose_sum_is_out_of_range() -> None:
    assert LossSummary.of([1.5e308, 1.5e308]).mean == 1.5e308


# ---------------------------------------------------------------- criterion
def test_losses_are_recorded_in_order_with_nan_kept() -> None:
    criterion = as_criterion(nn.MSELoss())
    for value in (1.0, NAN, 3.0):
        loss = criterion(torch.tensor([value], requires_grad=True), torch.zeros(1))
        criterion.add_to_buffer(loss)
    summary = criterion.summarize()
    assert (summary.first, summary.last, summary.count, summary.non_finite) == (1.0, 9.0, 3, 1)
    assert math.isnan(summary.values[1])


def test_recording_changes_neither_loss_nor_gradient() -> None:
    gradients = []
    for record in (False, True):
        outputs = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        criterion = Parts()
        loss = criterion(outputs, torch.zeros(2, 3))
        if record:
            criterion.add_to_buffer(loss)
        loss.backward()
        gradients.append(outputs.grad)
    assert torch.equal(*gradients)  # type: ignore[arg-type]


def test_a_loss_overwritten_later_was_copied() -> None:
    criterion = as_criterion(nn.L1Loss())
    loss = torch.tensor(2.0)
    criterion.add_to_buffer(loss)
    loss.zero_()
    assert criterion.summarize().values == [2.0]


class Smoothed(nn.CrossEntropyLoss):
    """The user's own: it knows what the model gives."""

    def forward(self, outputs: Any, labels: Any) -> torch.Tensor:
        return super().forward(outputs["logits"], labels)


def own(outputs: Any, labels: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs["logits"], labels)


class Inherited(nn.CrossEntropyLoss):
    pass


TORCHS = [
    nn.CrossEntropyLoss(),
    Inherited(),
    nn.functional.cross_entropy,
    functools.partial(nn.functional.cross_entropy, label_smoothing=0.0),
]


@pytest.mark.parametrize("criterion", [*TORCHS, Smoothed(), own])
def test_outputs_that_are_a_dict(criterion: Any) -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = nn.functional.cross_entropy(logits, labels)
    for outputs in ({"logits": logits, "hidden": 1}, OrderedDict(logits=logits)):
        assert torch.equal(as_criterion(criterion)(outputs, labels), expected)


@pytest.mark.parametrize("criterion", TORCHS[:3])
def test_a_dict_without_logits(criterion: Any) -> None:
    message = "the outputs have no 'logits', only \\['a', 'b'\\]; write a criterion of your own"
    with pytest.raises(CriterionError, match=message):
        as_criterion(criterion)({"b": 1, "a": 2}, torch.tensor([0]))


def test_summarize_may_be_called_again_and_reset_forgets() -> None:
    criterion = as_criterion(nn.L1Loss())
    criterion.add_to_buffer(torch.tensor(2.0))
    assert criterion.summarize() == criterion.summarize()
    criterion.reset_buffer()
    assert criterion.summarize().count == 0


def test_named_parts_are_summed_and_kept() -> None:
    criterion = Parts()
    for outputs in (torch.tensor([1.0, -3.0]), torch.tensor([2.0, 2.0])):
        loss = criterion(outputs, torch.zeros(2))
        criterion.add_to_buffer(loss)
    summary = criterion.summarize()
    assert summary.values == [7.0, 6.0]
    assert summary.parts["distance"].values == [2.0, 2.0]
    assert summary.parts["size"].values == [5.0, 4.0]
    assert summary.parts["size"].mean == 4.5


def test_the_sum_of_parts_carries_their_gradients() -> None:
    outputs = torch.tensor([2.0, -1.0], requires_grad=True)
    Parts()(outputs, torch.zeros(2)).backward()
    assert torch.equal(outputs.grad, torch.tensor([0.5, -0.5]) + torch.tensor([2.0, -1.0]))  # type: ignore[arg-type]


def test_parts_belong_to_the_call_before_and_are_not_recorded_twice() -> None:
    criterion = Parts()
    loss = criterion(torch.ones(2), torch.zeros(2))
    criterion.add_to_buffer(loss)
    criterion.add_to_buffer(loss)
    summary = criterion.summarize()
    assert (summary.count, summary.parts["size"].count) == (2, 1)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(3), r"Returning: the loss has shape \(3,\); expected a scalar, as reduction='mean' gives"),
        (0.5, "Returning: the loss is 0.5; expected a scalar tensor"),
        ({}, "Returning returned an empty dict"),
        ({"a": torch.tensor(1.0), "b": torch.zeros(2, 2)}, r"the part 'b' of its loss has shape \(2, 2\)"),
        ({"a": 1.0}, "the part 'a' of its loss is 1.0"),
    ],
)
def test_what_is_no_loss_is_refused_at_once(returned: Any, message: str) -> None:
    with pytest.raises(CriterionError, match=message):
        Returning(returned)(None, None)


@pytest.mark.parametrize(
    "returned", [torch.ones(1), {"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.tensor(0.0)}]
)
def test_a_loss_of_one_element_is_a_scalar(returned: Any) -> None:
    criterion = Returning(returned)
    criterion.add_to_buffer(criterion(None, None))
    assert criterion.summarize().values == [1.0]


def test_a_recorded_value_that_is_not_a_scalar_is_an_error_until_reset() -> None:
    criterion = as_criterion(nn.L1Loss())
    criterion.add_to_buffer(torch.zeros(3))  # not what the criterion returned
    with pytest.raises(DeferredError, match="a value could not be converted"):
        criterion.summarize()
    criterion.reset_buffer()
    criterion.add_to_buffer(torch.tensor(1.0))
    assert criterion.summarize().values == [1.0]


def test_a_criterion_has_no_state_of_ours_and_can_be_copied() -> None:
    criterion = as_criterion(nn.CrossEntropyLoss(weight=torch.ones(3)))
    criterion.add_to_buffer(torch.tensor(1.0))
    assert list(criterion.state_dict()) == ["criterion.weight"]
    other = copy.deepcopy(criterion)
    assert (criterion.summarize().count, other.summarize().count) == (1, 0)


# ---------------------------------------------------------------- torch's own
def test_a_config_builds_a_torch_criterion() -> None:
    node = {"class": TorchCriterion, "args": {"criterion": {"class": nn.CrossEntropyLoss, "args": {}}}}
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(build_from_config(node)(logits, labels), nn.CrossEntropyLoss()(logits, labels))


def test_as_criterion_wraps_modules_and_functions_and_leaves_criteria() -> None:
    parts = Parts()
    assert as_criterion(parts) is parts
    for loss in (nn.MSELoss(), nn.functional.mse_loss):
        assert float(as_criterion(loss)(torch.tensor([2.0]), torch.zeros(1))) == 4.0


@pytest.mark.parametrize(("bad", "shown"), [(None, "None"), (nn.MSELoss, "the class MSELoss")])
def test_what_cannot_be_a_criterion_is_refused(bad: Any, shown: str) -> None:
    with pytest.raises(ConfigError, match=f"criterion is {shown}; expected a loss module such as"):
        as_criterion(bad)


def test_an_unfinished_criterion_cannot_be_built() -> None:
    with pytest.raises(TypeError, match="abstract method '?forward"):
        BaseCriterion()  # type: ignore[abstract]
