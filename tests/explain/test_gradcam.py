from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from tests.explain.pictures import cnn, images
from torch import Tensor, nn

from endoscope.errors import ConfigError, EndoscopeError, LayerNotFoundError
from endoscope.explain import GradCAM


def by_captum(model: nn.Module, layer: nn.Module, x: Tensor, target: Any) -> Tensor:
    return LayerGradCam(model, layer).attribute(x, target=target, relu_attributions=True).squeeze(1).detach()


class TestNumbers:
    @pytest.mark.parametrize("layer", ["3", "4", "6", "7"])
    @pytest.mark.parametrize("target", [2, [0, 5, 3, 3], torch.tensor([1, 1, 4, 0])], ids=["int", "list", "tensor"])
    def test_equal_to_captum(self, layer: str, target: Any) -> None:
        model, x = cnn().eval(), images()
        expected = by_captum(model, model[int(layer)], x, target)
        cam = GradCAM(model, layer).generate_cam(x, target)
        assert expected.max() > 0
        assert torch.allclose(cam, expected, atol=1e-5)
        assert cam.dtype is torch.float32
        assert not cam.requires_grad

    def test_equal_to_captum_in_train_mode(self) -> None:
        model, x = cnn(), images()
        twin = copy.deepcopy(model)
        expected = by_captum(twin, twin[3], x, 2)
        assert torch.allclose(GradCAM(model, "3").generate_cam(x, 2), expected, atol=1e-5)
        assert not torch.allclose(GradCAM(model.eval(), "3").generate_cam(x, 2), expected, atol=1e-5)

    def test_the_highest_score_by_itself(self) -> None:
        model, x = cnn().eval(), images() * torch.tensor([1.0, 20.0, -20.0, 5.0]).view(4, 1, 1, 1)
        nn.init.zeros_(model[-1].bias)  # or it would decide for all
        best = model(x).argmax(1)
        result = GradCAM(model, "6").explain(x)
        assert result.target_class == best.tolist()
        assert len(set(result.target_class)) > 1
        assert torch.allclose(result.cam, by_captum(model, model[6], x, best), atol=1e-5)

    def test_a_batch_is_each_of_its_datapoints(self) -> None:
        model, x = cnn().eval(), images()
        cam = GradCAM(model, model[6])
        together = cam.explain(x)
        for j in range(4):
            alone = cam.explain(x[j : j + 1])
            assert torch.allclose(together.cam[j], alone.cam[0], atol=1e-6)
            assert together.target_class[j] == alone.target_class[0]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
    def test_other_types(self, dtype: torch.dtype) -> None:
        x = images()
        expected = GradCAM(cnn().eval(), "6").generate_cam(x, 2)
        cam = GradCAM(cnn().eval().to(dtype), "6").generate_cam(x.to(dtype), 2)
        assert cam.dtype is torch.float32
        assert torch.allclose(cam, expected, atol=0.05 * expected.max().item())

    def test_inplace_operation_after_the_layer(self) -> None:
        x = images()
        for layer in ("1", "3", "7"):
            expected = GradCAM(cnn().eval(), layer).generate_cam(x, 2)
            assert torch.allclose(GradCAM(cnn(inplace=True).eval(), layer).generate_cam(x, 2), expected, atol=1e-6)

    def test_a_layer_that_hands_on_its_input(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.same, self.fc = nn.Conv2d(3, 4, 3), nn.Identity(), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                h = self.conv(x)
                kept = self.same(h)
                h.zero_()
                return self.fc(kept.mean((2, 3)))

        torch.manual_seed(0)
        net = Net()
        assert GradCAM(net, "same").generate_cam(images(), 0).abs().sum() > 0

    def test_last_run_of_a_shared_layer(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.fc(self.conv(self.conv(x).relu()).mean((2, 3)))

        torch.manual_seed(0)
        net, x = Net(), images()
        h = net.conv(net.conv(x).relu()).detach().requires_grad_()
        (g,) = torch.autograd.grad(net.fc(h.mean((2, 3)))[:, 1].sum(), h)
        expected = (g.mean((2, 3), keepdim=True) * h).sum(1).relu().detach()
        assert torch.allclose(GradCAM(net, "conv").generate_cam(x, 1), expected, atol=1e-6)


class TestShapes:
    def test_sequence_by_convolution(self) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4))
        x = torch.randn(2, 3, 20)
        cam = GradCAM(net, "0").generate_cam(x, 1)
        assert cam.shape == (2, 18)
        assert torch.allclose(cam, by_captum(net, net[0], x, 1), atol=1e-5)

    def test_volume(self) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))
        x = torch.randn(2, 1, 6, 7, 8)
        cam = GradCAM(net, "1").generate_cam(x, 1)
        assert cam.shape == (2, 4, 5, 6)
        assert torch.allclose(cam, by_captum(net, net[1], x, 1), atol=1e-5)

    @pytest.mark.parametrize("prefix", [0, 1, 5])
    def test_tokens(self, prefix: int) -> None:
        net, x = Tokens(prefix), images(2)
        cam = GradCAM(net, "block").generate_cam(x, 1)
        assert cam.shape == (2, 7, 7)
        tokens = net.block(net.embed(x)).detach().requires_grad_()
        (g,) = torch.autograd.grad(net.head(net.mix(tokens).mean(1))[:, 1].sum(), tokens)
        grid, g = tokens[:, prefix:].detach(), g[:, prefix:]
        expected = (g.mean(1, keepdim=True) * grid).sum(2).relu().view(2, 7, 7)
        assert expected.max() > 0
        assert torch.allclose(cam, expected, atol=1e-6)

    def test_vision_transformer(self) -> None:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16,
            patch_size=4, num_labels=3,
        )  # fmt: skip
        net = transformers.ViTForImageClassification(config).eval()
        x = torch.randn(2, 3, 16, 16)
        layer = "vit.encoder.layer.1.layernorm_before"
        assert GradCAM(net, layer).generate_cam(x).shape == (2, 4, 4)
        assert GradCAM(net, layer).generate_cam({"pixel_values": x}).shape == (2, 4, 4)
        with pytest.raises(ConfigError, match="only the class token"):
            GradCAM(net, "vit.encoder.layer.1").generate_cam(x)

    def test_tokens_without_a_square(self) -> None:
        with pytest.raises(ConfigError, match="58 tokens of layer 'block' do not make a square"):
            GradCAM(Tokens(9), "block").generate_cam(images())

    def test_no_positions(self) -> None:
        with pytest.raises(ConfigError, match=r"layer '10' gives the shape \(4, 16\), without positions"):
            GradCAM(cnn().eval(), "10").generate_cam(images())

    def test_layer_that_returns_a_structure(self) -> None:
        @dataclass
        class Result:
            maps: Tensor
            note: str

        class Net(nn.Module):
            def __init__(self, wrap: Callable[[Tensor], Any], read: Callable[[Any], Tensor]) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.inner = Wrapped(nn.Conv2d(3, 4, 3), wrap)
                self.fc, self.read = nn.Linear(4, 2), read

            def forward(self, x: Tensor) -> Tensor:
                return self.fc(self.read(self.inner(x)).relu_().mean((2, 3)))

        x = images()
        expected = GradCAM(Net(lambda t: t, lambda r: r), "inner").generate_cam(x, 1)
        for wrap, read in [
            (lambda t: (None, t), lambda r: r[1]),
            (lambda t: {"a": 1, "b": [t]}, lambda r: r["b"][0]),
            (lambda t: Result(t, "note"), lambda r: r.maps),
        ]:
            assert torch.allclose(GradCAM(Net(wrap, read), "inner").generate_cam(x, 1), expected, atol=1e-6)


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.inner(x))


