"""SequentialDebugger: runs several debuggers on each datapoint and streams what they return into pages."""

from __future__ import annotations

import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from endoscope.capturing.guard import Failures, Guard, OnError
from endoscope.capturing.session import FUSED, Captures
from endoscope.capturing.snapshot import Snapshot, snapshot
from endoscope.debuggers.assembly import assemble
from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.debuggers.forms import may_draw
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.debuggers.indices import datapoint_index
from endoscope.errors import ConfigError
from endoscope.pages.store import PageFormat, PageStore, StoreSettings
from endoscope.summaries import summaries_made

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
    ...     seen = debugger({"inputs": x, "labels": y, "outputs": outputs, "meta_info": {"idx": i}}, model)
    >>> debugger.close()
    >>> endoscope.load_debug_outputs("runs/cnn/epoch_4")[17]["features/backbone.layer4"]["feature_map"]

    Pages stream into ``output_dir`` when it is known; otherwise they are spooled to disk and `save_all` moves them.
    What a call returns is made when it is looked at, as copies: they are yours to change.

    debuggers_config: ``[{"name": ..., "debugger_config": {"class": ..., "args": {...}}}, ...]``.
    page_size_mb: a new page begins before this size would be passed (MiB of true bytes).
    output_dir: the folder for the pages; refused when it already holds some, unless ``overwrite``.
    queue_mb: memory for records that wait for the disk. When it is full, ``on_full="block"`` makes the loop wait and
        ``"drop"`` leaves records out, with a count that is stored.
    on_error: ``"record"`` keeps a debugger's exception with the datapoint, ``"raise"`` raises it as `DebuggerError`.
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
        hooked = {n: d for n, d in self.debuggers.items() if isinstance(d, (ForwardDebugger, BackwardDebugger))}
        self._after = {n: d for n, d in self.debuggers.items() if n not in hooked}
        self._captures = Captures(model, hooked, self._guard)
        settings = StoreSettings(
            self.page_size, _megabytes("queue_mb", queue_mb), on_full, page_format, overwrite, spool_dir
        )
        self._store = PageStore(output_dir, settings)
        self._enabled = self._closed = False
        self._told: set[str] = set()

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
            self._captures.remove()
            self._enabled = False
            return
        if self._closed:
            raise ConfigError("this debugger is closed; make a new one")
        if os.environ.get("ENDOSCOPE", "").lower() == "off":
            self._tell("ENDOSCOPE=off is set: nothing is captured")
            return
        told = weakref.WeakMethod(self._tell_compiled)  # the hooks must not keep a dropped debugger alive
        self._captures.attach(lambda: (tell := told()) and tell())
        self._enabled = True

    def _tell_compiled(self) -> None:
        self._tell(
            "the model is compiled: it runs uncompiled while the debugger is enabled, "
            "because compiled code calls no new hooks"
        )

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning("%s", message)

    # ---- a datapoint
    def __call__(self, datapoint: dict[str, Any], model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Run every debugger on a datapoint (or batch) that the model has just seen; returns ``{name: outputs}``."""
        if not self._enabled:
            return {}
        idx = datapoint_index(datapoint)
        seen, notes = self._captures.take()
        if self._after:
            with self._captures.paused():
                for name, debugger in self._after.items():
                    self._run(name, debugger, datapoint, self.model if model is None else model, seen, notes)
            seen = {name: seen[name] for name in self.debuggers if name in seen}
        if "absent" in notes:
            self._tell_absent(notes)
        if not self._store.put(idx, seen, notes) and self._store.foreign:
            self._tell("this process only inherited the debugger (fork): nothing is stored from it")
        return HandedOut.of(seen)

    def _tell_absent(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        if self._captures.nothing_ran(notes):
            self._tell(
                "none of the watched layers ran for a datapoint: call the model first, on the same thread; a model "
                "that was compiled inside a function or a method calls no hooks"
            )
        if FUSED in notes["absent"].values():
            self._tell(f"a watched layer was left out: {FUSED}")

    def _run(
        self,
        name: str,
        debugger: BaseDebugger,
        datapoint: dict[str, Any],
        model: torch.nn.Module,
        seen: dict[str, Snapshot],
        notes: dict[str, Any],
    ) -> None:
        if reason := self._guard.muted(name):
            notes.setdefault("absent", {})[name] = reason
            return
        result = self._guard.call(name, debugger, may_draw(debugger, debugger), debugger, datapoint, model)
        if isinstance(result, str):
            notes.setdefault("failures", {})[name] = result
        elif result.value is None:
            notes.setdefault("absent", {})[name] = "the debugger returned nothing"
        else:
            seen[name] = result

    def add_to_buffer(self, debug_outputs: Mapping[str, Any], datapoint: dict[str, Any]) -> None:
        """Store outputs that were computed elsewhere, ``{name: outputs}``, for this datapoint; they are copied."""
        idx = datapoint_index(datapoint)
        kept: dict[str, Snapshot] = {}
        failures: dict[str, str] = {}
        for name, value in debug_outputs.items():
            if not isinstance(name, str):
                raise ConfigError(f"debug_outputs must be by debugger name, found the key {name!r}")
            try:
                kept[name] = snapshot(value)
                self._guard.succeeded(name)
            except Exception as e:  # noqa: BLE001  # a value that cannot be copied: the rest is kept
                failures[name] = self._guard.failed(name, e)
        self._store.put(idx, kept, {"failures": failures} if failures else {})

    # ---- what is on disk
    def reset_buffer(self, output_dir: str | os.PathLike[str] | None = None, *, overwrite: bool | None = None) -> None:
        """Begin a new capture: into ``output_dir``, else into the constructor's folder, else into a spool.

        Spooled records that were never saved are dropped. Pages already streamed into a folder stay there, closed.
        """
        self._store.reset(output_dir, overwrite=overwrite)

    def flush(self) -> bool:
        """Return when everything captured so far survives a kill of the process; False when some of it was lost."""
        return self._store.flush()

    def save_all(self, output_dir: str | os.PathLike[str], *, overwrite: bool | None = None) -> SaveReport:
        """Close the pages and have them in ``output_dir``. Reports failures, drops and losses; they are logged, too."""
        folder, counts, problem = self._store.save_all(output_dir, overwrite=overwrite)
        failures = dict(self._guard.failures)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        captures = getattr(self, "_captures", None)
        if captures is not None:
            captures.remove()


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not a choice; choose from {', '.join(map(repr, choices))}")


def _megabytes(name: str, value: float) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**40:
        raise ConfigError(f"{name}={value!r} must be a number above 0 (in MiB)")
    return max(1, int(value * 1024 * 1024))


def _by_layer(debuggers: Mapping[str, BaseDebugger], kind: type) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for debugger in debuggers.values():
        if isinstance(debugger, kind):
            found.setdefault(debugger.layer_name, []).append(debugger)  # type: ignore[attr-defined]
    return found


class HandedOut(dict[str, Any]):
    """``{name: outputs}`` that is made when it is looked at: most loops never look.

    Its tensors are copies, because those of the record wait for the writer thread, and a user may change his. On CUDA
    looking waits for the device.
    """

    _seen: Mapping[str, Snapshot] | None = None

    @classmethod
    def of(cls, seen: Mapping[str, Snapshot]) -> HandedOut:
        made = cls(dict.fromkeys(seen))  # the names, for C code that asks how many there are
        made._seen = seen
        return made

    def _look(self) -> None:
        seen = self._seen
        if seen is None:
            return
        dict.update(self, {name: summaries_made(snapshot(one.wait()).value) for name, one in seen.items()})
        self._seen = None

    def __iter__(self) -> Iterator[str]:
        """That there is one makes dict(...) and {**...} ask for the values one by one."""
        return dict.__iter__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)


def _after_a_look(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def look_first(self: HandedOut, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return method(self, *args, **kwargs)

    return look_first


for _name in (
    *("__getitem__", "__setitem__", "__delitem__", "__repr__", "__eq__", "__ne__", "__or__", "__ror__", "__ior__"),
    *("get", "values", "items", "pop", "popitem", "setdefault", "update", "clear", "copy"),
):
    setattr(HandedOut, _name, _after_a_look(getattr(dict, _name)))
