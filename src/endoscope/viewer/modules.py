"""Modules: which of our JavaScript files a page imports, so that a browser asks for all of them at once.

Left to itself it learns of each file from the one that imports it, and waits for an answer at every step.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

_IMPORT = re.compile(r"""^(?:import|export)\b[^;"']*["'](\.{1,2}/[^"']+)["']""", re.MULTILINE)


def imported(files: Mapping[str, Path], *names: str) -> list[str]:
    """Files by their names under /static/, with all that they import.

    >>> imported(static_files(), "main.js", "screens/map.js")
    ['main.js', 'screens/map.js', 'api.js', ...]
    """
    found = list(names)
    for name in found:  # which grows
        for other in _IMPORT.findall(files[name].read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), other))
            if path in files and path not in found:
                found.append(path)
    return found
