from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tests.explain.pictures import cnn, images
from torch import Tensor, nn

from endoscope.errors import ConfigError
from endoscope.explain import GradCAM


def refuse(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("compiled after all")


class Restless(nn.Module):
    """Everything that a forward may change: buffers in place and by name, flags, generators, gradients' bookkeeping."""

    def __init__(self, *, fail: bool = False) -> None:
        super().__init__()
        self.net = cnn(dropout=0.5)
        self.norm = nn.utils.spectral_norm(nn.Linear(6, 6))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("ema", torch.full((3,), float("nan")))
        self.register_buffer("nothing", None)
        self.steps = 0
        self.fail = fail

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.ema.data.fill_(x.mean().item())
        self.nothing = torch.ones(1)
        self.register_buffer("late", torch.zeros(1))
        self.steps += 1
        self.seen = x
        torch.rand(1)
        if self.training:
            random.random(), np.random.rand()
        out = self.norm(self.net(x))
        self.net[0].train(not self.net[0].training)
        if self.fail:
            raise RuntimeError("the user's own error")
        return out


def state(model: nn.Module) -> dict[str, Any]:
    """All that must be the same afterwards, bit for bit."""
    return {
        "weights": [p.detach().numpy().tobytes() for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.numpy().tobytes() for p in model.parameters()],
        "versions": [p._version for p in model.parameters()],
        "buffers": {n: (id(b), b.detach().numpy().tobytes(), b._version) for n, b in model.named_buffers()},
        "flags": [m.training for m in model.modules()],
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": (np.random.get_state()[1].tolist(), np.random.get_state()[2]),
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_cache_enabled(),
        "hooks": [
            (id(hooks), list(hooks.items()))
            for m in model.modules()
            for hooks in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
        ],
        "attributes": [{name: id(value) for name, value in vars(m).items()} for m in model.modules()],
    }


def with_gradients(model: nn.Module) -> nn.Module:
    for j, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, j)
    return model


class TestInnocence:
    @pytest.mark.parametrize("train", [True, False])
    def test_nothing_changes(self, train: bool) -> None:
        model = with_gradients(Restless()).train(train)
        model.net[5].train(not train)
        model.net[6].register_forward_hook(lambda m, i, o: None)
        before = state(model)
        cam = GradCAM(model, "net.6").generate_cam(images())
        assert cam.abs().sum() > 0
        after = state(model)
        assert {k for k in before if before[k] != after[k]} == set()

    def test_a_plain_forward_changes_it(self) -> None:
        model = with_gradients(Restless())
        before = state(model)
        model(images()).sum().backward()
        after = state(model)
        changed = {k for k in before if before[k] != after[k]}
        assert {"buffers", "grads", "flags", "torch", "random", "numpy", "attributes"} <= changed

    def test_an_error_in_the_forward_restores_all(self) -> None:
        model = with_gradients(Restless(fail=True))
        before = state(model)
        for layer in ("net.6", "net.0"):
            with pytest.raises(RuntimeError, match="the user's own error"):
                GradCAM(model, layer).generate_cam(images())
        after = state(model)
        assert {k for k in before if before[k] != after[k]} == set()

    def test_an_error_of_ours_restores_all(self) -> None:
        model = with_gradients(Restless())
        before = state(model)
        with pytest.raises(ConfigError):
            GradCAM(model, "net.6").generate_cam(images(), 99)
        assert before == state(model)

    def test_a_backward_pass_under_way_is_not_disturbed(self) -> None:
        x = images()
        gradients = []
        for explain in (True, False):
            model = cnn()
            loss = model(x).square().sum()
            if explain:
                GradCAM(model, "3").generate_cam(x)
            loss.backward()
            gradients.append([p.grad for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))

    def test_a_loss_kept_in_an_attribute_keeps_its_gradient(self) -> None:
        class Mixture(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)

            def forward(self, x: Tensor) -> Tensor:
                maps = self.conv(x)
                self.aux_loss = maps.square().mean()
                return maps.mean((2, 3))

        net = Mixture()
        net(images())
        GradCAM(net, "conv").generate_cam(images())
        net.aux_loss.backward()
        assert net.conv.weight.grad is not None

    def test_shared_buffers_stay_shared(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 3, 1)
                self.one, self.two = nn.Module(), nn.Module()
                shared = torch.zeros(1)
                self.one.register_buffer("seen", shared)
                self.two.register_buffer("seen", shared)

            def forward(self, x: Tensor) -> Tensor:
                self.one.seen += 1
                return self.conv(x).mean((2, 3)) * self.two.seen

        net = Twice()
        assert GradCAM(net, "conv").generate_cam(images(), 0).isfinite().all()
        assert net.one.seen is net.two.seen
        assert net.one.seen.item() == 0


