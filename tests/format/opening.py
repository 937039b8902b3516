"""Runs in a child of the warm process: open folders as a viewer would, look at everything, and say what happened."""

from __future__ import annotations

import resource
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sameness import canonical
from tests.warm import Say

from endoscope.errors import EndoscopeError
from endoscope.pages.reader import DebugOutputs, load_debug_outputs
from endoscope.pages.verify import verify_folder
from endoscope.values import tensors_in

GOOD = 100
"""The index of a healthy datapoint that must stay readable."""
GOOD_VALUE = {"x": [1, 2.5, "healthy"]}
ADDRESS_SPACE = 4 << 30


def used(value: Any) -> Any:
    """Compute something from every tensor: a tensor that torch cannot hold would end the process here."""
    for t in tensors_in(value):
        t.detach().clone()
    return value


def look(say: Say, folders: list[str], indices: list[int]) -> None:
    """For each folder, say which datapoints gave a value, which were refused and how, and errors that are not ours."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE, size + ADDRESS_SPACE))
    for folder in folders:
        say(look_at(folder, indices))


def look_at(folder: str, indices: list[int]) -> dict[str, Any]:
    seen: dict[str, Any] = {"values": [], "refused": {}, "foreign": {}, "good": False, "damage": [], "verified": []}

    def attempt(name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except EndoscopeError as e:
            seen["refused"][name] = f"{type(e).__name__}: {e}"[:500]
        except BaseException as e:
            seen["foreign"][name] = f"{type(e).__name__}: {e}"[:300] + " @ " + traceback.format_exc()[-300:]
        return None

    outputs = attempt("open", lambda: load_debug_outputs(folder))
    if isinstance(outputs, DebugOutputs):
        good = attempt(f"[{GOOD}]", lambda: canonical(outputs[GOOD]))
        seen["good"] = good == canonical(GOOD_VALUE)
        held = attempt("iterate", lambda: sorted(outputs)[:2000]) or []
        for idx in [*indices, *(i for i in held if i not in (GOOD, *indices))]:
            value = attempt(f"[{idx}]", lambda idx=idx: [used(outputs[idx])])
            if value is not None:
                seen["values"].append(idx)
            if len(held) < 100:
                attempt(f"list {idx}", lambda idx=idx: outputs.list(idx))
                attempt(f"notes {idx}", lambda idx=idx: outputs.notes(idx))
                attempt(f"read {idx}", lambda idx=idx: outputs.read(idx, "nothing"))
        attempt("describe", lambda: (repr(outputs), len(outputs), outputs.dropped, outputs.pages))
        seen["damage"] = [str(d) for d in outputs.damage][:20]
    seen["verified"] = [str(d) for d in attempt("verify", lambda: verify_folder(Path(folder))) or []][:20]
    return seen
