"""Transformers of a pipeline: found by their class, also where something stands around them."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from strobe.attention.explain import components_of
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers.families import FAMILIES, TransformerFamily, family_of

_MODELS: Final = tuple(family.model for family in FAMILIES)
_AROUND: Final = ("_orig_mod", "module", "_checkpoint_wrapped_module")
"""Attributes that hold a module inside another: of torch.compile, of DistributedDataParallel and its like, of checkpointing."""


def bare(component: Any) -> Any:
    """Return the module inside what torch puts around one."""
    while isinstance(component, nn.Module):
        inner = next((found for name in _AROUND if isinstance(found := getattr(component, name, None), nn.Module)), None)
        if inner is None:
            break
        component = inner
    return component


def find_transformers(pipe: Any, asks: str = "sparsify") -> dict[str, tuple[nn.Module, TransformerFamily]]:
    """Return a pipeline's transformers that can become sparse, by component; a single transformer has an empty name.

    Args:
        asks: what looks for them, for messages.

    Raises:
        ConfigError: there is none, or it is sharded, or something that hides it stands around it.
    """
    given, found = components_of(pipe), {}
    for name, component in given.items():
        module = getattr(component, "_orig_mod", component)  # what torch.compile wrapped
        _check_sharded(name, module, asks)
        family = family_of(module)
        if family is not None:
            found[name] = (module, family)
        elif family_of(bare(module)) is not None:
            raise ConfigError(
                f"{asks}: {name or 'this'} is a {type(module).__name__} around a {type(bare(module)).__name__}; "
                f"give its .module, or better {asks} the transformer before it is wrapped"
            )
    if not found:
        names = sorted({type(each).__name__ for each in given.values() if isinstance(each, nn.Module)}) or [type(pipe).__name__]
        known = ", ".join(family.model.__name__ for family in FAMILIES)
        raise ConfigError(f"{asks}: found no transformer it knows among {', '.join(names)}; it knows {known}")
    return found


def is_known(component: Any) -> bool:
    """Whether a component is a transformer of a family, also wrapped, or sharded, which gives it a class of its own."""
    return isinstance(bare(component), _MODELS)


def _check_sharded(name: str, module: Any, asks: str) -> None:
    """Refuse a transformer that `fully_shard` has changed, as a whole or its blocks."""
    inner = bare(module)
    if is_known(inner) and any(base.__name__ == "FSDPModule" for each in inner.modules() for base in type(each).__mro__):
        kind = next(model.__name__ for model in _MODELS if isinstance(inner, model))
        raise ConfigError(
            f"{asks}: {name or 'the model'}, a {kind}, was sharded by fully_shard; {asks} before fully_shard, which keeps it"
        )