class Tokens(nn.Module):
    """A patch embedding with ``prefix`` further tokens in front, and a head that reads the mean."""

    def __init__(self, prefix: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, 12, 2, stride=2)
        self.extra = nn.Parameter(torch.randn(1, prefix, 12))
        self.block = nn.Sequential(nn.Linear(12, 12), nn.GELU())
        self.mix = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
        self.head = nn.Linear(12, 4)

    def embed(self, x: Tensor) -> Tensor:
        return torch.cat((self.extra.expand(len(x), -1, -1), self.patch(x).flatten(2).transpose(1, 2)), 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.block(self.embed(x))).mean(1))


class Scored(nn.Module):
    """A convolution whose pooled channels become the output in any form."""

    def __init__(self, form: Callable[[Tensor], Any], channels: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.form = nn.Conv2d(3, channels, 3), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.conv(x))


def pooled(t: Tensor) -> Tensor:
    return t.tanh().mean((2, 3))


class TestScores:
    @pytest.mark.parametrize(
        "form",
        [
            lambda t: {"loss": t.sum(), "logits": pooled(t)},
            lambda t: (pooled(t),),
            lambda t: [t.sum(), pooled(t), pooled(t) * 2],
            lambda t: {"features": t, "scores": pooled(t)},
        ],
    )
    def test_found_in_a_structure(self, form: Callable[[Tensor], Any]) -> None:
        x = images()
        expected = GradCAM(Scored(pooled), "conv").explain(x)
        found = GradCAM(Scored(form), "conv").explain(x)
        assert torch.allclose(found.cam, expected.cam, atol=1e-6)
        assert found.target_class == expected.target_class

    def test_found_in_a_model_output(self) -> None:
        outputs = pytest.importorskip("transformers.modeling_outputs")
        net = Scored(lambda t: outputs.ImageClassifierOutput(loss=t.sum(), logits=pooled(t), hidden_states=(t,)))
        assert torch.allclose(
            GradCAM(net, "conv").generate_cam(images()), GradCAM(Scored(pooled), "conv").generate_cam(images())
        )

    def test_not_found(self) -> None:
        with pytest.raises(EndoscopeError, match=r"no scores found .* a list with tensors of the shapes"):
            GradCAM(Scored(lambda t: [t, t]), "conv").generate_cam(images())
        with pytest.raises(EndoscopeError, match=r"no scores found .* shapes \[\]"):
            GradCAM(Scored(lambda t: "text"), "conv").generate_cam(images())

    def test_dense_scores_are_summed_over_positions(self) -> None:
        x = images()
        dense = GradCAM(Scored(lambda t: t.tanh()), "conv").explain(x)
        flat = GradCAM(Scored(lambda t: t.tanh().sum((2, 3))), "conv").explain(x)
        assert dense.target_class == flat.target_class
        assert torch.allclose(dense.cam, flat.cam, rtol=1e-5)

    @pytest.mark.parametrize("form", [lambda t: pooled(t)[:, 0], lambda t: pooled(t)[:, :1]], ids=["(B,)", "(B, 1)"])
    def test_a_single_score_is_explained_itself(self, form: Callable[[Tensor], Tensor]) -> None:
        x = images()
        expected = GradCAM(Scored(pooled), "conv").generate_cam(x, 0)
        found = GradCAM(Scored(form), "conv").explain(x)
        assert found.target_class == [0] * 4
        assert torch.allclose(found.cam, expected)
        with pytest.raises(ConfigError, match="target_class is 1, but the model scores 1 classes"):
            GradCAM(Scored(form), "conv").explain(x, 1)

    def test_scores_without_their_batch_of_one(self) -> None:
        x = images(1)
        found = GradCAM(Scored(lambda t: pooled(t)[0]), "conv").explain(x)
        expected = GradCAM(Scored(pooled), "conv").explain(x)
        assert found.target_class == expected.target_class
        assert torch.allclose(found.cam, expected.cam)

    def test_rows_that_are_no_batch(self) -> None:
        with pytest.raises(EndoscopeError, match=r"shape \(8, 4\), but layer 'conv' gives 4 rows"):
            GradCAM(Scored(lambda t: pooled(t).repeat(2, 1)), "conv").generate_cam(images())

    @pytest.mark.parametrize("target", [-1, 6, [0, 1], [0, 1, 2, 9], 1.5, "cat", torch.tensor([0.5] * 4)], ids=str)
    def test_impossible_targets(self, target: Any) -> None:
        with pytest.raises(ConfigError, match="target_class"):
            GradCAM(cnn().eval(), "6").generate_cam(images(), target)

    def test_numpy_and_scalar_tensor_targets(self) -> None:
        cam = GradCAM(cnn().eval(), "6")
        expected = cam.generate_cam(images(), 3)
        for target in (np.int64(3), torch.tensor(3), (3, 3, 3, 3)):
            assert torch.equal(cam.generate_cam(images(), target), expected)


