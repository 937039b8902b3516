"""SequentialDebugger: runs several debuggers on each datapoint and streams what they return into pages."""

from __future__ import annotations

import logging
import os
import weakref
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from endoscope.capturing.guard import Failures, Guard, OnError
from endoscope.capturing.hooks import check_hooks
from endoscope.capturing.notes import Absence, Notes, Reason
from endoscope.capturing.session import Session
from endoscope.capturing.snapshot import Snapshot
from endoscope.debuggers.assembly import assemble
from endoscope.debuggers.attachments import attachment, draws_of
from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.debuggers.indices import datapoint_index
from endoscope.errors import ConfigError
from endoscope.pages.store import PageFormat, PageStore, StoreSettings
from endoscope.summaries import with_summaries
from endoscope.values import Summary

log = logging.getLogger("endoscope")


@dataclass(frozen=True)
class SaveReport:
    """What `save_all` saved, and what it could not."""

    folder: Path
    records: int
    dropped: int = 0
    lost: int = 0
    problem: str | None = None
    failures: Mapping[str, Failures] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not (self.dropped or self.lost or self.problem or self.failures)

    def __str__(self) -> str:
        text = [f"{self.records} records in {self.folder}"]
        if self.dropped:
            text.append(f"{self.dropped} dropped because the queue was full")
        if self.lost:
            text.append(f"{self.lost} lost because they could not be written")
        if self.problem:
            text.append(f"the first error was {self.problem}")
        return "; ".join(text + [f"debugger {name!r} {f}" for name, f in self.failures.items()])


