"""Several launches in one call of C, at the host cost of the driver's own.

Called from Python, a launch of a kept variant takes the host as long as the driver does, or longer. What it is given is known
when a call is prepared, but for the addresses at which the memory of a call begins: it is written down once, and C adds these.
That is the way with a Triton of which it is known what its kernels are given; with another, Triton launches them one by one.
"""

from __future__ import annotations

import ctypes
import struct
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.sparse.launch import Launcher, Place, Site, _version, descriptor
from strobe.core.libraries import tried

_KNOWN: Final = ("3.6.", "3.7.")
"""Versions of Triton whose kernels take, behind their arguments, the addresses of two pieces of scratch memory: `_launch` in
triton/backends/nvidia/driver.py of 3.6 and driver.c of 3.7."""

_MAP_BYTES: Final = 128
"""What a tensor map takes: `CUtensorMap` of cuda.h."""

Spot = tuple[torch.dtype, int, int]
"""A pointer of a launch: its dtype, which address of a call it counts from, 1 for the first, 0 for none, and how many bytes."""
Described = tuple[Spot, Place, tuple[int, ...]]
"""A tensor descriptor of a launch: its base, the place of the tensor, and the block that is read at once."""

Step = tuple[Launcher, Site, tuple[Spot | None, ...], tuple[Described, ...], tuple[int, ...]]
"""A kernel, where it is launched, its pointers, its descriptors, and which of the pointers are no multiples of 16 bytes."""


def fixed(tensor: Tensor | None) -> Spot | None:
    """The pointer to a tensor that every call reads."""
    return None if tensor is None else (tensor.dtype, 0, tensor.data_ptr())


def launches(index: int, *steps: Step) -> Callable[..., object] | None:
    """Return a function of a stream and addresses that launches all steps; None if none like one of them was launched before.

    What is left to the caller is as of `Launcher.bound`.

    Args:
        index: what `Tensor.get_device` gives for the pointers.
    """
    found, written = [], []
    for launcher, site, pointers, described, odd in steps:
        kinds = tuple(None if pointer is None else pointer[0] for pointer in pointers)
        marks = [place not in odd for place in range(len(kinds))] if odd else ()
        kept = launcher._variants.get((site.numbers, site.constants, site.num_warps, index, *kinds, *marks))
        launch = launcher.bound(site, kinds, index, odd)
        if kept is None or launch is None:
            return None
        found.append((launch, described, pointers))
        written.append(_written(kept[1], site, pointers, described))
    if b"" not in written and (in_c := _in_c()) is not None:
        return partial(in_c.launch, b"".join(written), index)

    def one_by_one(stream: int, *given: int | None) -> None:
        addresses: Any = (0, *given)
        for launch, described, pointers in found:
            descriptors = [_at(addresses[each[0][1]] + each[0][2], each) for each in described]
            launch(stream, *descriptors, *(None if each is None else addresses[each[1]] + each[2] for each in pointers))

    return one_by_one


@cache
def _in_c() -> Any:
    """Return the module in C, which Triton compiles once and keeps as its own; None if it cannot be had."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_module_from_src

    source = files("strobe.attention.sparse").joinpath("launches.c").read_text("utf-8")
    include_dirs, libraries = driver.include_dirs, driver.libraries
    compiled = partial(compile_module_from_src, source, "strobe_launches", include_dirs=include_dirs, libraries=libraries)
    found, error = tried(lambda: compiled(library_dirs=driver.library_dirs()))
    if error:
        warnings.warn(f"kernels are launched one by one, which takes the host longer: {error}", stacklevel=2)
    return found


def _written(variant: Any, site: Site, pointers: tuple[Spot | None, ...], described: tuple[Described, ...]) -> bytes:
    """Write down a launch of a variant, to be read by launches.c; empty if it is left to Triton."""
    if not _version().startswith(_KNOWN) or type(run := variant.run).__name__ != "CudaLauncher":
        return b""
    num_warps, num_ctas, shared_bytes, *_ = variant.packed_metadata
    if num_ctas > 1 or run.launch_cooperative_grid or run.launch_pdl or run.global_scratch_size or run.profile_scratch_size:
        return b""
    maps = getattr(variant.metadata, "tensordesc_meta", None) or ()  # none where a kernel reads without the copy engine
    if len(maps) != len(described):
        return b""
    words: list[int] = []
    for place, ((_, address, added), (sizes, strides), _) in enumerate(described, 1):
        words += address, added, place, *(word for size in (*sizes, *strides) for word in (0, size, 0))
    given: list[tuple[int, Any]] = [(0, 0) if pointer is None else pointer[1:] for pointer in pointers]
    given += ((0, value) for value in (*site.numbers, *site.floats, *site.constants))
    for kind, (address, value) in zip([*variant.src.signature.values()][len(described) :], given, strict=True):
        if kind == "fp32":
            (value,) = struct.unpack("I", struct.pack("f", value))
        elif kind[0] != "*" and kind not in ("i32", "i64", "constexpr"):
            return b""
        if kind != "constexpr":
            words += address, value % 2**64, 0
    words += (0,) * 6  # scratch memory
    if len(words) > 3 * 64 or len(described) > 4:  # more than launches.c has room for
        return b""
    head = variant.function, *site.grid, 32 * num_warps, shared_bytes, len(words) // 3, len(described)
    return struct.pack(f"{len(head) + len(words)}Q", *head, *words) + b"".join(map(_map_of, described, maps))


def _map_of(described: Described, how: Any) -> bytes:
    """Return the tensor map of a descriptor, with some address: the last bytes of the object in which Triton keeps it."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    found = make_tensordesc_arg(_at(1 << 20, described), how)[0]
    return ctypes.string_at(id(found) + type(found).__basicsize__ - _MAP_BYTES, _MAP_BYTES)


def _at(address: int, described: Described) -> Any:
    """A tensor descriptor of Triton's at an address."""
    return descriptor(SimpleNamespace(data_ptr=lambda: address), *described[1:])
