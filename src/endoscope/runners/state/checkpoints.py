"""Checkpoint files. A file named checkpoint.pt is always complete, because it is written atomically."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from endoscope.errors import ConfigError, EndoscopeError
from endoscope.runners.config.kinds import type_name
from endoscope.runs.atomic import replacing
from endoscope.runs.layout import CHECKPOINT, epoch_folders
from endoscope.values import apply_tensor_op

FORMAT = "endoscope-checkpoint"
VERSION = 1


class CheckpointError(EndoscopeError, OSError):
    """A checkpoint that cannot be written or read, or does not fit the model."""


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` atomically and synced to the disk."""
    try:
        with replacing(path) as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
    except (OSError, RuntimeError) as e:
        # If the file cannot be written, torch raises its own error in place of the disk's.
        cause = e if isinstance(e, OSError) else e.__context__
        if not isinstance(cause, OSError):
            raise
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be written: {cause.strerror or cause}") from e


def load_checkpoint(path: Path | str, *, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without running code from it (``weights_only=True``).

    A file of another tool is read as a plain state dict: ``{"model": ...}``.
    """
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {str(path)!r}") from None
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as e:
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be read: {_reason(e)}") from e
    if not isinstance(state, dict):
        raise CheckpointError(f"the checkpoint {str(path)!r} holds {type_name(state)}, not a dict")
    if state.get("format") != FORMAT:
        return state if isinstance(state.get("model"), dict) else {"model": state.get("state_dict", state)}
    if state.get("version", 0) > VERSION:
        raise CheckpointError(f"the checkpoint {str(path)!r} comes from a newer Endoscope; update to read it")
    return state


def load_weights(model: torch.nn.Module, state: Mapping[str, Any], path: Path | str) -> None:
    """Load a state dict into a model. The error lists everything that does not fit."""
    try:
        model.load_state_dict(state)
    except RuntimeError as e:
        lines = [line.strip() for line in str(e).splitlines()]
        raise CheckpointError("\n  ".join([f"the checkpoint {str(path)!r} does not fit the model:", *lines])) from e


def other_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that ``state_dict()`` omits (``persistent=False``); training may change them, too."""
    persistent = module.state_dict().keys()
    return {name: b for name, b in module.named_buffers(remove_duplicate=False) if name not in persistent}


def load_other_buffers(module: torch.nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Restore `other_buffers`: in place if possible, because other modules may share a buffer."""
    parts = dict(module.named_modules())
    for name, value in buffers.items():
        prefix, _, last = name.rpartition(".")
        if prefix not in parts:
            raise CheckpointError(f"the checkpoint has a buffer {name!r}, which the model does not have")
        current = getattr(parts[prefix], last, None)
        if current is None or current.shape != value.shape or current.dtype != value.dtype or 0 in current.stride():
            parts[prefix].register_buffer(last, value, persistent=False)
        else:
            current.copy_(value)


def has_place_for(module: torch.nn.Module, name: str, value: torch.Tensor) -> bool:
    """Whether a module has a buffer of that name, which is None or has the same shape."""
    prefix, _, last = name.rpartition(".")
    part = dict(module.named_modules()).get(prefix)
    current = getattr(part, last, None)
    return hasattr(part, last) and (current is None or current.shape == value.shape)


def check_storable(name: str, state: Any) -> None:
    """Raise `ConfigError` if a checkpoint of ``state`` could not be loaded: if parts of it are not plain data."""
    buffer = io.BytesIO()
    skeleton = apply_tensor_op(lambda t: torch.empty(0, dtype=t.dtype), state)
    try:
        torch.save(skeleton, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PicklingError, pickle.UnpicklingError, AttributeError, TypeError) as e:
        raise ConfigError(
            f"{name}: its state_dict() holds more than tensors, numbers, text and containers, so that a checkpoint of "
            f"it could not be loaded safely: {_reason(e)}"
        ) from e


def _reason(error: Exception) -> str:
    """torch's message in one line: the class of an object that is not loaded, but no advice how to load it anyway."""
    match = re.search(r"(?:GLOBAL|type) ([\w.]+) was not an allowed global", str(error))
    if match:
        return f"it holds a {match[1]}"
    if "weights_only" in str(error):
        return "it is not a checkpoint, or it is damaged"
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def latest_checkpoint(work_dir: Path, *, before: int | None = None) -> tuple[int, Path] | None:
    """The last epoch with a checkpoint and the file, or the last one before another epoch."""
    with_checkpoint = [
        (epoch, folder / CHECKPOINT)
        for epoch, folder in epoch_folders(work_dir).items()
        if (before is None or epoch < before) and (folder / CHECKPOINT).is_file()
    ]
    return with_checkpoint[-1] if with_checkpoint else None


def remove_checkpoints(work_dir: Path, *, before: int, keep: Collection[int]) -> None:
    """Remove the checkpoints of epochs before ``before``, except those to keep and those in linked folders."""
    for epoch, folder in epoch_folders(work_dir).items():
        if epoch < before and epoch not in keep and not folder.is_symlink():
            (folder / CHECKPOINT).unlink(missing_ok=True)
