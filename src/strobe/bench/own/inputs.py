"""Arguments of candidates: equal for all of them, whatever one of them does to its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import torch

from strobe.core.errors import ConfigError

_COPIED: Final = (torch.Tensor, torch.Generator, bytearray)
_PLAIN: Final = (int, float, complex, str, bytes, bytearray, set, frozenset)
MAX_COPIES_BYTES: Final = 256 << 20
"""Copies that are made ahead for the calls of one sample take no more than this."""


class Inputs:
    """The arguments of every call.

    Tensors, arrays, generators of random numbers, and the containers and dataclasses that hold them, are copied; any other
    object, such as a model, is handed to every candidate as it is.

    Args:
        given: a tuple of arguments, a dictionary of named ones, a function that makes either anew for each call, or one argument.

    Raises:
        ConfigError: an iterator, which the first call would use up, or a tensor that cannot be copied.
    """

    def __init__(self, given: object) -> None:
        self._make = given if callable(given) else None
        self._kept = None if callable(given) else copied(given)
        self.fresh = self._make is not None
        """Every call needs its own."""

    def one(self) -> Any:
        """Return arguments of their own for one call."""
        return copied(self._make()) if self._make is not None else copied(self._kept)

    def unchanged(self, used: object) -> bool:
        """Return whether arguments that a call has had are as they were."""
        return self._make is not None or same(used, self._kept)

    def most(self) -> int:
        """Largest number of inputs made ahead."""
        return max(1, MAX_COPIES_BYTES // max(1, num_bytes(self.one()))) if self.fresh else 1 << 30


def bound(function: Callable[..., object], arguments: Any) -> Callable[[], object]:
    """Return a call of a function with arguments as `Inputs` has them."""
    if isinstance(arguments, tuple):
        return (lambda: function(*arguments)) if arguments else function
    if isinstance(arguments, dict):
        return lambda: function(**arguments)
    return lambda: function(arguments)


def copied(value: object) -> Any:
    """Return a deep copy of tensors, arrays and the containers that hold them; other objects are not copied.

    Raises:
        ConfigError: an iterator, or a tensor that is the result of a differentiable operation.
    """
    return _copy(value, {})


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Iterator):
        raise ConfigError(
            f"inputs: a {type(value).__name__} is used up by the first call that reads it; give a list or a tuple, or a function "
            f"that makes the arguments anew"
        )
    found: Any = value
    if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
        raise ConfigError("inputs: a tensor is the result of a differentiable operation and cannot be copied; give x.detach()")
    if isinstance(value, torch.Generator):
        found = value.clone_state()
    elif isinstance(value, _COPIED) or hasattr(value, "__array_interface__"):
        found = copy.deepcopy(value, memo)
    elif isinstance(value, MutableMapping):
        found = copy.copy(value)
        for key in value:
            found[key] = _copy(value[key], memo)
    elif isinstance(value, tuple):
        items = [_copy(each, memo) for each in value]
        found = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif isinstance(value, list | set):
        found = type(value)(_copy(each, memo) for each in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(found, field.name, _copy(getattr(value, field.name), memo))
    memo[id(value)] = found
    return found


def same(one: Any, other: Any) -> bool:
    """Return whether two copies of one value are still equal; what is not copied always is."""
    if isinstance(one, torch.Tensor):
        return _equal(one.detach(), other.detach())
    if isinstance(one, torch.Generator):
        return bool(torch.equal(one.get_state(), other.get_state()))
    if hasattr(one, "__array_interface__"):
        import numpy as np

        return bytes(np.asarray(one).tobytes()) == bytes(np.asarray(other).tobytes())
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, _PLAIN):
        return type(one) is type(other) and bool(one == other or one != one)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one))
    return one is other


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN where NaN was


def num_bytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a value."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    if isinstance(value, list | tuple | set):
        return sum(map(num_bytes, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(num_bytes(getattr(value, each.name)) for each in dataclasses.fields(value))
    return int(getattr(value, "nbytes", 0))
