"""GradCAMDebugger: where a layer found evidence for a class. Runs after the forward, on the thread of the loop."""

from __future__ import annotations

from typing import Any

import torch

from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.errors import ConfigError
from endoscope.explain.gradcam import GradCAM
from endoscope.statistics import datapoint_shape, summarize
from endoscope.values import per_datapoint


class GradCAMDebugger(BaseDebugger):
    """Compute the Grad-CAM of ``target_layer`` for ``target_class``, or for the class with the highest score.

    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    >>> result = GradCAMDebugger("0", target_class=2)({"inputs": torch.zeros(1, 3, 6, 6)}, net)
    >>> tuple(result["gradcam"].shape), result["target_class"]
    ((1, 4, 4), 2)

    It runs the model again on ``datapoint["inputs"]`` without a trace; see `endoscope.explain.GradCAM`.
    ``target_class`` is the class that was explained.
    """

    uses_random = False

    def __init__(self, target_layer: str, target_class: int | None = None) -> None:
        if target_class is not None and (type(target_class) is not int or target_class < 0):
            raise ConfigError(f"target_class is {target_class!r}; it must be a class index, or None for the highest")
        self.target_layer = target_layer
        self.target_class = target_class

    def check(self, model: torch.nn.Module) -> None:
        """Raise `LayerNotFoundError` if the model has no such layer."""
        GradCAM(model, self.target_layer)

    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
        if datapoint.get("inputs") is None:
            return {"error": "The datapoint has no 'inputs' to run the model on"}
        result = GradCAM(model, self.target_layer).explain(datapoint["inputs"], self.target_class)
        summary = summarize(result.cam)
        return {
            "gradcam": result.cam,
            "target_layer": self.target_layer,
            "target_class": per_datapoint(result.target_class),
            "gradcam_stats": {
                "mean": per_datapoint(summary["mean"]),
                "std": per_datapoint(summary["std"]),
                "shape": datapoint_shape(result.cam),
                "non_finite": per_datapoint(summary["non_finite"]),
            },
        }
