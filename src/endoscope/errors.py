"""The exception tree.

    EndoscopeError
    ├── ConfigError (ValueError)          a setting that cannot work, found before the first step
    │   └── LayerNotFoundError (KeyError)   no layer has that name
    ├── DatapointError (ValueError)       a datapoint without a usable ``meta_info.idx``
    ├── DebuggerError (RuntimeError)      a debugger raised, and ``on_error="raise"``
    ├── PageError (OSError)               something on disk cannot be used
    │   ├── FolderInUseError (FileExistsError)  the folder already holds pages
    │   ├── PageFormatError (ValueError)    not a page, or written by a newer version
    │   ├── DamagedRecordError (ValueError)  one record's bytes are not what was written
    │   └── UntrustedPickleError (PermissionError)  a pickle page, and nobody said that it is trusted
    └── DatapointNotFoundError (KeyError)  the run holds no such datapoint, or no such debugger for it

Each class also inherits the builtin that callers would expect, so that ``except KeyError`` works.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EndoscopeError(Exception):
    """Every error that Endoscope raises on purpose."""

    def __str__(self) -> str:
        # KeyError would show repr(message): quotes and escapes round a sentence meant for a person.
        return str(self.args[0]) if self.args else ""


class ConfigError(EndoscopeError, ValueError):
    """A setting that cannot work; raised before anything runs."""


class LayerNotFoundError(ConfigError, KeyError):
    """No layer of the model has that name."""


class DatapointError(EndoscopeError, ValueError):
    """The datapoint has no usable ``meta_info.idx``."""


class DebuggerError(EndoscopeError, RuntimeError):
    """A debugger raised and the user asked for ``on_error="raise"``."""


class PageError(EndoscopeError, OSError):
    """Something on disk cannot be used."""


class FolderInUseError(PageError, FileExistsError):
    """The folder already holds pages of another capture."""


class PageFormatError(PageError, ValueError):
    """The file is not a page, is truncated beyond use, or comes from a newer version."""


class DamagedRecordError(PageError, ValueError):
    """A record's bytes are not the ones that were written."""


class UntrustedPickleError(PageError, PermissionError):
    """A pickle page may run code when opened, and nobody said that it is trusted."""


class DatapointNotFoundError(EndoscopeError, KeyError):
    """The run holds no such datapoint, or no such debugger for it."""


def closest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """The nearest spellings, ready to be put at the end of a message; empty when nothing is near.

    >>> closest("layr4", ["layer4", "head"])
    "; closest: 'layer4'"
    """
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)
    return "; closest: " + ", ".join(map(repr, near)) if near else ""
