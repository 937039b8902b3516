"""The debuggers for validation and evaluation of the transformer."""

from endoscope.debuggers import ActivationStatsDebugger, AttentionDebugger, SequentialDebugger

DEBUGGERS = [
    {
        "name": "attention",
        "debugger_config": {"class": AttentionDebugger, "args": {"layer_name": "blocks.*.attention"}},
    },
    {
        "name": "activations",
        "debugger_config": {"class": ActivationStatsDebugger, "args": {"layer_name": "blocks.*.mlp.1"}},
    },
]
DEBUGGER = {"class": SequentialDebugger, "args": {"debuggers_config": DEBUGGERS}}