class SequentialDebugger(BaseDebugger):
    """Runs debuggers on each datapoint; what they return goes to disk in pages, in bounded memory.

    >>> debugger = SequentialDebugger(
    ...     [{"name": "features",
    ...       "debugger_config": {"class": FeatureMapDebugger, "args": {"layer_name": "backbone.*"}}}],
    ...     model, output_dir="runs/cnn/epoch_4/debugger")
    >>> debugger.enabled = True                     # attaches the hooks; False removes them
    >>> for x, y, i in loader:
    ...     outputs = model(x)
    ...     captured = debugger({"inputs": x, "labels": y, "outputs": outputs, "meta_info": {"idx": i}}, model)
    >>> debugger.close()
    >>> endoscope.load_debug_outputs("runs/cnn/epoch_4")[17]["features/backbone.layer4"]["feature_map"]

    Pages stream into ``output_dir`` if it is known; otherwise they are spooled to disk and `save_all` moves them.

    debuggers_config: ``[{"name": ..., "debugger_config": {"class": ..., "args": {...}}}, ...]``.
    page_size_mb: the largest size of a page, in MiB of true bytes.
    output_dir: the folder for the pages; refused if it already holds some, unless ``overwrite``.
    queue_mb: memory for records that wait for the disk. When it is full, ``on_full="block"`` makes the loop wait and
        ``"drop"`` leaves records out and stores their number.
    on_error: ``"record"`` stores a debugger's exception with the datapoint, ``"raise"`` raises it as `DebuggerError`.
    page_format: ``"safetensors"``, or ``"pickle"`` for ``page_N.pkl``.
    spool_dir: where pages wait when no ``output_dir`` is given; the system's temporary folder by default.
    """

    def __init__(
        self,
        debuggers_config: Sequence[Mapping[str, Any]],
        model: torch.nn.Module,
        page_size_mb: float = 100,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        queue_mb: float = 256,
        on_full: Literal["block", "drop"] = "block",
        on_error: OnError = "record",
        page_format: PageFormat = "safetensors",
        spool_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_choice("on_full", on_full, ("block", "drop"))
        _check_choice("on_error", on_error, ("record", "raise"))
        _check_choice("page_format", page_format, ("safetensors", "pickle"))
        self.page_size = _megabytes("page_size_mb", page_size_mb)
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        self.model = model
        self.debuggers: dict[str, BaseDebugger] = assemble(debuggers_config, model)
        self.forward_debuggers = _by_layer(self.debuggers, ForwardDebugger)
        self.backward_debuggers = _by_layer(self.debuggers, BackwardDebugger)
        self._guard = Guard(on_error=on_error)
        kinds = (ForwardDebugger, BackwardDebugger)
        self._watching = {n: d for n, d in self.debuggers.items() if isinstance(d, kinds)}
        self._after = {n: d for n, d in self.debuggers.items() if n not in self._watching}
        if self._watching:
            check_hooks(model)
        self._session = Session(model, self._guard)
        settings = StoreSettings(
            self.page_size, _megabytes("queue_mb", queue_mb), on_full, page_format, overwrite, spool_dir
        )
        self._store = PageStore(output_dir, settings)
        self._enabled = self._closed = False
        self._warned: set[str] = set()

    # ---- switching on and off
    @property
    def enabled(self) -> bool:
        """Whether the hooks are attached. Setting it attaches or removes them; it starts as False."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if bool(value) == self._enabled:
            return
        if not value:
            self._session.remove()
            self._enabled = False
            return
        if self._closed:
            raise ConfigError("this debugger is closed; make a new one")
        if os.environ.get("ENDOSCOPE", "").lower() == "off":
            self._warn_once("ENDOSCOPE=off is set: nothing is captured")
            return
        notify = weakref.WeakMethod(self._model_is_compiled)  # the hooks must not keep a dropped debugger alive
        attachments = [attachment(name, debugger) for name, debugger in self._watching.items()]
        self._session.attach(attachments, lambda: (method := notify()) and method())
        self._enabled = True

    def _model_is_compiled(self) -> None:
        self._warn_once(
            "the model is compiled: it runs uncompiled while the debugger is enabled, "
            "because compiled code calls no new hooks"
        )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)

    # ---- a datapoint
    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Run every debugger on a datapoint (or batch) that the model has just seen; returns ``{name: outputs}``.

        The outputs are copies for the caller to keep or change. If the model is on CUDA, so are they. Statistics are
        mappings that are computed when they are first read; ``json.dumps`` needs ``dict(...)`` around them.
        """
        if not self._enabled:
            return {}
        idx = datapoint_index(datapoint)
        outputs, notes = self._session.take()
        with self._session.paused():
            for name, debugger in self._after.items():
                self._run(name, debugger, datapoint, self.model if model is None else model, outputs, notes)
        outputs = {name: outputs[name] for name in self.debuggers if name in outputs}
        self._warn_of_absent(notes)
        if not self._store.put(idx, outputs, notes.stored()) and self._store.foreign:
            self._warn_once("this process only inherited the debugger (fork): nothing is stored from it")
        try:
            return {name: _with_statistics(output.copy()) for name, output in outputs.items()}
        except torch.OutOfMemoryError as e:  # of the device; the record is stored
            self._warn_once(f"the outputs of a datapoint are stored, but not returned: {e}")
            return {}

    def _run(
        self,
        name: str,
        debugger: BaseDebugger,
        datapoint: dict[str, Any],
        model: torch.nn.Module,
        outputs: dict[str, Snapshot],
        notes: Notes,
    ) -> None:
        if (muted := self._guard.muted(name)) is not None:
            notes.absent[name] = muted
            return
        result = self._guard.call(name, debugger, datapoint, model, draws=draws_of(debugger))
        if isinstance(result, str):
            notes.failures[name] = result
        elif result.value is None:
            notes.absent[name] = Absence(Reason.NOTHING)
        else:
            outputs[name] = result

    def _warn_of_absent(self, notes: Notes) -> None:
        if self._watching and notes.no_hook_fired(self._watching):
            self._warn_once(
                "none of the watched layers ran for a datapoint: call the model first, on the same thread; a model "
                "that was compiled inside a function or a method calls no hooks"
            )
        if any(absence.reason is Reason.FUSED for absence in notes.absent.values()):
            self._warn_once(f"a watched layer was left out: {Reason.FUSED.value}")

    def add_to_buffer(self, debug_outputs: Mapping[str, Any], datapoint: dict[str, Any]) -> None:
        """Store outputs that were computed elsewhere, ``{name: outputs}``, for this datapoint; they are copied."""
        idx = datapoint_index(datapoint)
        outputs: dict[str, Snapshot] = {}
        notes = Notes()
        for name, value in debug_outputs.items():
            if not isinstance(name, str):
                raise ConfigError(f"debug_outputs must be by debugger name, found the key {name!r}")
            result = self._guard.call(name, lambda value=value: value, draws=False)
            if isinstance(result, str):
                notes.failures[name] = result
            else:
                outputs[name] = result
        self._store.put(idx, outputs, notes.stored())

    # ---- what is on disk
    def reset_buffer(self, output_dir: str | os.PathLike[str] | None = None, *, overwrite: bool | None = None) -> None:
        """Start a new capture: into ``output_dir``, else into the constructor's folder, else into a spool.

        Spooled records that were never saved are dropped. Pages already streamed into a folder stay there, closed.
        """
        self._store.reset(output_dir, overwrite=overwrite)

    def flush(self) -> bool:
        """Return when everything captured so far survives a kill of the process; False if some of it was lost."""
        return self._store.flush()

    def save_all(self, output_dir: str | os.PathLike[str], *, overwrite: bool | None = None) -> SaveReport:
        """Close the pages and move them to ``output_dir``. Failures, drops and losses are reported and logged."""
        folder, counts, problem = self._store.save_all(output_dir, overwrite=overwrite)
        failures = dict(self._guard.failures)
        for name, count in counts.failures.items():
            earlier = failures.get(name, Failures())
            last = "its value could not be stored; the notes of the record say why"
            failures[name] = Failures(earlier.count + count, earlier.in_a_row, last)
        report = SaveReport(folder, counts.written, counts.dropped, counts.lost, problem or counts.problem, failures)
        if not report.complete:
            log.warning("capture saved with gaps: %s", report)
        return report

    def close(self) -> None:
        """Remove the hooks, finish the pages, end the writer thread. May be called twice."""
        self.enabled = False
        self._closed = True
        self._store.close()

    def __enter__(self) -> SequentialDebugger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)  # missing if the constructor raised
        if session is not None:
            session.remove()


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not a choice; choose from {', '.join(map(repr, choices))}")


