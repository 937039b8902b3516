"""The import path of `endoscope.runs.scores` for those who write runners and metrics of their own."""

from endoscope.runs.scores import *  # noqa: F403
from endoscope.runs.scores import __all__ as __all__
