"""Re-exports `endoscope.debuggers.wrappers.sequential_debugger.SequentialDebugger`."""

from endoscope.debuggers.wrappers.sequential_debugger import SequentialDebugger

__all__ = ["SequentialDebugger"]