class TestInputs:
    def test_each_way_to_call(self) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.conv = nn.Conv2d(3, 4, 3)

            def forward(self, image: Tensor, scale: Tensor) -> Tensor:
                return pooled(self.conv(image)) * scale

        class Mapped(Two):
            def forward(self, inputs: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
                return super().forward(**inputs)

        class Listed(Two):
            def forward(self, inputs: list[Tensor]) -> Tensor:  # type: ignore[override]
                return super().forward(*inputs)

        class Open(Two):
            def forward(self, **inputs: Tensor) -> Tensor:  # type: ignore[override]
                return super().forward(**inputs)

        class Star(Two):
            def forward(self, *inputs: Tensor) -> Tensor:  # type: ignore[override]
                return super().forward(*inputs)

        x, scale = images(), torch.tensor(2.0)
        by_name = {"image": x, "scale": scale}
        expected = GradCAM(Two(), "conv").generate_cam(by_name, 1)
        assert expected.max() > 0
        for net, inputs in [
            (Two(), [x, scale]), (Two(), (x, scale)), (Mapped(), by_name), (Listed(), [x, scale]), (Open(), by_name),
            (Star(), (x, scale)),
        ]:  # fmt: skip
            assert torch.equal(GradCAM(net, "conv").generate_cam(inputs, 1), expected)

    def test_inputs_are_not_changed(self) -> None:
        x = images().requires_grad_()
        before = x.detach().clone()
        GradCAM(cnn(inplace=True).eval(), "6").generate_cam(x)
        assert torch.equal(x.detach(), before)
        assert x.grad is None


class TestModes:
    @pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode, torch.enable_grad])
    def test_under_any_mode_of_the_caller(self, mode: Any) -> None:
        model = cnn().eval()
        expected = GradCAM(model, "6").generate_cam(images(), 2)
        with mode():
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            cam = GradCAM(model, "6").generate_cam(images(), 2)
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert torch.equal(cam, expected)

    def test_input_of_inference_mode_that_is_used_above_the_layer(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 3, 3, padding=1)

            def forward(self, x: Tensor) -> Tensor:
                return (self.conv(x) * x).mean((2, 3))

        torch.manual_seed(0)
        net = Net()
        with torch.inference_mode():
            cam = GradCAM(net, "conv").generate_cam(images() * 1.0, 1)
        assert torch.equal(cam, GradCAM(net, "conv").generate_cam(images(), 1))

    def test_frozen_parameters(self) -> None:
        expected = GradCAM(cnn().eval(), "6").generate_cam(images(), 2)
        assert torch.equal(GradCAM(cnn().eval().requires_grad_(False), "6").generate_cam(images(), 2), expected)


