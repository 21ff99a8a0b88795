"""Triton kernels launched at the host cost of a launch.

For every launch Triton binds the arguments, works out which compiled variant they call for and looks it up: 20 to 40
microseconds, several times what the launch itself takes. What decides is the dtype of each pointer and whether it is a multiple
of 16 bytes, the value of each integer, and the constants. So a variant is kept with these, and launched directly when they come
again: by its `run`, as Triton itself calls it. Called as `variant[grid]` it first describes the launch to hooks, with or without
any; that is the way while there are hooks, such as a profiler's, and with a Triton whose `run` is not known.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from strobe.core.device import Card

_KEPT: Final = 512
"""Variants of one kernel that are kept; a key holds lengths and strides, so that there is no bound to how many there could be."""
_KNOWN: Final = tuple(f"3.{minor}." for minor in range(4, 10))
"""Versions of Triton whose `run` is known: `JITFunction.run` in triton/runtime/jit.py of 3.4, 3.6, 3.8 and 3.9 calls it with the
grid, stream, function, packed metadata, launch metadata, two hooks and the arguments; a hook may be None."""

Grid = tuple[int, int, int]
Launch = Callable[[Grid, tuple[Any, ...]], object]


@cache
def known_triton() -> bool:
    """Whether kept variants are launched by their `run`: the installed Triton is one whose `run` is known."""
    try:
        return importlib.metadata.version("triton").startswith(_KNOWN)
    except importlib.metadata.PackageNotFoundError:
        return False


def precision_of(dtype: torch.dtype, card: Card) -> str:
    """How `tl.dot` multiplies on a card: float32 to its full precision. 16-bit inputs have one, which has a name all the same."""
    if card.vendor != "nvidia":
        return "ieee"  # others have no tf32, and their compiler refuses the word
    return "tf32x3" if dtype == torch.float32 else "tf32"


def _launch_of(variant: Any) -> Launch:
    """The shortest launch of a compiled variant, on the device that is current now."""
    if not known_triton():
        return lambda grid, arguments: variant[grid](*arguments)
    from triton import knobs
    from triton.runtime import driver

    run, function, packed = variant.run, variant.function, variant.packed_metadata
    device, stream_of, settings = driver.active.get_current_device(), driver.active.get_current_stream, knobs.runtime

    def launch(grid: Grid, arguments: tuple[Any, ...]) -> object:
        enter, leave = settings.launch_enter_hook, settings.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):  # of 3.4 one hook or None, later a chain of them
            return variant[grid](*arguments)
        return run(*grid, stream_of(device), function, packed, None, None, None, *arguments)

    return launch


class Launcher:
    """A kernel whose parameters are, in this order: descriptors, pointers, integers, floats, constants.

    Args:
        kernel: what `triton.jit` made. In Triton's interpreter nothing is kept, and every launch is Triton's own.
    """

    __slots__ = ("_kernel", "_variants")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._variants: dict[tuple[Any, ...], Launch] = {}

    def __call__(
        self,
        grid: Grid,
        pointers: tuple[Tensor | None, ...],
        numbers: tuple[int, ...],
        constants: tuple[Any, ...],
        *,
        num_warps: int,
        floats: tuple[float, ...] = (),
        descriptors: tuple[Any, ...] = (),
    ) -> None:
        """Launch it on the current device and stream.

        Args:
            grid: programs along each axis.
            pointers: tensors on that device, the first never None.
            numbers: integers; their values are part of what is compiled.
            constants: of the compiler, hashable.
            num_warps: warps of a program.
            floats: numbers that are not compiled in.
            descriptors: of tensors of the first pointer's dtype; the constants decide their blocks.
        """
        bits: int = 0
        addresses: list[int | None] = []
        kinds: list[Any] = []
        for pointer in pointers:
            if pointer is None:
                addresses.append(None)
                kinds.append(None)
            else:
                address = pointer.data_ptr()
                bits |= address
                addresses.append(address)
                kinds.append(pointer.dtype)
        first = pointers[0]
        assert first is not None
        if bits & 15:  # seldom: some pointer is no multiple of 16 bytes, and which ones is compiled in
            kinds.extend(address is None or address % 16 == 0 for address in addresses)
        key = (numbers, constants, num_warps, first.get_device(), *kinds)
        launch = self._variants.get(key)
        if launch is not None:
            launch(grid, (*descriptors, *addresses, *numbers, *floats, *constants))
            return
        variant = self._kernel[grid](*descriptors, *pointers, *numbers, *floats, *constants, num_warps=num_warps)
        if variant is not None:
            if len(self._variants) >= _KEPT:
                self._variants.clear()
            self._variants[key] = _launch_of(variant)
