"""From a debugger to what is attached to the model: its function, with what its class declares about it."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from endoscope.capturing.guard import Draws
from endoscope.capturing.window import Attachment
from endoscope.debuggers.backward_debugger import BackwardDebugger
from endoscope.debuggers.base_debugger import BaseDebugger
from endoscope.debuggers.feature_map import output_with_summary
from endoscope.debuggers.forward_debugger import ForwardDebugger
from endoscope.errors import ConfigError

_PARAMETERS = {
    "process_forward": ("module", "input", "output"),
    "process_backward": ("module", "grad_output"),
    "__call__": ("datapoint", "model"),
}


def attachment(name: str, debugger: ForwardDebugger | BackwardDebugger) -> Attachment:
    """What to attach to the layer of a debugger."""
    draws = draws_of(debugger)
    layer_name, calls = debugger.layer_name, debugger.calls
    if isinstance(debugger, BackwardDebugger):
        return Attachment(name, layer_name, debugger.process_backward, "backward", calls, draws)
    function: Any = debugger.process_forward
    key = _declared(debugger, "process_forward", "keeps_output")
    if key is not None:
        function = partial(output_with_summary, key, layer_name)
    return Attachment(name, layer_name, function, "forward", calls, draws)


def draws_of(debugger: BaseDebugger) -> Draws:
    """Which random numbers a debugger may draw; see ``BaseDebugger.uses_random``."""
    if debugger.uses_random is not False:
        return debugger.uses_random
    return False if _declared(debugger, _method(debugger), "uses_random") is False else None


def check_signature(debugger: BaseDebugger) -> None:
    """Raise ConfigError if the method that will be called cannot take the arguments that it will get."""
    method = _method(debugger)
    parameters = _PARAMETERS[method]
    try:
        signature = inspect.signature(getattr(debugger, method))
    except (TypeError, ValueError):  # some callables have none
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        names = ", ".join(signature.parameters)
        raise ConfigError(
            f"{type(debugger).__name__}.{method} takes ({names}) after self; expected ({', '.join(parameters)})"
        ) from None


def _method(debugger: BaseDebugger) -> str:
    if isinstance(debugger, ForwardDebugger):
        return "process_forward"
    return "process_backward" if isinstance(debugger, BackwardDebugger) else "__call__"


def _declared(debugger: BaseDebugger, method: str, attribute: str) -> Any:
    """A class attribute that describes a method, from the class that defines the method. None if that class does not
    declare it, or if the method was replaced on this instance."""
    if method in getattr(debugger, "__dict__", {}):
        return None
    owner = next(cls for cls in type(debugger).__mro__ if method in vars(cls))
    return vars(owner).get(attribute)
