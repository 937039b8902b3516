"""What is looked at while the transformer is validated and evaluated."""

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