def _megabytes(name: str, value: float) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**40:
        raise ConfigError(f"{name}={value!r} must be a number above 0 (in MiB)")
    return max(1, int(value * 1024 * 1024))


def _by_layer(debuggers: Mapping[str, BaseDebugger], kind: type) -> dict[str, list[Any]]:
    by_layer: dict[str, list[Any]] = {}
    for debugger in debuggers.values():
        if isinstance(debugger, kind):
            by_layer.setdefault(debugger.layer_name, []).append(debugger)  # type: ignore[attr-defined]
    return by_layer


class _Statistics(UserDict[str, Any]):
    """The statistics of a tensor in what a call returns, computed when they are first read: most loops ignore them."""

    def __init__(self, tensor: torch.Tensor) -> None:  # instead of UserDict's, which sets ``data``
        self._tensor = tensor

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        numbers: dict[str, Any] = with_summaries({"x": self._tensor, "stats": Summary(of="x")})["stats"]
        return numbers


def _with_statistics(value: Any) -> Any:
    """A copy that is returned to the user, with statistics in place of their stand-ins."""
    if type(value) is list:  # all calls of a layer
        return [_with_statistics(v) for v in value]
    if type(value) is not dict:
        return value
    tensors = {name: value.get(v.of) for name, v in value.items() if isinstance(v, Summary)}
    return value | {name: _Statistics(t) if isinstance(t, torch.Tensor) else None for name, t in tensors.items()}
