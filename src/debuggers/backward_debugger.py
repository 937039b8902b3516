"""Re-exports `endoscope.debuggers.backward_debugger.BackwardDebugger`."""

from endoscope.debuggers.backward_debugger import BackwardDebugger

__all__ = ["BackwardDebugger"]
