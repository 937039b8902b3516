"""Layer names: dotted, as in the user's model, without the parts that DDP, FSDP and torch.compile add."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch

from endoscope.errors import ConfigError, LayerNotFoundError, closest

_WRAPPERS = (
    torch.nn.parallel.DistributedDataParallel,
    torch.nn.parallel.DataParallel,
    torch.optim.swa_utils.AveragedModel,
)
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def _inner(module: torch.nn.Module) -> tuple[str, torch.nn.Module] | None:
    """The name and the module that a wrapper wraps; None for a module that is not a wrapper."""
    children = module._modules  # not a dict if the module is scripted
    for name in _WRAPPED:
        if name in children and (child := children[name]) is not None:
            return name, child
    if isinstance(module, _WRAPPERS) and (child := children["module"]) is not None:
        return "module", child
    return None


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module behind DDP, FSDP, torch.compile and the like.

    >>> unwrap(torch.nn.DataParallel(net := torch.nn.Linear(1, 1))) is net
    True
    """
    while (inner := _inner(model)) is not None:
        model = inner[1]
    return model


def named_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every layer below ``model`` with its name. A shared module is listed under each of its names."""
    for name, child in unwrap(model)._modules.items():
        if child is not None:
            yield name, unwrap(child)
            for below, layer in named_layers(child):
                yield f"{name}.{below}", layer


def _plain(name: str) -> str:
    """A name without the parts that wrappers add, for a config written for a wrapped model."""
    parts = [p for p in name.split(".") if p not in _WRAPPED]
    while parts and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def is_pattern(name: str) -> bool:
    return any(c in name for c in "*?[")


def _walk(model: torch.nn.Module, name: str) -> torch.nn.Module | None:
    layer = unwrap(model)
    for part in name.split(".") if name else ():
        child = layer._modules[part] if part in layer._modules else None  # noqa: SIM401
        if child is None:
            return None
        layer = unwrap(child)
    return layer


def get_layer_by_name(model: torch.nn.Module, layer_name: str) -> torch.nn.Module:
    """The layer with a dotted name; the empty name is the model itself.

    >>> get_layer_by_name(torch.nn.Sequential(torch.nn.ReLU()), "0")
    ReLU()
    """
    if (layer := _walk(model, layer_name)) is not None:
        return layer
    layers = dict(named_layers(model))
    try:  # the name with wrappers, as PyTorch spells it
        return unwrap(model.get_submodule(layer_name))
    except AttributeError:
        pass
    if (plain := _plain(layer_name)) in layers:
        return layers[plain]
    hint = closest(plain, layers) or _available(list(layers))
    raise LayerNotFoundError(f"no layer is called {layer_name!r}{hint}")


def select(model: torch.nn.Module, pattern: str) -> list[str]:
    """The names of the layers that match; ``*`` also matches dots, so ``"*.attn"`` matches at any depth.

    >>> select(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()), "*")
    ['0', '1']
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"a layer name must be text such as 'backbone.layer4', not {type(pattern).__name__}")
    if not is_pattern(pattern):
        get_layer_by_name(model, pattern)
        return [pattern]
    names = [name for name, _ in named_layers(model)]
    for query in (pattern, _plain(pattern)):
        if matches := [name for name in names if fnmatchcase(name, query)]:
            return matches
    raise LayerNotFoundError(
        f"no layer matches {pattern!r}" + (closest(pattern.replace("*", ""), names) or _available(names))
    )


def _available(names: list[str], most: int = 8) -> str:
    if not names:
        return "; the model has no layers"
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return "; it has " + ", ".join(map(repr, names[:most])) + more
