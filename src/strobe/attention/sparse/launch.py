"""Triton kernels launched at the host cost of a launch.

For every launch Triton binds the arguments, works out which compiled variant they call for and looks it up: 20 to 40
microseconds, several times what the launch itself takes. What decides is the dtype of each pointer and whether it is a multiple
of 16 bytes, the value of each integer, and the constants. So a variant is kept with these, and launched directly when they come
again.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from strobe.core.device import Card

_KEPT: Final = 512
"""Variants of one kernel that are kept; a key holds lengths and strides, so that there is no bound to how many there could be."""

Grid = tuple[int, int, int]


def precision_of(dtype: torch.dtype, card: Card) -> str:
    """How `tl.dot` multiplies on a card: float32 to its full precision. 16-bit inputs have one, which has a name all the same."""
    if card.vendor != "nvidia":
        return "ieee"  # others have no tf32, and their compiler refuses the word
    return "tf32x3" if dtype == torch.float32 else "tf32"


class Launcher:
    """A kernel whose parameters are, in this order: descriptors, pointers, integers, floats, constants.

    Args:
        kernel: what `triton.jit` made. In Triton's interpreter nothing is kept, and every launch is Triton's own.
    """

    __slots__ = ("_kernel", "_variants")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._variants: dict[tuple[Any, ...], Any] = {}

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
        first, bits = pointers[0], 0
        assert first is not None
        addresses = [None if pointer is None else pointer.data_ptr() for pointer in pointers]
        for address in addresses:
            if address is not None:
                bits |= address
        dtypes = [None if pointer is None else pointer.dtype for pointer in pointers]
        key = (numbers, constants, num_warps, first.get_device(), *dtypes)
        variant = None if bits & 15 else self._variants.get(key)
        if variant is not None:
            variant[grid](*descriptors, *addresses, *numbers, *floats, *constants)
            return
        variant = self._kernel[grid](*descriptors, *pointers, *numbers, *floats, *constants, num_warps=num_warps)
        if variant is not None and not bits & 15:
            if len(self._variants) >= _KEPT:
                self._variants.clear()
            self._variants[key] = variant
