"""Converting pickle pages. Only ``endoscope pages import`` opens a pickle."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path

from endoscope.commands.captures import reading
from endoscope.errors import EndoscopeError, PageError, PageFormatError
from endoscope.pages import pickle_pages
from endoscope.pages.folders import page_files, prepare_folder
from endoscope.pages.reader import debugger_folder

DANGER = "opening a pickle can run any code that its author put into it"

# What unpickling raises for a damaged file, and for one that needs modules that are not installed.
_UNREADABLE = (pickle.UnpicklingError, zlib.error, AttributeError, EOFError, ImportError, LookupError, OSError,
               RuntimeError, TypeError, ValueError)  # fmt: skip


def pickle_folder(directory: Path) -> Path:
    """The folder with pickle pages: ``directory`` itself, or its ``debugger/``."""
    with reading(directory):
        folder = debugger_folder(directory)
        if not any(f.suffix == ".pkl" for f in page_files(folder)):
            raise PageError(f"no pickle pages (page_0.pkl, ...) in {str(folder)!r}")
    return folder


def convert_pages(source: Path, target: Path) -> str:
    """Convert trusted pages; returns a summary as text."""
    pickle_pages.joblib()  # if it is missing, fail before creating the folder
    prepare_folder(target, rank=None)
    try:
        datapoints = pickle_pages.convert(source, target)
    except EndoscopeError:
        raise
    except _UNREADABLE as e:
        raise PageFormatError(f"a pickle page in {str(source)!r} cannot be opened: {type(e).__name__}: {e}") from e
    pages = sum(f.suffix == ".safetensors" for f in page_files(target))
    return f"converted into {target}: datapoints {datapoints}, pages {pages}"
