"""Functions of the caller's own: equal inputs, outputs held against each other, timed in palindromes, and traced, as records."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np
import torch

from strobe.bench.gate import GateResult
from strobe.bench.runner import Rounds, end_line, trace_line
from strobe.core.device import gpus_in_use, resolve_device, synchronize
from strobe.core.errors import ConfigError
from strobe.core.spans import FRAME_BLOCK, span
from strobe.core.tolerances import TOLERANCES
from strobe.perf.measure.machine import describe_run, held, read_clocks
from strobe.perf.measure.profile import Capture, trace_blocks
from strobe.perf.measure.timing import TimingRecorder, palindrome
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter

_COPIED: Final = (torch.Generator, bytearray)
_PLAIN: Final = (int, float, complex, str, bytes, bytearray, set, frozenset)
MAX_COPIES_BYTES: Final = 256 << 20
"""Copies that are made ahead for the calls of one sample take no more than this."""


class CallArguments:
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
        with _blamed("inputs", "making arguments, for what can be called makes them: (x,) is one argument"):
            return copied(self._make()) if self._make is not None else copied(self._kept)

    def unchanged(self, used: object) -> bool:
        """Return whether arguments that a call has had are as they were."""
        return self._make is not None or same(used, self._kept)

    def most(self) -> int:
        return max(1, MAX_COPIES_BYTES // max(1, num_bytes(self.one()))) if self.fresh else 1 << 30


def bound(function: Callable[..., object], arguments: Any) -> Callable[[], object]:
    """Return a call of a function with arguments as `CallArguments` has them."""
    if isinstance(arguments, tuple):
        return (lambda: function(*arguments)) if arguments else function
    if isinstance(arguments, dict):
        return lambda: function(**arguments)
    return lambda: function(arguments)


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a deep copy of tensors, arrays and the containers that hold them; other objects are not copied.

    Raises:
        ConfigError: an iterator, or a tensor that is the result of a differentiable operation.
    """
    memo = {} if memo is None else memo
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
    elif _is_dense(value) or isinstance(value, _COPIED) or hasattr(value, "__array_interface__"):
        found = copy.deepcopy(value, memo)
    elif isinstance(value, MutableMapping):
        found = copy.copy(value)
        for key in value:
            found[key] = copied(value[key], memo)
    elif isinstance(value, tuple):
        items = [copied(each, memo) for each in value]
        found = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif isinstance(value, list | set):
        found = type(value)(copied(each, memo) for each in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(found, field.name, copied(getattr(value, field.name), memo))
    memo[id(value)] = found
    return found


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """Return what a container holds, each with its place as code writes it; None: it is none."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", each) for index, each in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _is_dense(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor that can be copied and compared: none that is sparse, quantised, nested or without data."""
    odd = not isinstance(value, torch.Tensor) or value.is_quantized or value.is_nested or value.is_meta
    return not odd and value.layout == torch.strided


def same(one: Any, other: Any) -> bool:
    """Return whether two copies of one value are still equal; what is not copied always is."""
    if _is_dense(one):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = one.detach(), other.detach()
        return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN where NaN was
    if isinstance(one, torch.Generator):
        return bool(torch.equal(one.get_state(), other.get_state()))
    if hasattr(one, "__array_interface__"):
        return bytes(np.asarray(one).tobytes()) == bytes(np.asarray(other).tobytes())
    if (items := _items(one)) is not None:
        others = _items(other) or []
        return [at for at, _ in items] == [at for at, _ in others] and all(
            same(mine, theirs) for (_, mine), (_, theirs) in zip(items, others, strict=True)
        )
    if isinstance(one, _PLAIN):
        return type(one) is type(other) and bool(one == other or one != one)
    return one is other


def num_bytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a value."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes() if _is_dense(value) else 0
    if (items := _items(value)) is not None:
        return sum(num_bytes(each) for _, each in items)
    return sum(map(num_bytes, value)) if isinstance(value, set) else int(getattr(value, "nbytes", 0))


_EXACT: Final = (str, bytes, bytearray, bool, type(None), set, frozenset, range, slice)
_LIMITS: Final = TOLERANCES["call"]
_LATER: Final = (Iterator, AsyncIterator, Awaitable)


Leaves: TypeAlias = list[tuple[str, Any]]
"""Values of an output, each with the place where it stands."""


def leaves(output: object, path: str = "out") -> Leaves:
    """Return the values of an output in order, copied from what the next call may overwrite.

    Raises:
        ConfigError: it holds something that cannot be compared, or a call that has not run yet.
    """
    if _is_dense(output):
        return [(path, output.detach().clone())]
    if isinstance(output, (*_EXACT, int, float, complex)):
        return [(path, output)]
    if hasattr(output, "__array_interface__"):  # NumPy, and images of PIL
        return [(path, _array(output, path))]
    if (items := _items(output)) is None:
        if isinstance(output, _LATER):
            waits = "asyncio.run(f())" if isinstance(output, Awaitable) else "list(f())"
            if isinstance(output, AsyncIterator):
                waits = "asyncio.run(g()), where async def g(): return [x async for x in f()]"
            raise ConfigError(
                f"{path} is a {type(output).__name__}: nothing has run when it is returned; compare a function that waits for "
                f"the result, such as lambda: {waits}"
            )
        kind = "sparse, quantised, nested or meta tensor" if isinstance(output, torch.Tensor) else type(output).__name__
        raise ConfigError(
            f"{path} is a {kind}, which cannot be compared; return dense tensors, arrays, numbers, text, or lists, "
            f"tuples, dictionaries and dataclasses of them, or give tolerance=math.inf to compare no outputs"
        )
    return [leaf for where, value in items for leaf in leaves(value, f"{path}{where}")]


def _array(output: Any, path: str) -> Any:
    array = np.array(output)
    if array.dtype.kind in "biufc":
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    if array.dtype.kind in "US":
        return array.tolist()
    raise ConfigError(f"{path} is an array of {array.dtype}, which cannot be compared; give tolerance=math.inf to compare none")


def agree(found: Leaves, expected: Leaves, tolerance: float | None) -> GateResult:
    """Hold an output against that of the reference.

    The relative error of floating-point numbers is the root mean square of the difference / that of the expected values, in
    float64. Integers, text and the shapes must be equal; with a tolerance of the caller's, integers in tensors count as numbers.

    Args:
        tolerance: largest relative error; None: by dtype, the coarser one of both.
    """
    names = {_name(value) for _, value in (*found, *expected)}
    allowed = [(name, limit) for name, limit in _LIMITS.items() if name in names]
    allowed = allowed if tolerance is None else [("as asked for", tolerance)]
    limits = ", ".join(f"{limit:g} ({dtype})" for dtype, limit in allowed)
    rule = f"the same output: relative error <= {limits}" if limits else "the same output"
    if odd := sorted({path for path, _ in found} ^ {path for path, _ in expected}):
        return GateResult(False, rule, f"the outputs are not built alike: only one has {odd[0]}", exact=True)
    place = {path: at for at, (path, _) in enumerate(expected)}
    found = sorted(found, key=lambda leaf: place[leaf[0]])  # items of a dictionary may come in any order
    worst, at = 0.0, ""
    for (path, own), (_, other) in zip(found, expected, strict=True):
        wrong, error = _differ(own, other, tolerance)
        if wrong:
            return GateResult(False, rule, f"{path}: {wrong}", exact=True)
        if error > worst:
            worst, at = error, path
    if all(value is None for _, value in expected):
        return GateResult(True, "nothing to compare", "neither returns a value")
    return GateResult(True, rule, f"largest {worst:.3g}, at {at}" if at else "equal in every bit", exact=True)


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
    """Root mean square of the difference / that of the expected values; infinite where they are not finite in the same places. Of
    expected zeros it is the root mean square of the values found."""
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


Functions = Mapping[str, Callable[..., object]]

SAMPLE_NS: Final = 2_000_000
"""Shorter calls are repeated within a sample until it lasts this long, so that the cost of taking it does not count."""
LONG_NS: Final = 500_000_000
"""But only until one of the slowest function lasts this long."""
SEED: Final = 0
"""Of torch's random numbers, before each call whose output is compared."""


def check_functions(functions: Functions) -> None:
    """Refuse what is no comparison, before anything is called.

    Raises:
        ConfigError: fewer than two functions, a name that is no text, or something that cannot be called.
    """
    if not isinstance(functions, Mapping):
        raise ConfigError(
            f'give a dictionary of functions, such as {{"eager": f, "compiled": g}}; got a {type(functions).__name__}'
        )
    if len(functions) < 2:
        raise ConfigError(f"a comparison needs two functions or more, got {', '.join(map(repr, functions)) or 'none'}")
    for name, function in functions.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigError(f"{name!r} is no name of a function: give text that can be printed, such as 'compiled'")
        if not callable(function):
            kind = type(function).__name__
            raise ConfigError(f"{name!r} cannot be called, for its type is {kind}; give a function, not its result")
    alike = [name.strip() for name in functions]
    if len(set(alike)) < len(alike):
        raise ConfigError(f"names must differ in more than spaces, got: {', '.join(map(repr, functions))}")


def measure_calls(
    functions: Functions,
    inputs: object,
    open_run: Callable[[], RunWriter],
    *,
    rounds: int,
    warmup: int,
    tolerance: float | None,
    trace: bool,
    device: str,
) -> Path:
    """Hold functions against the first, time and trace them; return the run folder. One whose gate is red gets no numbers.

    Args:
        open_run: makes the run folder, once every function has been called.

    The others, and what is raised, are those of `strobe.compare`.
    """
    check_functions(functions)
    if not all(isinstance(number, int | np.integer) and number >= 1 for number in (warmup, rounds)):
        raise ConfigError(f"warmup and rounds must be whole numbers of at least 1, got {warmup!r} and {rounds!r}")
    if tolerance is not None and not (isinstance(tolerance, int | float | np.floating) and tolerance >= 0):
        raise ConfigError(f"tolerance={tolerance!r}: give a relative error of 0 or more; math.inf compares no outputs")
    named = None if device == "auto" else resolve_device(device)
    calls = _FunctionCalls(functions, CallArguments(inputs))
    names, compared = list(functions), tolerance != math.inf
    outputs = {name: calls.first(name, compared=compared) for name in names}
    calls.warm_up(warmup)
    calls.find_gpus(named)
    with open_run() as writer, end_line(writer):
        run = Rounds(writer, calls.device, lambda *_: None, 0)
        writer.append(describe_run(writer.folder, calls.device, palindrome(names[0], names[1:]), rounds, "calls"))
        expected = outputs[names[0]]
        gates = [agree(outputs.pop(name), expected, tolerance).line(name, names[0]) for name in names[1:] if compared]
        writer.append(*gates)
        red = [gate.variant for gate in gates if not gate.passed]
        green = [name for name in names if name not in red]
        outputs.clear()
        del expected
        if len(green) > 1:
            gc.collect()
            gc.freeze()  # garbage is collected before every sample, and only what came to be meanwhile
            try:
                calls.time_all(run, green, rounds, trace=trace)
            finally:
                gc.unfreeze()
        return writer.folder


@contextmanager
def _blamed(name: str, when: str) -> Iterator[None]:
    """Add to whatever a function raises which one it was, and when; undo what it sets for all."""
    before, threads = sys.exception(), torch.get_num_threads()
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if (error := sys.exception()) is not None and error is not before:
            error.add_note(f"strobe.compare: {name!r} raised this in {when}")


class _FunctionCalls:
    """The functions of a comparison with their inputs, and the device that is waited for."""

    def __init__(self, functions: Functions, inputs: CallArguments) -> None:
        self._functions, self._inputs = functions, inputs
        self._own: dict[str, Any] = {}
        self._gpus: tuple[torch.device, ...] = ()
        self._calls = 1

    @property
    def device(self) -> torch.device:
        """The first GPU that is waited for, else the CPU."""
        return self._gpus[0] if self._gpus else torch.device("cpu")

    def first(self, name: str, *, compared: bool) -> Leaves:
        """Call a function once with inputs and random numbers that are those of all others; return its output to compare."""
        inputs = self._inputs.one()
        with _blamed(name, "its first call"), _seeded():
            output = bound(self._functions[name], inputs)()
        if not self._inputs.unchanged(inputs):
            self._inputs.fresh = True  # from now on every call of every function has its own
        found = leaves(output, f"{name}: out") if compared else []
        return [(path.removeprefix(f"{name}: "), value) for path, value in found]

    def warm_up(self, calls: int) -> None:
        self._own = {name: None if self._inputs.fresh else self._inputs.one() for name in self._functions}
        for name in self._functions:
            with _blamed(name, "the warm-up"):
                for call in self._prepared(name, calls):
                    call()

    def find_gpus(self, named: torch.device | None) -> None:
        """Find the GPUs to wait for, the one whose events are read first; none on a CPU.

        Raises:
            ConfigError: the CPU was named and the process works on a GPU.
        """
        used = gpus_in_use()
        if named is None:
            self._gpus = used
        elif named.type == "cuda":
            self._gpus = (named, *(each for each in used if each != named))
        elif used:
            raise ConfigError(
                'device="cpu", but this process works on a GPU: its kernels would not be timed; leave device out, or give "cuda"'
            )

    def _prepared(self, name: str, calls: int) -> list[Callable[[], object]]:
        """Calls with their inputs: of their own each where a function changes them, else those of the function."""
        function = self._functions[name]
        if self._inputs.fresh:
            return [bound(function, self._inputs.one()) for _ in range(calls)]
        return [bound(function, self._own[name])] * calls

    def _one_call_ns(self, name: str) -> int:
        (call,) = self._prepared(name, 1)
        self._wait()
        with _blamed(name, "the warm-up"):
            start = time.perf_counter_ns()
            call()
            self._wait()
            return max(1, time.perf_counter_ns() - start)

    def _wait(self) -> None:
        for gpu in self._gpus:
            synchronize(gpu)

    def time_all(self, run: Rounds, names: list[str], rounds: int, *, trace: bool) -> None:
        """Find how many calls a sample takes, and time samples in palindromes after one of each that warms up; then trace one."""
        took = [self._one_call_ns(name) for name in names]
        self._calls = max(1, min(math.ceil(SAMPLE_NS / min(took)), LONG_NS // max(took), self._inputs.most()))
        recorder = TimingRecorder(self.device, inside=True)
        counted = {name: self._sample(run, recorder, name, "warmup", None) for name in names}
        for name in names:
            run.writer.append(record.Variant(name=name, preset=record.CUSTOM, calls_per_stage=dict(counted[name])))
            run.exclude(name, (0,), "warm-up", "warm-up")
        for name, lap in run.laps(names, rounds):
            self._sample(run, recorder, name, "timed", lap)
        for number, name in enumerate(names if trace else ()):
            with _blamed(name, "the traced sample"):
                self._trace(run, number, name)

    def _sample(self, run: Rounds, recorder: TimingRecorder, name: str, phase: record.Phase, lap: int | None) -> Counter[str]:
        """Time some calls in a row, from an idle device to an idle device, and write them down."""
        calls = self._prepared(name, self._calls)
        gc.collect()
        self._wait()
        start = held(self.device)
        start_bytes = start.get("allocated_bytes", start["resident_bytes"])
        with _blamed(name, "the warm-up" if lap is None else f"round {lap + 1}"):
            return run.timed(name, phase, lap, recorder, lambda: self._row(calls, 0), calls=len(calls), start_bytes=start_bytes)

    def _row(self, calls: Sequence[Callable[[], object]], index: int) -> tuple[()]:
        with span(FRAME_BLOCK, index):
            for call in calls:
                call()
        self._wait()
        return ()

    def _trace(self, run: Rounds, number: int, name: str) -> None:

        def samples() -> Iterator[None]:
            for index in (1, 0):  # the second is kept, and has the number of the timed one
                calls = self._prepared(name, self._calls)
                self._wait()
                self._row(calls, index)
                yield

        words = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "function"
        path = run.writer.folder / "traces" / f"{number}-{words}.json.gz"
        trace_blocks(samples(), device=self.device, first_block=1, num_blocks=1, path=path, capture=Capture())
        clip = run.clips.finish(name, "traced", None, 0, read_clocks(self.device), calls=self._calls)
        run.writer.append(trace_line(clip, path, run.writer.folder, range(1)), clip)


@contextmanager
def _seeded() -> Iterator[None]:
    """Let torch, NumPy and Python draw the same random numbers every time; afterwards they go on as before."""
    python, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([gpu.index for gpu in gpus_in_use()]):
            torch.manual_seed(SEED)
            np.random.seed(SEED)
            random.seed(SEED)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
