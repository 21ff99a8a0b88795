"""The launches in C give the driver what Triton gives it, byte by byte: `python launches_in_c.py FOLDER`, of what it builds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from triton.runtime import driver as drivers
from triton.tools.tensor_descriptor import TensorDescriptor

import launches_without_a_gpu as whole
from driver_on_cpu import Driver, compiled, launcher, variant
from strobe.attention.sparse import launches as lists
from strobe.attention.sparse import tiled
from strobe.attention.sparse.launch import Launcher, Site, dense
from strobe.attention.sparse.launches import launches
from strobe.attention.sparse.stages.impl import prepared
from strobe.core.spans import recording

BYTES = {"i32": 4, "i64": 8, "fp32": 4}
MAP = 128, *(4,) * 4, *(8,) * 4
"""Bytes of a descriptor of four dimensions: the map, sizes, strides."""
KINDS = ("*fp32", "*bf16", "constexpr", "*i32", "i32", "constexpr", "i32", "i64", "fp32", "constexpr", "constexpr")
SITE = Site((3, 2, 5), (7, 1, -8, 2**40 + 3), (64, "tf32"), 4, (0.1,))
DTYPES = (torch.float32, torch.bfloat16, None, torch.int32)
POINTERS = ((torch.float32, 1, 512), (torch.bfloat16, 3, 0), None, (torch.int32, 0, 0x7F00DEADBE00))
ADDRESSES = 0x7F0000000000, 0x7FFFFFFFF000, 0x10


def kept(driver: Driver, index: int, kinds: tuple[str, ...] = KINDS, packed: tuple[int, ...] = (4, 1, 77), **others: Any) -> Any:
    """Return a kernel's launcher with one variant, as it keeps it."""
    signature = {f"argument_{place}": kind for place, kind in enumerate(kinds)}
    function = driver.function(*(BYTES.get(kind, 8) for kind in (*kinds, "*", "*") if kind != "constexpr"))
    found = Launcher(None)
    key = (SITE.numbers, SITE.constants, SITE.num_warps, index, *DTYPES)
    found._variants[key] = None, variant(launcher(signature, **others), signature, function, packed)  # type: ignore[assignment]
    return found


def by_triton(launching: Launcher, stream: int) -> None:
    """Launch by Triton's own way: its launcher, called as for any kernel."""
    ((_, found),) = launching._variants.values()
    one, _, three = ADDRESSES
    given = one + 512, three, None, 0x7F00DEADBE00, *SITE.numbers, *SITE.floats, *SITE.constants
    found.run(*SITE.grid, stream, found.function, found.packed_metadata, None, None, None, *given)


def with_variant(site: Site, found: Any) -> Launcher:
    launching = Launcher(None)
    launching._variants[site.numbers, site.constants, site.num_warps, 0, torch.bfloat16] = None, found  # type: ignore[assignment]
    return launching


def of_more_arguments_than_fit(driver: Driver) -> None:
    site, signature = (
        Site((1, 1, 1), (7,) * 62, (), 4),
        {f"argument_{place}": "*bf16" if place == 0 else "i32" for place in range(63)},
    )
    launching = with_variant(site, variant(launcher(signature), signature, driver.function()))
    left = launches(0, (launching, site, ((torch.bfloat16, 1, 0),), (), ()))
    assert left is not None and left.__name__ == "one_by_one"


def on_a_card_without_the_copy_engine(driver: Driver) -> None:
    """A descriptor is taken apart there, and its base is an address, not a tensor."""
    site, tensor = Site((3, 2, 1), (7,), ("tf32",), 4), torch.zeros(2, 128, 2, 64, dtype=torch.bfloat16)
    signature = {"desc": "tensordesc<bf16[1, 64, 1, 64]>", "pointer": "*bf16", "number": "i32", "constant": "constexpr"}
    function = driver.function(8, *(8,) * 8, 1, 1, *(4,) * 4, *(8,) * 4, 8, 4, 8, 8)
    made = variant(launcher(signature, tensordesc_meta=None), signature, function)
    made.metadata.tensordesc_meta = None
    described = TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 64, 1, 64])
    made.run(*site.grid, 5, function, made.packed_metadata, None, None, None, described, tensor.data_ptr(), 7, "tf32")
    expected, spot = driver.taken(), (torch.bfloat16, 1, 0)
    left = launches(0, (with_variant(site, made), site, (spot,), ((spot, dense(*tensor.shape), (1, 64, 1, 64)),), ()))
    assert left is not None and left.__name__ == "one_by_one"
    left(5, tensor.data_ptr())
    assert driver.taken() == expected and len(expected) > 150


