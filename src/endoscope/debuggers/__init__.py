"""Debuggers: the three base classes, the wrapper that runs them, and the ready-made ones."""

from endoscope.debuggers.activation_stats import ActivationStatsDebugger
from endoscope.debuggers.attention import AttentionDebugger
from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.debuggers.feature_map import FeatureMapDebugger
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.debuggers.gradcam import GradCAMDebugger
from endoscope.debuggers.gradient_stats import GradientStatsDebugger
from endoscope.debuggers.layer_output import LayerOutputDebugger
from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger

__all__ = [
    "ActivationStatsDebugger",
    "AttentionDebugger",
    "BackwardDebugger",
    "BaseDebugger",
    "FeatureMapDebugger",
    "ForwardDebugger",
    "GradCAMDebugger",
    "GradientStatsDebugger",
    "LayerOutputDebugger",
    "SequentialDebugger",
]
