"""Comparison of two candidates' outputs: numbers, tensors, arrays, text, and what is nested of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from strobe.bench.gate import Held
from strobe.core.errors import ConfigError
from strobe.core.tolerances import TOLERANCES

_EXACT: Final = (str, bytes, bytearray, bool, type(None), set, frozenset, range, slice)
_LIMITS: Final = TOLERANCES["call"]
_LATER: Final = (Iterator, AsyncIterator, Awaitable)


class Leaf(NamedTuple):
    """One value of an output: where it stands, and what it is."""

    path: str
    value: Any


def leaves(output: object, path: str = "out") -> list[Leaf]:
    """Return the values of an output in order, copied from what the next call may overwrite.

    Raises:
        ConfigError: it holds something that cannot be compared, or a call that has not run yet.
    """
    if isinstance(output, torch.Tensor):
        return [Leaf(path, output.detach().clone())]
    if isinstance(output, (*_EXACT, int, float, complex)):
        return [Leaf(path, output)]
    if hasattr(output, "__array_interface__"):  # NumPy, and images of PIL
        return [Leaf(path, _array(output, path))]
    if isinstance(output, Mapping):
        items = [(f"{path}[{key!r}]", value) for key, value in output.items()]
    elif isinstance(output, list | tuple):
        items = [(f"{path}[{index}]", value) for index, value in enumerate(output)]
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        items = [(f"{path}.{field.name}", getattr(output, field.name)) for field in dataclasses.fields(output)]
    elif isinstance(output, _LATER):
        raise ConfigError(
            f"{path} is a {type(output).__name__}: nothing has run when it is returned; compare a function that waits for the "
            f"result, such as lambda: list(f())"
        )
    else:
        raise ConfigError(
            f"{path} is a {type(output).__name__}, which cannot be compared; return tensors, arrays, numbers, text, or lists, "
            f"tuples, dictionaries and dataclasses of them, or give tolerance=math.inf to compare no outputs"
        )
    return [leaf for where, value in items for leaf in leaves(value, where)]


def _array(output: Any, path: str) -> Any:
    import numpy as np

    array = np.array(output)
    if array.dtype.kind in "biufc":
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    if array.dtype.kind in "US":
        return array.tolist()
    raise ConfigError(f"{path} is an array of {array.dtype}, which cannot be compared; give tolerance=math.inf to compare none")


def agree(found: list[Leaf], expected: list[Leaf], tolerance: float | None) -> Held:
    """Hold an output against that of the reference.

    The relative error of floating-point numbers is the root mean square of the difference / that of the expected values, in
    float64. Integers, text and the shapes must be equal; with a tolerance of the caller's, integers in tensors count as numbers.

    Args:
        tolerance: largest relative error; None: by dtype, the coarser one of both.
    """
    limits = ", ".join(f"{limit:g} ({dtype})" for dtype, limit in _limits(found, expected, tolerance).items())
    rule = f"the same output: relative error <= {limits}" if limits else "the same output"
    places = [leaf.path for leaf in found], [leaf.path for leaf in expected]
    if places[0] != places[1]:
        odd = sorted(set(places[0]) ^ set(places[1])) or ["their order"]
        return Held(False, rule, f"the outputs are not built alike: only one has {odd[0]}", exact=True)
    worst, at = 0.0, ""
    for own, other in zip(found, expected, strict=True):
        wrong, error = _differ(own.value, other.value, tolerance)
        if wrong:
            return Held(False, rule, f"{own.path}: {wrong}", exact=True)
        if error > worst:
            worst, at = error, own.path
    if all(leaf.value is None for leaf in expected):
        return Held(True, "nothing to compare", "neither returns a value")
    return Held(True, rule, f"largest {worst:.3g}, at {at}" if at else "equal in every bit", exact=True)


def _limits(found: list[Leaf], expected: list[Leaf], tolerance: float | None) -> dict[str, float]:
    names = {_name(leaf.value) for leaf in (*found, *expected)} - {""}
    if tolerance is not None:
        return {"as asked for": tolerance}
    return {name: _LIMITS[name] for name in _LIMITS if name in names}


def _name(value: Any) -> str:
    """The real dtype of floating-point values; empty for all else."""
    if isinstance(value, float | complex):
        return "float64"
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        real = value.dtype.to_real()
        name = str(real).removeprefix("torch.")
        return name if name in _LIMITS else "bfloat16"  # those of eight bits have no tolerance of their own
    return ""


def _differ(own: Any, other: Any, tolerance: float | None) -> tuple[str, float]:
    """Return why two values are not the same, and their relative error."""
    if isinstance(own, _EXACT) or isinstance(other, _EXACT) or isinstance(own, list):
        return ("" if type(own) is type(other) and own == other else f"{_short(own)}, expected {_short(other)}"), 0.0
    if isinstance(own, int) and isinstance(other, int):
        return ("" if own == other else f"{_short(own)}, expected {_short(other)}"), 0.0
    one, two = torch.as_tensor(own), torch.as_tensor(other)
    if one.shape != two.shape:
        return f"shape {tuple(one.shape)}, expected {tuple(two.shape)}", 0.0
    names = [name for name in (_name(own), _name(other)) if name]
    if not names and tolerance is None:
        unequal = int((one.cpu() != two.cpu()).sum())
        return (f"{unequal} of {one.numel()} integers differ" if unequal else ""), 0.0
    limit = tolerance if tolerance is not None else max(_LIMITS[name] for name in names)
    error = _relative(one, two)
    if math.isinf(error):
        return "not finite in the same places", error
    return (f"relative error {error:.3g}, at most {limit:g} allowed" if error > limit else ""), error


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference / that of the expected values; infinite where they are not finite in the same places.

    Of expected zeros it is the root mean square of the values found.
    """
    wide = torch.complex128 if found.is_complex() or expected.is_complex() else torch.float64
    one, two = found.cpu().to(wide), expected.cpu().to(wide)
    finite = one.isfinite() & two.isfinite()
    odd = (one == two) | (one.isnan() & two.isnan())
    if not bool((finite | odd).all()):
        return math.inf
    one, two = one[finite], two[finite]
    if not one.numel():
        return 0.0
    scale = float(two.abs().square().mean().sqrt())
    error = float((one - two).abs().square().mean().sqrt())
    return error / scale if scale else error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
