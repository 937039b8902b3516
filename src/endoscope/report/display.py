"""Earlier name, until every import is changed: `endoscope.report.notebook` owns it."""

from endoscope.report.notebook import display_debug_outputs

__all__ = ["display_debug_outputs"]
