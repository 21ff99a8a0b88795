"""A kept variant is launched only where Triton itself would take it."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strobe.attention.sparse import launch as launching
from strobe.attention.sparse.launch import Launcher, known_triton


class Variant:
    """What compiling made: notes how it is launched, as `compiled[grid](*arguments)` or by its `run`."""

    function, packed_metadata = 11, (4, 1, 0)

    def __init__(self, kernel: Kernel, special: object) -> None:
        self.kernel, self.special = kernel, special

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.kernel.described += 1
        return lambda *arguments: self.kernel.direct.append((self.special, grid, arguments))

    def run(self, x: int, y: int, z: int, stream: int, function: int, packed: object, *rest: Any) -> None:
        assert (stream, function, packed, rest[:3]) == (7, 11, (4, 1, 0), (None, None, None))
        self.kernel.direct.append((self.special, (x, y, z), rest[3:]))


class Kernel:
    """As `triton.jit` makes it: `kernel[grid](*arguments, num_warps=...)` launches and returns the variant it took."""

    def __init__(self, special: Any = None) -> None:
        self.special, self.direct, self.own = special or (lambda *_: None), [], []  # type: ignore[var-annotated]
        self.described = 0  # launches by way of what describes them to hooks

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int) -> Variant:
            self.own.append((grid, arguments, num_warps))
            return Variant(self, self.special(*arguments, num_warps))

        return launch


@pytest.fixture(params=["run", "item"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How a kept variant is launched: with a Triton whose `run` is known, and with any other."""
    known = request.param == "run"
    monkeypatch.setattr(launching, "known_triton", lambda: known)
    if not known:
        yield "item"
        return
    driver = pytest.importorskip("triton.runtime").driver
    driver.set_active(SimpleNamespace(get_current_device=lambda: 3, get_current_stream=lambda device: 7 if device == 3 else 0))
    yield "run"
    driver.set_active(None)


def test_the_second_launch_goes_past_triton_with_the_new_arguments(way: str) -> None:
    launch = Launcher(kernel := Kernel())
    first, second = torch.zeros(32), torch.ones(32)
    for tensor, scale in ((first, 0.5), (second, 0.25)):
        launch((3, 2, 1), (tensor, None), (7,), (64, True), num_warps=2, floats=(scale,), descriptors=("rows",))
    assert kernel.own == [((3, 2, 1), ("rows", first, None, 7, 0.5, 64, True), 2)]
    assert kernel.direct == [(None, (3, 2, 1), ("rows", second.data_ptr(), None, 7, 0.25, 64, True))]
    assert kernel.described == (way == "item")


@pytest.mark.parametrize("hook", [SimpleNamespace(calls=[print]), print])
@pytest.mark.parametrize("which", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("way", ["run"], indirect=True)
def test_launches_are_described_while_a_hook_listens(way: str, which: str, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton").knobs
    launch, tensor = Launcher(kernel := Kernel()), torch.zeros(32)
    for listening in (False, True, False):
        with monkeypatch.context() as patch:
            if listening:
                patch.setattr(knobs.runtime, which, hook)
            for _ in range(2):
                launch((3, 2, 1), (tensor,), (7,), (64,), num_warps=2)
    assert len(kernel.own) == 1 and len(kernel.direct) == 5 and kernel.described == 2


@pytest.mark.parametrize(
    ("version", "known"),
    [("3.3.1", False), ("3.4.0", True), ("3.6.0+gitabc", True), ("3.9.0", True), ("3.10.0", False), (None, False)],
)
def test_the_run_of_some_versions_is_known(version: str | None, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    launching._version.cache_clear()
    found = known_triton()
    launching._version.cache_clear()
    assert found is known


def test_a_bound_launch_of_3_6_goes_past_the_allocation_of_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    class CudaLauncher:
        launch_cooperative_grid, launch_pdl, profile_scratch_size = False, True, 0

        def __init__(self, scratch: int) -> None:
            self.global_scratch_size = scratch

        def launch(self, *given: Any) -> None:
            seen.append(given)

        def __call__(self, *given: Any) -> None:
            seen.append(("run", *given))

    for version, scratch, direct in (("3.6.0", 0, True), ("3.6.0", 8, False), ("3.8.0", 0, False)):
        monkeypatch.setattr(launching, "_version", lambda version=version: version)
        variant = SimpleNamespace(run=CudaLauncher(scratch), function=11, packed_metadata=(4, 1, 0))
        launching._bound_of(variant, (3, 2, 1), (64, True))(7, 32, None)
        middle = (False, True, None, None) if direct else ()
        want = (3, 2, 1, 7, 11, *middle, (4, 1, 0), None, None, None, 32, None, 64, True)
        assert seen.pop() == (want if direct else ("run", *want)), version


_DTYPES = (torch.float32, torch.bfloat16, torch.int32)
_PLACE = st.none() | st.tuples(st.sampled_from(_DTYPES), st.integers(0, 9))
_NUMBER = st.sampled_from((0, 1, 2, 15, 16, 48, 2**31 - 1, 2**31, 2**40))
_CALL = st.tuples(_PLACE, _PLACE, _NUMBER, _NUMBER, st.sampled_from((32, 64)), st.sampled_from((1, 4)))
_BASE = {dtype: torch.zeros(64, dtype=dtype) for dtype in _DTYPES}


@given(_CALL, st.lists(st.tuples(st.integers(0, 5), _CALL), min_size=3, max_size=12))
def test_what_is_launched_is_what_triton_would_take(call: tuple[Any, ...], changes: list[tuple[int, tuple[Any, ...]]]) -> None:
    """Against Triton's own rules for what a launch specialises on; from call to call one thing changes."""
    jit = pytest.importorskip("triton.runtime.jit")
    compiler = pytest.importorskip("triton.backends.compiler")
    from triton.compiler import make_backend

    backend = make_backend(compiler.GPUTarget("cuda", 90, 32))

    def wanted(first_ptr, second_ptr, third_ptr, count, length, scale, block):  # type: ignore[no-untyped-def]
        """Nothing but a signature."""

    signature = inspect.signature(wanted)
    triton = pytest.importorskip("triton")
    constant = triton.language.constexpr
    parameters = [
        jit.KernelParam(i, each.replace(annotation=constant) if each.name == "block" else each, False, False)
        for i, each in enumerate(signature.parameters.values())
    ]
    bind = jit.create_function_from_signature(signature, parameters, backend)

    def special(*arguments: Any) -> str:
        *given, num_warps = arguments
        _, specialization, options = bind(*given, num_warps=num_warps, debug=False)
        return str((specialization, options))

    launch = Launcher(kernel := Kernel(special))
    driver = pytest.importorskip("triton.runtime").driver
    driver.set_active(SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda _: 7))
    for part, other in changes:
        call = (*call[:part], other[part], *call[part + 1 :])
        *places, count, length, block, num_warps = call
        some = [None if place is None else _BASE[place[0]][place[1] :] for place in places]
        pointers, numbers = (_BASE[torch.float32], *some), (count, length)
        launch((1, 1, 1), pointers, numbers, (block,), num_warps=num_warps, floats=(0.5,))
        if kernel.direct:
            took, _, _ = kernel.direct.pop()
            assert took == special(*pointers, *numbers, 0.5, block, num_warps)


def test_there_is_a_bound_to_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "known_triton", lambda: False)
    launch = Launcher(kernel := Kernel())
    for length in range(1100):
        launch((1, 1, 1), (torch.zeros(4),), (length,), (), num_warps=1)
    assert len(kernel.own) == 1100 and len(launch._variants) <= 512
