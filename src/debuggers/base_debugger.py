"""Re-exports `endoscope.debuggers.base_debugger.BaseDebugger`."""

from endoscope.debuggers.base_debugger import BaseDebugger

__all__ = ["BaseDebugger"]
