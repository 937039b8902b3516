"""The debuggers for validation and evaluation of the U-Net."""

from endoscope.debuggers import FeatureMapDebugger, GradCAMDebugger, LayerOutputDebugger, SequentialDebugger

DEBUGGERS = [
    {"name": "bottom", "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "bottom"}}},
    {"name": "way_up", "debugger_config": {"class": LayerOutputDebugger, "args": {"layer_name": "up?"}}},
    {
        "name": "triangle",
        "debugger_config": {"class": GradCAMDebugger, "args": {"target_layer": "up2", "target_class": 3}},
    },
]
DEBUGGER = {"class": SequentialDebugger, "args": {"debuggers_config": DEBUGGERS}}
