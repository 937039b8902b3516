"""Re-exports `endoscope.debuggers.forward_debugger.ForwardDebugger`."""

from endoscope.debuggers.forward_debugger import ForwardDebugger

__all__ = ["ForwardDebugger"]
