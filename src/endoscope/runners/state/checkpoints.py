"""Checkpoints: what a run goes on from. A file named checkpoint.pt is whole, whatever happened while it was written."""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from endoscope.errors import ConfigError, EndoscopeError
from endoscope.runs.atomic import replacing
from endoscope.runs.layout import CHECKPOINT, epoch_folders
from endoscope.values import apply_tensor_op

FORMAT = "endoscope-checkpoint"
VERSION = 1


class CheckpointError(EndoscopeError, OSError):
    """A checkpoint that cannot be written or read, or does not fit the model."""


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` so that the file is there whole or not at all, and survives a loss of power."""
    try:
        with replacing(path) as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
    except (OSError, RuntimeError) as e:
        # Where a file cannot be written, torch raises an error of its own in place of the disk's.
        disk = e if isinstance(e, OSError) else e.__context__
        if not isinstance(disk, OSError):
            raise
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be written: {disk.strerror or disk}") from e


def load_checkpoint(path: Path | str, *, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without running anything that it may hold (``weights_only=True``).

    A file of another tool is taken as a plain state dict: ``{"model": ...}``.
    """
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {str(path)!r}") from None
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as e:
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be read: {_reason(e)}") from e
    if not isinstance(found, dict):
        raise CheckpointError(f"the checkpoint {str(path)!r} holds a {type(found).__name__}, not a dict")
    if found.get("format") != FORMAT:
        return found if isinstance(found.get("model"), dict) else {"model": found.get("state_dict", found)}
    if found.get("version", 0) > VERSION:
        raise CheckpointError(f"the checkpoint {str(path)!r} comes from a newer Endoscope; update to read it")
    return found


def load_weights(model: torch.nn.Module, state: Mapping[str, Any], path: Path | str) -> None:
    """Load a state dict into a model; what does not fit is named."""
    try:
        model.load_state_dict(state)
    except RuntimeError as e:
        found = [line.strip() for line in str(e).splitlines()]
        raise CheckpointError("\n  ".join([f"the checkpoint {str(path)!r} does not fit the model:", *found])) from e


def other_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that ``state_dict()`` leaves out (``persistent=False``): training may change them, too."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, part in module.named_modules()
        for name in sorted(part._non_persistent_buffers_set)
        if (buffer := part._buffers.get(name)) is not None
    }


def load_fitting_buffers(module: torch.nn.Module, found: Mapping[str, torch.Tensor]) -> None:
    """Put back what of `other_buffers` fits: a module that is evaluated may be built for another size, and is told of
    buffers that have another shape in it."""
    parts = dict(module.named_modules())
    for name, value in found.items():
        prefix, _, last = name.rpartition(".")
        part = parts.get(prefix)
        if part is None or last not in part._non_persistent_buffers_set:
            continue
        now = part._buffers.get(last)
        if now is None or now.shape == value.shape:
            load_other_buffers(module, {name: value})
        else:
            shapes = f"{tuple(value.shape)} in the checkpoint, and {tuple(now.shape)} here"
            warnings.warn(f"checkpoint: the buffer {name!r} is {shapes}; the model's own is used", stacklevel=2)


def load_other_buffers(module: torch.nn.Module, found: Mapping[str, torch.Tensor]) -> None:
    """Put back what `other_buffers` gave: in place where that can be, because other parts may share a buffer."""
    for name, value in found.items():
        prefix, _, last = name.rpartition(".")
        part = module.get_submodule(prefix)
        now = part._buffers.get(last)
        if now is None or now.shape != value.shape or now.dtype != value.dtype or 0 in now.stride():
            part.register_buffer(last, value, persistent=False)
        else:
            now.copy_(value)


def check_storable(name: str, state: Any) -> None:
    """Raise now what reading ``state`` back would raise after a kill: parts that are no plain data."""
    buffer = io.BytesIO()
    skeleton = apply_tensor_op(lambda t: torch.empty(0, dtype=t.dtype), state)
    try:
        torch.save(skeleton, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as e:
        raise ConfigError(
            f"{name}: its state_dict() holds more than tensors, numbers, text and containers, so that no checkpoint of "
            f"it could be loaded safely: {_reason(e)}"
        ) from e


def _reason(error: Exception) -> str:
    """What torch says in a line; of an object that is not loaded, its class, and not how to load it all the same."""
    found = re.search(r"(?:GLOBAL|type) ([\w.]+) was not an allowed global", str(error))
    if found:
        return f"it holds a {found[1]}"
    if "weights_only" in str(error):
        return "it is no checkpoint, or it is damaged"
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def latest_checkpoint(work_dir: Path, *, before: int | None = None) -> tuple[int, Path] | None:
    """The last epoch with a checkpoint, which is whole, and its file; if asked for, the last before another epoch."""
    whole = [
        (epoch, folder / CHECKPOINT)
        for epoch, folder in epoch_folders(work_dir).items()
        if (before is None or epoch < before) and (folder / CHECKPOINT).is_file()
    ]
    return whole[-1] if whole else None
