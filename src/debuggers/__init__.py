"""The debuggers under their short import path: ``from debuggers.forward_debugger import ForwardDebugger``.

Everything here is re-exported from `endoscope.debuggers`; nothing is defined here.
"""

from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger

__all__ = ["BackwardDebugger", "BaseDebugger", "ForwardDebugger", "SequentialDebugger"]