def raised(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def of_a_whole_call(driver: Driver) -> None:
    """The launches of prepared calls, with and without a coarse output, gate, rope and forced tiles."""
    made: list[int] = []

    def both(index: int, *steps: Any) -> Callable[..., None]:
        in_c = lists.launches(index, *steps)
        known, lists._KNOWN = lists._KNOWN, ()
        alone = lists.launches(index, *steps)
        lists._KNOWN = known
        assert isinstance(in_c, partial) and alone.__name__ == "one_by_one"

        def launch(*given: Any) -> None:
            driver.taken()
            alone(*given)
            expected = driver.taken()
            in_c(*given)
            assert driver.taken() == expected and len(expected) > 100 * len(steps)
            made.append(len(steps))

        return launch

    def sized(kernel: Any, key: str, signature: dict[str, str], *rest: Any) -> Any:
        sizes: list[int] = []
        for kind in (*signature.values(), "*", "*"):
            if kind != "constexpr":
                sizes += MAP if kind.startswith("tensordesc") else (BYTES.get(kind, 8),)
        return compiled(driver.function(*sizes), kernel, key, signature, *rest)

    whole.pretend(sized)
    tiled.fuses, prepared.launches = (lambda *_: True), both  # type: ignore[assignment]
    for recorder in (None, None, lambda *_: nullcontext(), lambda *_: ExitStack()):  # stages that somebody marks stand alone
        with recording(recorder):
            whole.whole_operator(2, 64, "raster", 1, gated=False, own=False)
            whole.whole_operator(2, 128, "raster", 1, gated=True, own=True)
            whole.whole_operator(1, 64, "raster", 1, gated=False, own=True)
    assert made == [5, 6, 5, 5, 6, 5, 1, 2, 1, 1, 1, 3, 1, 1, 1, 2, 1, 1], made


def main(folder: Path) -> None:
    driver = Driver(folder)
    active = whole.driver_of(whole.TARGET)
    active.utils = driver.utils
    drivers.set_active(active)
    of_a_whole_call(driver)
    first, second = kept(driver, 0), kept(driver, 0, packed=(4, 1, 2**16))
    step = SITE, POINTERS, (), ()
    both = launches(0, (first, *step), (second, *step))
    assert both is not None and both.func.__name__ == "launch", "it is done in C"  # type: ignore[attr-defined]
    for stream in (0, 0x5500AA):
        by_triton(first, stream)
        by_triton(second, stream)
        expected = driver.taken()
        assert len(expected) > 200 and expected.count((77).to_bytes(4, "little")) == 1
        both(stream, *ADDRESSES)
        assert driver.taken() == expected

    here = launches(3, (kept(driver, 3), *step))
    thread = Thread(target=lambda: here(0, *ADDRESSES))
    thread.start()
    thread.join()
    assert (103).to_bytes(8, "little") in driver.taken(), "a thread without a context takes that of the device"

    for which in (
        {"launch_pdl": True}, {"launch_cooperative_grid": True}, {"global_scratch_size": 8}, {"profile_scratch_size": 8},
        {"packed": (4, 2, 77)}, {"kinds": tuple("u32" if kind == "i32" else kind for kind in KINDS)},
    ):  # fmt: skip
        left = launches(0, (first, *step), (kept(driver, 0, **which), *step))
        assert left.__name__ == "one_by_one", which
    of_more_arguments_than_fit(driver)
    on_a_card_without_the_copy_engine(driver)
    unlike = (torch.bfloat16, 1, 512), *POINTERS[1:]
    assert launches(0, (first, SITE, unlike, (), ())) is None, "nothing like it was launched"

    driver.fail(1)
    assert "error 1: invalid argument" in raised(lambda: both(0, *ADDRESSES))
    driver.fail(7)
    assert "error 7: unknown" in raised(lambda: both(0, *ADDRESSES))
    for wrong in ((), ("stream",), (0, *range(64))):
        try:
            both(*wrong)
        except TypeError:
            continue
        raise AssertionError(wrong)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
