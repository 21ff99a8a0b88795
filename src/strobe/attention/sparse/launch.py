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
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from strobe.core.device import Card

_KEPT: Final = 512
"""Variants of one kernel that are kept; a key holds lengths and strides, so that there is no bound to how many there could be."""
_KNOWN: Final = tuple(f"3.{minor}." for minor in range(4, 10))
"""Versions of Triton whose `run` is known: `JITFunction.run` in triton/runtime/jit.py of 3.4, 3.6, 3.8 and 3.9 calls it with the
grid, stream, function, packed metadata, launch metadata, two hooks and the arguments; a hook may be None."""

_SHORTEST: Final = "3.6."
"""The version of Triton whose `run` is known to do nothing but allocate scratch memory and call its `launch`: `CudaLauncher` in
triton/backends/nvidia/driver.py."""

Grid = tuple[int, int, int]
Launch = Callable[[Grid, tuple[Any, ...]], object]
Place = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides of a tensor."""
Bound = Callable[..., object]
"""A launch that is given the stream, the descriptors and the addresses; all else is decided."""


class Site(NamedTuple):
    """What a launch is given beside tensors; as the arguments of a `Launcher`."""

    grid: Grid
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    floats: tuple[float, ...] = ()


@cache
def _version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def known_triton() -> bool:
    """Whether kept variants are launched by their `run`: the installed Triton is one whose `run` is known."""
    return _version().startswith(_KNOWN)


@cache
def _runtime() -> Any:
    from triton import knobs

    return knobs.runtime


def listening() -> bool:
    """Whether a hook of Triton's, such as a profiler's, is told of launches."""
    runtime = _runtime()
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))  # of 3.4 one hook or None, later a chain


def stream_on(index: int) -> Callable[[], int]:
    """Return a function that tells the stream that a `Bound` launches on: the current one of a device."""
    if not known_triton():
        return lambda: 0  # a variant that is launched by `variant[grid]` asks for itself
    from triton.runtime import driver

    return partial(driver.active.get_current_stream, index)


def dense(*sizes: int) -> Place:
    """The place of a contiguous tensor."""
    strides = [1]
    for size in sizes[:0:-1]:
        strides.append(strides[-1] * size)
    return sizes, tuple(strides[::-1])


def descriptor(base: Any, place: Place, block: tuple[int, ...]) -> Any:
    """A tensor descriptor of Triton's, made without its constructor, which looks for what is known longer than a launch takes."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    made = TensorDescriptor.__new__(TensorDescriptor)
    made.base, made.shape, made.strides, made.block_shape = base, *map(list, place), list(block)
    return made


def empty_on(device: torch.device) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]:
    """Return a function that allocates a tensor of these sizes, strides and dtype on a device that is current.

    On a GPU it is the one that compiled code calls (`_empty_strided_cuda` of torch 2.3 to 2.13), which takes a third of the host
    time of `torch.empty`.
    """
    quick: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if device.type == "cuda" and quick is not None:
        return quick  # type: ignore[no-any-return]
    return lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype, device=device)


def precision_of(dtype: torch.dtype, card: Card) -> str:
    """How `tl.dot` multiplies on a card: float32 to its full precision. 16-bit inputs have one, which has a name all the same."""
    if card.vendor != "nvidia":
        return "ieee"  # others have no tf32, and their compiler refuses the word
    return "tf32x3" if dtype == torch.float32 else "tf32"


def _launch_of(variant: Any) -> Launch:
    """The shortest launch of a compiled variant, on the device that is current now."""
    if not known_triton():
        return lambda grid, arguments: variant[grid](*arguments)
    from triton.runtime import driver

    run, function, packed = variant.run, variant.function, variant.packed_metadata
    stream = stream_on(driver.active.get_current_device())

    def launch(grid: Grid, arguments: tuple[Any, ...]) -> object:
        if listening():
            return variant[grid](*arguments)
        return run(*grid, stream(), function, packed, None, None, None, *arguments)

    return launch


def _bound_of(variant: Any, grid: Grid, rest: tuple[Any, ...]) -> Bound:
    """The shortest launch of a compiled variant over a grid, with `rest` for its arguments after the addresses."""
    if not known_triton():
        return lambda _, *given: variant[grid](*given, *rest)
    (x, y, z), run, function, packed = grid, variant.run, variant.function, variant.packed_metadata
    if _version().startswith(_SHORTEST) and type(run).__name__ == "CudaLauncher":
        launch, how = run.launch, (run.launch_cooperative_grid, run.launch_pdl)
        if run.global_scratch_size == run.profile_scratch_size == 0:
            middle = (function, *how, None, None, packed, None, None, None)
            return lambda stream, *given: launch(x, y, z, stream, *middle, *given, *rest)
    return lambda stream, *given: run(x, y, z, stream, function, packed, None, None, None, *given, *rest)


class Launcher:
    """A kernel whose parameters are, in this order: descriptors, pointers, integers, floats, constants.

    Args:
        kernel: what `triton.jit` made. In Triton's interpreter nothing is kept, and every launch is Triton's own.
    """

    __slots__ = ("_kernel", "_variants")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._variants: dict[tuple[Any, ...], tuple[Launch, Any]] = {}

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
        kept = self._variants.get(key)
        if kept is not None:
            kept[0](grid, (*descriptors, *addresses, *numbers, *floats, *constants))
            return
        variant = self._kernel[grid](*descriptors, *pointers, *numbers, *floats, *constants, num_warps=num_warps)
        if variant is not None:
            if len(self._variants) >= _KEPT:
                self._variants.clear()
            self._variants[key] = _launch_of(variant), variant

    def at(self, site: Site, pointers: tuple[Tensor | None, ...], descriptors: tuple[Any, ...] = ()) -> None:
        """Launch it at a site."""
        grid, numbers, constants, num_warps, floats = site
        self(grid, pointers, numbers, constants, num_warps=num_warps, floats=floats, descriptors=descriptors)

    def bound(self, site: Site, kinds: tuple[torch.dtype | None, ...], index: int, odd: tuple[int, ...] = ()) -> Bound | None:
        """Return the launch at a site on a device, or None if none like it was launched before.

        What every launch otherwise looks at is left to the caller: the device is current, all addresses but the odd ones are
        multiples of 16 bytes, no hook is `listening`.

        Args:
            kinds: dtypes of the pointers.
            index: what `Tensor.get_device` gives for them.
            odd: places of pointers that are no multiples of 16 bytes.
        """
        marks = [place not in odd for place in range(len(kinds))] if odd else ()
        kept = self._variants.get((site.numbers, site.constants, site.num_warps, index, *kinds, *marks))
        return None if kept is None else _bound_of(kept[1], site.grid, (*site.numbers, *site.floats, *site.constants))
