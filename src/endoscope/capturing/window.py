"""Window: what was captured during one forward of the model, on the thread that called it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from endoscope.capturing.guard import Draws
from endoscope.capturing.notes import Reason
from endoscope.capturing.snapshot import Snapshot

MAX_CALLS_OF_A_PART = 1000
"""How many calls ``calls="all"`` keeps of a layer that is called without the model: no new forward ends the window."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """One function to call for one layer: after its forward, or with the gradient of its output.

    ``function`` is called with ``(module, input, output)`` or with ``(module, grad_output)``.
    """

    name: str
    layer_name: str
    function: Callable[..., Any]
    when: Literal["forward", "backward"]
    calls: Literal["last", "all"]
    draws: Draws = None


class Window:
    """The captures of one forward by debugger, how often each layer ran, and what went wrong."""

    __slots__ = ("attached", "calls", "captures", "closed", "depth", "failures", "forwards", "handles", "reasons")

    def __init__(self, attached: int, forwards: int) -> None:
        self.attached = attached  # which attaching of the hooks it belongs to; other threads may hold an older one
        self.forwards = forwards  # of the model since the last datapoint; 0 if only a part of the model was called
        self.depth = 0  # calls of the model that are under way, for a model that calls itself
        self.captures: dict[str, dict[int, Snapshot]] = {}
        self.calls: dict[str, int] = {}
        self.failures: dict[str, str] = {}
        self.reasons: dict[str, Reason] = {}
        self.handles: list[Any] = []
        self.closed = False

    def count(self, name: str) -> int:
        """Count a call of a debugger's layer; returns its number."""
        call = self.calls[name] = self.calls.get(name, 0) + 1
        return call

    def add(self, attachment: Attachment, call: int, result: Snapshot | str) -> None:
        """Add what a debugger returned for one call of its layer, or the message of its failure."""
        name, captures = attachment.name, self.captures.setdefault(attachment.name, {})
        is_last = not captures or call >= max(captures)  # a backward pass visits the calls last to first
        if is_last and attachment.calls == "last":
            captures.clear()  # even if this call returned nothing: an earlier one is not the last
        if isinstance(result, str):
            self.failures[name] = result
        elif result.value is None:
            self.reasons[name] = Reason.NOTHING
        elif is_last or attachment.calls == "all":
            captures[call] = result
            if not self.forwards and len(captures) > MAX_CALLS_OF_A_PART:
                del captures[min(captures)]

    def output(self, attachment: Attachment) -> Snapshot | None:
        """What was captured for a debugger: its last call, or all of them as a list."""
        captures = self.captures.get(attachment.name)
        if not captures:
            return None
        if attachment.calls == "last":
            return next(iter(captures.values()))
        return Snapshot.joined([captures[call] for call in sorted(captures)])

    def close(self) -> None:
        """Capture nothing more: later gradients belong to no datapoint, so their hooks are removed."""
        self.closed = True
        while self.handles:
            self.handles.pop().remove()
