"""A user's own pipeline, from a function that returns it with the arguments of one forward pass."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from strobe.attention.explain import components_of
from strobe.bench.dit.case import LoadedModel, Shot, on
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers.families import family_of


def load_pipe(text: str, shot: Shot, device: torch.device) -> LoadedModel:
    """Run `module:function`, which is the user's code, and use the transformer and arguments it returns.

    The function takes no arguments. It returns the transformer, or a pipeline with one, and a mapping with the arguments of one
    forward pass of the transformer.

    Args:
        text: `module:function`; the module is looked for in the current folder too.
        shot: sizes of the pass, for the report.
        device: where everything is moved.

    Raises:
        ConfigError: there is no such function, or it returns something else.
    """
    module, _, function = text.partition(":")
    if not module or not function:
        raise ConfigError(f"--pipe {text!r}: write module:function, such as my_pipeline:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--pipe {text!r}: {error}") from error
    found = make()
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise ConfigError(f"--pipe {text!r} returned {type(found).__name__}: return (pipeline or transformer, arguments by name)")
    transformer = _transformer(found[0], text).to(device).requires_grad_(False).train(False)
    digest = hashlib.sha256(f"{text}, {sum(value.numel() for value in transformer.parameters())} parameters".encode())
    return LoadedModel(
        name=f"{type(transformer).__name__} of {text}",
        transformer=transformer,
        arguments=on(found[1], device),
        shot=shot,
        weights_sha256=digest.hexdigest(),
        random=False,
        masked=True,  # nobody knows
    )


def _transformer(given: Any, text: str) -> Any:
    found = [each for each in components_of(given).values() if isinstance(each, nn.Module) and family_of(each) is not None]
    if not found:
        raise ConfigError(f"--pipe {text!r} returned no transformer whose video attention can be sparse, see docs/profile_dit.md")
    return found[0]
