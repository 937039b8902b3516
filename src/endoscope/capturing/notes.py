"""Notes: which outputs of a record are absent and why, which debuggers failed, how often each layer ran."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

FAILURES_TO_MUTE = 3
"""After how many failures in a row a debugger is no longer called."""


class Reason(enum.Enum):
    """Why a debugger gave no output. The message is stored with the datapoint."""

    NOT_RUN = "the layer did not run in this forward (on this thread)"
    NONE_RAN = "no watched layer ran in this forward (on this thread; compiled code calls no hooks)"
    NOT_CALLED = "the model was not called since the last datapoint (on this thread, outside compiled functions)"
    NEVER_CALLED = (
        "no hook has fired: the model was not called, or was compiled inside a function before the debugger was enabled"
    )
    FUSED = (
        "torch computed the nn.TransformerEncoderLayer around it in one fused kernel, without calling this layer; "
        "torch.backends.mha.set_fastpath_enabled(False) makes it call its layers, "
        "and can change last bits of its output"
    )
    NOTHING = "the debugger returned nothing"
    NEEDS_NO_GRADIENT = "its output needs no gradient (no_grad, or nothing trainable before it)"
    NO_GRADIENT = "no gradient had arrived when the debugger was called; call it after loss.backward()"
    MUTED = f"muted after {FAILURES_TO_MUTE} failures in a row, the last: "


@dataclass(frozen=True, slots=True)
class Absence:
    """A reason, and what belongs to its message."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return self.reason.value + self.detail


_NO_HOOK_FIRED = (Reason.NONE_RAN, Reason.NOT_CALLED, Reason.NEVER_CALLED)


@dataclass(slots=True)
class Notes:
    """The notes of one record, by debugger."""

    absent: dict[str, Absence] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    """How often each layer ran."""
    forwards: int = 0
    """How often the model ran since the last record. The outputs are those of the last time."""

    def stored(self) -> dict[str, dict[str, Any]]:
        """The notes as they are stored: only what the reader would not expect."""
        notes: dict[str, dict[str, Any]] = {
            "absent": {name: str(absence) for name, absence in self.absent.items()},
            "failures": self.failures,
            "calls": {name: count for name, count in self.calls.items() if count > 1},
            "forwards": {"model": self.forwards} if self.forwards > 1 else {},
        }
        return {kind: by_name for kind, by_name in notes.items() if by_name}

    def no_hook_fired(self, names: Iterable[str]) -> bool:
        """Whether none of these debuggers saw its layer, most likely because hooks could not fire."""
        return all(name in self.absent and self.absent[name].reason in _NO_HOOK_FIRED for name in names)