class TestHooks:
    def test_the_users_hooks_do_not_fire_and_stay(self, fired: list[str]) -> None:
        model = cnn().eval()
        model[6].register_forward_hook(lambda m, i, o: fired.append("forward"))
        model[6].register_forward_pre_hook(lambda m, i: fired.append("pre"))
        model[8].register_full_backward_hook(lambda m, i, o: fired.append("backward"))
        model[8].register_full_backward_pre_hook(lambda m, o: fired.append("backward pre"))
        model[3].register_forward_hook(lambda m, i, k, o: fired.append("kwargs"), with_kwargs=True, always_call=True)
        GradCAM(model, "6").generate_cam(images())
        assert fired == []
        model(images()).sum().backward()
        assert sorted(fired) == ["backward", "backward pre", "forward", "kwargs", "pre"]

    def test_they_fire_when_asked_to(self, fired: list[str]) -> None:
        model = cnn().eval()
        model[6].register_forward_hook(lambda m, i, o: fired.append("forward"))
        model[8].register_full_backward_hook(lambda m, i, o: fired.append("backward"))
        before = list(model[6]._forward_hooks)
        GradCAM(model, "6", run_hooks=True).generate_cam(images())
        assert fired == ["forward", "backward"]
        assert list(model[6]._forward_hooks) == before

    def test_a_hook_that_changes_the_output(self) -> None:
        model, x = cnn().eval(), images()
        model[6].register_forward_hook(lambda m, i, o: o * 0)
        assert GradCAM(model, "6").generate_cam(x, 2).abs().sum() > 0
        assert GradCAM(model, "6", run_hooks=True).generate_cam(x, 2).abs().sum() == 0

    def test_global_hooks(self, fired: list[str]) -> None:
        model = cnn().eval()
        handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: fired.append("global"))
        try:
            GradCAM(model, "6").generate_cam(images())
            assert fired == []
            model(images())
            assert fired
        finally:
            handle.remove()

    def test_torchs_own_hooks_run(self) -> None:
        x = images()
        model = cnn().eval()
        nn.utils.prune.l1_unstructured(model[6], "weight", amount=0.5)
        expected = GradCAM(model, "6").generate_cam(x, 2)
        with torch.no_grad():
            model[6].weight_orig.mul_(2)  # reaches the weight only by the pruning hook
            model[6].bias.mul_(2)
        pruned = model[6].weight
        found = GradCAM(model, "6").generate_cam(x, 2)
        assert model[6].weight is pruned
        assert not torch.allclose(found, expected)
        assert torch.allclose(found, GradCAM(model, "6", run_hooks=True).generate_cam(x, 2))

    def test_a_pruning_method_of_the_user_runs(self) -> None:
        class Half(nn.utils.prune.BasePruningMethod):
            PRUNING_TYPE = "unstructured"

            def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
                return default_mask * (torch.arange(t.numel()).view_as(t) % 2)

        model, x = cnn().eval(), images()
        Half.apply(model[6], "weight")
        expected = GradCAM(model, "6").generate_cam(x, 2)
        with torch.no_grad():
            model[6].weight_orig.zero_()
        assert not torch.allclose(GradCAM(model, "6").generate_cam(x, 2), expected)

    def test_removing_a_hook_meanwhile(self) -> None:
        model = cnn().eval()
        handle = model[0].register_forward_hook(lambda m, i, o: None)
        model.add_module("drop", Dropping(handle))
        GradCAM(model, "6").generate_cam(images())
        assert not model[0]._forward_hooks


class Dropping(nn.Module):
    def __init__(self, handle: Any) -> None:
        super().__init__()
        self.handle = [handle]

    def forward(self, x: Tensor) -> Tensor:
        self.handle[0].remove()
        return x


class Compilable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = cnn().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * 2


class TestCompiledAndCast:
    @pytest.mark.parametrize("wrap", ["DataParallel", "compile()", "compile", "compile() inside", "compile inside"])
    def test_wrapped_and_compiled_models(self, wrap: str) -> None:
        x = images()
        expected = GradCAM(Compilable(), "net.6").generate_cam(x, 2)
        model: Any = Compilable()
        if wrap == "DataParallel":
            model = nn.DataParallel(model)
        elif wrap == "compile()":
            model.compile(backend=refuse)
        elif wrap == "compile":
            model = torch.compile(model, backend=refuse)
        elif wrap == "compile() inside":
            model = nn.Sequential(model)
            model[0].compile(backend=refuse)
        else:
            model = nn.Sequential(torch.compile(model, backend=refuse))
        layer = "0.net.6" if "inside" in wrap else "net.6"
        assert torch.equal(GradCAM(model, layer).generate_cam(x, 2), expected)
        if wrap != "DataParallel":  # its own forward is compiled as before
            with pytest.raises(Exception, match="compiled after all"):
                model(x)

    def test_autocast_does_not_keep_weights_without_gradient(self) -> None:
        # Torch before https://github.com/pytorch/pytorch/pull/165068 would.
        model, x = cnn().eval(), images()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            GradCAM(model, "6").generate_cam(x)
            model(x).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        assert torch.is_autocast_cache_enabled()


@pytest.fixture
def fired() -> list[str]:
    return []