class TestRefusals:
    def test_unknown_layer(self) -> None:
        with pytest.raises(LayerNotFoundError, match="no layer is called '66'"):
            GradCAM(cnn(), "66")

    def test_layer_that_does_not_run(self) -> None:
        model = cnn().eval()
        model[6].aside = nn.Conv2d(1, 1, 1)
        with pytest.raises(EndoscopeError, match=r"layer '6\.aside' did not run"):
            GradCAM(model, "6.aside").generate_cam(images())

    @pytest.mark.parametrize(
        "form", [lambda t: pooled(t.detach()), lambda t: torch.ones(4, 2), lambda t: (t > 0).float().mean((2, 3))]
    )
    def test_layer_without_influence(self, form: Callable[[Tensor], Tensor]) -> None:
        with pytest.raises(EndoscopeError, match="layer 'conv' does not influence the score"):
            GradCAM(Scored(form), "conv").generate_cam(images())

    def test_layer_beside_the_way_to_the_score(self) -> None:
        class Beside(Scored):
            def __init__(self) -> None:
                super().__init__(pooled)
                self.other = nn.Conv2d(3, 4, 3)

            def forward(self, x: Tensor) -> Tensor:
                self.other(x)
                return pooled(self.conv(x))

        with pytest.raises(EndoscopeError, match="layer 'other' does not influence the score"):
            GradCAM(Beside(), "other").generate_cam(images())

    @pytest.mark.parametrize(("wrap", "what"), [(lambda t: "text", "no tensor"), (lambda t: t.int(), "torch.int32")])
    def test_layer_without_activations(self, wrap: Callable[[Tensor], Any], what: str) -> None:
        net = nn.Sequential(Wrapped(nn.Conv2d(3, 4, 3), wrap))
        with pytest.raises(ConfigError, match=f"layer '0' gives {what}"):
            GradCAM(net, "0").generate_cam(images())


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


class TestLeaks:
    def test_nothing_is_kept(self) -> None:
        model, x = cnn(inplace=True).eval(), images(1)
        cam = GradCAM(model, "6")
        cam.generate_cam(x)
        before = live_tensors()
        for _ in range(300):
            cam.generate_cam(x)
        assert live_tensors() <= before
        assert not any(m._forward_hooks for m in model.modules())

    def test_keeping_would_be_seen(self) -> None:
        cam, x = GradCAM(cnn().eval(), "6"), images(1)
        before = live_tensors()
        kept = [cam.generate_cam(x) for _ in range(5)]
        assert live_tensors() >= before + len(kept)


@pytest.fixture(autouse=True)
def _same_generators() -> Iterator[None]:
    with torch.random.fork_rng():
        yield
