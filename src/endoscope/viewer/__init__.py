"""The eval viewer: a local web page over the folders of runs. Reads; needs neither the model nor the user's code.

>>> from endoscope.viewer import Renderer, display_debug_outputs, register

The names below are for notebooks and for renderers of your own; `endoscope.render` owns those of renderers. They are
imported on first use, so that only `Server` needs the web server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from endoscope.pages.reader import load_debug_outputs
    from endoscope.render import About, Numbers, Picture, Renderer, View, register, unregister
    from endoscope.report.notebook import display_debug_outputs, run_html
    from endoscope.viewer.serve import Server

__all__ = [
    "About",
    "Numbers",
    "Picture",
    "Renderer",
    "Server",
    "View",
    "display_debug_outputs",
    "load_debug_outputs",
    "register",
    "run_html",
    "unregister",
]

_MODULE_OF = {
    "Server": "endoscope.viewer.serve",
    "display_debug_outputs": "endoscope.report.notebook",
    "load_debug_outputs": "endoscope.pages.reader",
    "run_html": "endoscope.report.notebook",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'endoscope.viewer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF.get(name, "endoscope.render")), name)
    globals()[name] = value  # the next access is a plain lookup
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
