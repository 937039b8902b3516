"""The exceptions. Each also inherits the builtin that callers expect, so that ``except KeyError`` works."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EndoscopeError(Exception):
    """Every error that Endoscope raises on purpose."""

    def __str__(self) -> str:
        # KeyError would show repr(message), with quotes and escapes around the sentence.
        return str(self.args[0]) if self.args else ""


class ConfigError(EndoscopeError, ValueError):
    """An invalid setting; raised before anything runs."""


class LayerNotFoundError(ConfigError, KeyError):
    """No layer of the model has that name."""


class DatapointError(EndoscopeError, ValueError):
    """The datapoint has no usable ``meta_info.idx``."""


class DebuggerError(EndoscopeError, RuntimeError):
    """A debugger raised and the user asked for ``on_error="raise"``."""


class PageError(EndoscopeError, OSError):
    """A file or folder of pages cannot be used."""


class FolderInUseError(PageError, FileExistsError):
    """The folder already holds pages of another capture."""


class PageFormatError(PageError, ValueError):
    """The file is not a page, is truncated beyond use, or comes from a newer version."""


class DamagedRecordError(PageError, ValueError):
    """The bytes of a record changed after it was written."""


class UntrustedPickleError(PageError, PermissionError):
    """A pickle page can run code when it is opened, and the caller did not trust it."""


class DatapointNotFoundError(EndoscopeError, KeyError):
    """The run has no such datapoint, or no value of that debugger for it."""


def closest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """The nearest spellings, as the end of a message; empty when nothing is near.

    >>> closest("layr4", ["layer4", "head"])
    "; closest: 'layer4'"
    """
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)
    return "; closest: " + ", ".join(map(repr, near)) if near else ""
