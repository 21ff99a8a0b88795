"""Kernels of a device: their names, their kinds, and the table of the time they own."""

from __future__ import annotations

import ctypes
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Annotated as A
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from strobe.perf.analysis.device.activity import BUSY, DeviceView, EventView
from strobe.perf.analysis.device.intervals import Distribution, Ints, distributions, totals
from strobe.perf.analysis.parts import OF_KERNELS, Part
from strobe.perf.table.fields import count_cell, exact_cell
from strobe.perf.table.model import Code, Count, ExactTime
from strobe.perf.table.rows import OnDevice, col, of_calls, part_of, term
from strobe.perf.trace.events import DEVICE_KINDS

# Kernel names: demangled, and grouped so that one row of a table is one kind of kernel.
#
# The rules, in order:
#
# 1. `_Z...` names are demangled by the C++ runtime where it can be loaded; otherwise the name stays and is counted.
# 2. A C++ name loses its return type, its parameters, anonymous namespaces, PyTorch's own namespaces and its template arguments,
#    except the first one that says what the kernel does: a functor, a function, a library's kernel - not a type, a number, a
#    container or a wrapper. `vectorized_elementwise_kernel<4, GeluCUDAKernelImpl(...)::{lambda()#2}, ...>` is
#    `vectorized_elementwise_kernel<GeluCUDAKernelImpl>`; FlashAttention 2 is `flash::flash_fwd_kernel`, FlashAttention 3 is
#    `cutlass::device_kernel<FlashAttnFwdSm90>`.
# 3. A plain name ends before its tile shape (`_128x64`, `_tilesize64x64x64`, `_MT256x192x64`) or cuDNN's `_knob_`: nvjet,
#    cutlass, cuBLAS and Tensile kernels are grouped by family. What was cut stays in the full name, listed with its group.
# 4. What a code generator appends is cut: the counter of Inductor and XLA (`triton_poi_fused_add_12`), the argument list of
#    Triton (`_0d1d2de`) and of the CuTe DSL (`_object_at__tensorptr...`), and hashes of 8 or more hexadecimal digits. Of the
#    template kernels of FlexAttention the operators fused into them are cut.
# 5. Copies and memsets keep their names.

_LIBRARIES: Final = ("libstdc++.so.6", "libc++abi.so.1", "libc++abi.dylib")
MANGLED: Final = "_Z"
"""Beginning of a C++ name that is not demangled."""
_DESCRIPTOR: Final = ".kd"
_CLONE: Final = " [clone "
_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)::|_GLOBAL__N__\w{1,400}?::")  # the hash and name of a file
_OUR_NAMESPACES: Final = re.compile(r"\b(?:at::native|at|c10|std)::")
_IDENTIFIER: Final = re.compile(r"(?<!\w)(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)")
_SAYS_NOTHING: Final = re.compile(
    r"\w+_t|void|bool|char|short|int|long|unsigned|signed|const|true|false|float|double|half|__half2?|complex|operator|lambda"
    r"|(?:__nv_|__hip_|nv_|hip_)?(?:bfloat16|fp8\w*)|BFloat16|Half|[Ff]loat_?[0-9e]\w*|[ui]nt\d+|struct|enum|auto|decltype"
    r"|[Aa]rray|tuple|pair|C|Layout|OpaqueType|TensorInfo|\w*Metadata|\w*OffsetCalculator|\w*[Tt]raits|\w*Policy\w*"
    r"|ReduceOp|gpu_kernel_impl\w*|[AB]?(?:Unary|Binary|Ternary|Pointwise)(?:Op\w*)?Functor|enable_(?:if|sm)\w*|\w*TensorIterator\w*"
)
_TILE: Final = re.compile(r"_(?:[A-Za-z]*(?:\d{2,}x\d|\d+x\d{2})|knob_\d)")  # not the 3x3 of a convolution
_GENERATED: Final = re.compile(r"triton_|.*fus(?:ed|ion)")
_COUNTER: Final = re.compile(r"[._]\d+$")
_TRITON_ARGUMENTS: Final = re.compile(r"_(?=\d+[dc])0[0-9dce]*$")
_CUTE_ARGUMENTS: Final = "_object_at_"
_CUTE_LIST: Final = re.compile(rf"{_CUTE_ARGUMENTS}\S*")
_HASH: Final = re.compile(r"_(?!(?:b?f\d+)+(?:_|$))(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}(?=_|$)")  # bf16bf16 is none
_FLEX: Final = re.compile(r"triton_tem_fused_(?:\w*_)?(flex_(?:attention|decoding))(?:_\w*)?")
_CAST: Final = re.compile(r"\([\w:]+\)-?\d+")
_COPY: Final = re.compile(r"mem(?:cpy|set)|copy(?:host|device)to", re.IGNORECASE)


@functools.lru_cache(maxsize=65_536)
def full_name(raw: str) -> str:
    """Demangle one name."""
    text = _without_suffixes(raw)
    return demangle(text) if text.startswith(MANGLED) else text


@functools.lru_cache(maxsize=65_536)
def kernel_name(raw: str) -> str:
    """Return the group of one name: it is demangled and normalised."""
    full = full_name(raw)
    if _COPY.match(full) or full.startswith(MANGLED):
        return full
    is_cpp = full.startswith("void ") or "::" in full or ("<" in full and " -> " not in full)
    group = _cpp_group(_ANONYMOUS.sub("", full)) if is_cpp or re.search(r"\S\(", full) else _plain_group(full)
    return group or full


def comparable(launch: str) -> str:
    """Cut from a full name, with or without a grid behind it, what differs between two launches of one kernel.

    That is what torch.compile fused into a template kernel, and a CuTe kernel's list of arguments, which says whether it
    writes the log-sum-exp.
    """
    return _CUTE_LIST.sub("", _FLEX.sub(_template, launch))


def _template(found: re.Match[str]) -> str:
    return f"triton_tem_fused_{found[1]}"


def _without_suffixes(raw: str) -> str:
    """Cut what compilers add behind a name, `.kd` and ` [clone .1]`, in a time that grows with its length alone."""
    end = len(raw)
    while True:
        if raw.endswith(_DESCRIPTOR, 0, end):
            end -= len(_DESCRIPTOR)
        elif raw.endswith("]", 0, end) and (start := raw.find(_CLONE, raw.rfind("]", 0, end - 1) + 1, end)) >= 0:
            end = start
        else:
            return raw[:end]


def demangle(name: str) -> str:
    """Demangle a C++ name; return the name itself if it is not mangled or no C++ runtime can be loaded."""
    runtime = _runtime()
    if runtime is None:
        return name
    status = ctypes.c_int()
    found = runtime[0](name.encode("utf-8", "surrogatepass"), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode("utf-8", "replace")
    finally:
        runtime[1](found)


@functools.cache
def _runtime() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer] | None:
    for library in _LIBRARIES:
        try:
            demangler, free = ctypes.CDLL(library).__cxa_demangle, ctypes.CDLL(None).free
        except (OSError, AttributeError, TypeError):
            continue
        demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        demangler.restype, free.argtypes, free.restype = ctypes.c_void_p, [ctypes.c_void_p], None
        return demangler, free
    return None


def _plain_group(name: str) -> str:
    name = _FLEX.sub(_template, name).partition(_CUTE_ARGUMENTS)[0]
    tile = _TILE.search(name)
    if tile and tile.start():
        name = name[: tile.start()]
    name = _HASH.sub("", _TRITON_ARGUMENTS.sub("", name))
    return _COUNTER.sub("", name) if _GENERATED.match(name) else name


def _cpp_group(name: str) -> str:
    base, arguments = _split(name)
    base = _OUR_NAMESPACES.sub("", base)
    for match in _IDENTIFIER.finditer(_CAST.sub("", arguments)):
        if not _SAYS_NOTHING.fullmatch(match[1]):
            return f"{base}<{_plain_group(match[1])}>"
    return _plain_group(base)


def _split(name: str) -> tuple[str, str]:
    """Split off the template arguments, and drop return type and parameters from the qualified name."""
    base: list[str] = []
    arguments: list[str] = []
    depth = 0
    for i, letter in enumerate(name):
        if letter == ">" and name[i - 1 : i] != "-":
            depth = max(0, depth - 1)
            if not depth:
                arguments.append(",")  # of A<b>::C<d>, b and d are two
        if depth:
            arguments.append(letter)
        elif letter == "(":
            break
        elif letter == " ":
            base.clear()
            arguments.clear()
        elif letter not in "<>":
            base.append(letter)
        if letter == "<":
            depth += 1
    return "".join(base), "".join(arguments)


# Kinds of kernels, by their names: attention, matrix products, or others.
#
# Libraries name their matrix products by a few words (GEMM, nvjet, Tensile's Cijk) and attention by fewer; what PyTorch's
# compiler fuses into pointwise and reduction kernels carries the names of other operators and is neither. A kernel with an
# unknown name is counted with the others, so the kinds always add up.

_FUSED: Final = re.compile(r"triton_(?:poi|per|red|for)_")


def kernel_part(raw: str) -> Part:
    """Return the part that the name of a kernel in the trace tells."""
    name = kernel_name(raw)
    if _FUSED.match(name):
        return Part.OTHER_KERNELS
    return next(part for part, names in OF_KERNELS.items() if names.search(name))


# Kernel table of any trace: device events by the time they own.
#
# Every event that overlaps the window counts, cut to the window. Exclusive times add up to the device's busy time exactly; sums
# of durations do not wherever events overlap.


_NO_SHAPE: Final = "the trace gives none"


class KernelRow(OnDevice, frozen=True, kw_only=True):
    """Calls of one kernel on one device; exclusive times add up to the busy time of the device."""

    kernel: A[str, col("normalised name of the group", "kernel", Code)]
    shape: A[str, col("input sizes, or grid and block; empty: by name", "shape", Code, where="shape", missing=_NO_SHAPE)]
    kind: A[str, col("`kernel`, `comm` (communication), `memset` or `memcpy`", "kind")]
    calls: A[int, col("number of calls", "calls", Count, total=sum)]
    exclusive_ns: A[
        int, term("time no other row counts; adds up to busy", "exclusive", ExactTime, total=sum, of={"of busy": "busy_ns"})
    ]
    sum_ns: A[int, col("sum of the durations, not additive where calls overlap", "sum", ExactTime, total=sum)]
    min_ns: A[int, col("duration of the shortest call", "min", exact_cell)]
    p50_ns: A[int, col("median duration of a call", "p50", exact_cell)]
    mean_ns: A[float, col("mean duration of a call", "mean", exact_cell)]
    p99_ns: A[int | None, col("99th percentile; null below 459 calls", "p99", exact_cell, missing=of_calls)]
    max_ns: A[int, col("duration of the longest call", "max", exact_cell)]
    unlinked_calls: A[int, term("calls whose launch call is not in the trace", "unlinked", count_cell, total=sum)]


class KernelNameRow(OnDevice, frozen=True, kw_only=True):
    """One full kernel name behind a row of `kernels`."""

    kernel: A[str, col("normalised name of the kernel, as in `kernels`", "kernel", Code, total=lambda groups: next(iter(groups)))]
    shape: A[str, col("as in `kernels`")]
    name: A[str, col("full name of the kernel, demangled where possible", "full name", Code)]
    calls: A[int, col("number of calls", "calls", Count, total=sum)]
    sum_ns: A[int, col("sum of the durations of the calls", "sum", ExactTime, total=sum)]


def kernel_row(calls: Distribution, **told: Any) -> KernelRow:
    """Return the row of some calls; what is not told is empty or 0."""
    nothing = {"trace": "", "device": 0, "shape": "", "kind": "", "exclusive_ns": 0, "unlinked_calls": 0}
    return part_of(KernelRow, calls, calls=calls.n, **{**nothing, **told})


KernelTable: TypeAlias = tuple[tuple[KernelRow, tuple[KernelNameRow, ...]], ...]
"""Kernels, most exclusive time first, each with its full names, those that took most first."""


def kernel_table(view: DeviceView, by: Literal["name", "shape"] = "name") -> KernelTable:
    """Tabulate the events of one device by group, or by group and shape, most exclusive time first.

    Exclusive times add up to the time in which at least one event ran.
    """
    events = view.trace.device_events

    def codes_of(work: EventView) -> Ints:
        code = work.name.astype(np.int64) * len(events.shapes)
        if by == "shape":
            code += work.shape
        return code * len(DEVICE_KINDS) + work.kind

    counted = time_by_code(view, codes_of)
    codes, ids, numbers = np.array(sorted(counted), np.int64), dict[tuple[str, str, str], int](), list[int]()
    names: list[dict[str, list[tuple[int, ...]]]] = []
    for code in codes.tolist():
        rest, kind = divmod(code, len(DEVICE_KINDS))
        name, shape = divmod(rest, len(events.shapes))
        group, full = kernel_name(events.names[name]), full_name(events.names[name])
        number = ids.setdefault((group, events.shapes[shape] if by == "shape" else "", DEVICE_KINDS[kind]), len(ids))
        names += [{}] if number == len(names) else []
        names[number].setdefault(full, []).append(counted[code])
        numbers.append(number)
    row_of = np.array(numbers, np.int64)
    lengths = np.concatenate([part.length for part in view.parts()])
    of_call = np.concatenate([row_of[np.searchsorted(codes, codes_of(part.work))] for part in view.parts()])
    calls = distributions(lengths, of_call, len(ids))
    found = []
    for (group, shape_, kind_), of_name, times in zip(ids, names, calls, strict=True):
        assert times is not None, "a row is there because of its calls"
        own = {full: tuple(map(sum, zip(*each, strict=True))) for full, each in of_name.items()}
        _, exclusive_ns, _, unlinked = map(sum, zip(*own.values(), strict=True))
        told = {**view.where, "kernel": group, "shape": shape_}
        ranked = sorted(own.items(), key=lambda one: (-one[1][2], one[0]))
        of_row = tuple(KernelNameRow(**told, name=full, calls=each[0], sum_ns=each[2]) for full, each in ranked)
        found.append((kernel_row(times, **told, kind=kind_, exclusive_ns=exclusive_ns, unlinked_calls=unlinked), of_row))
    found.sort(key=lambda one: (-one[0].exclusive_ns, -one[0].sum_ns, one[0].kernel, one[0].shape, one[0].kind))
    return tuple(found)


def time_by_code(view: DeviceView, codes_of: Callable[[EventView], Ints]) -> dict[int, tuple[int, ...]]:
    """Return by code the number of events, the time that they own, the sum of their durations, and those of unknown launch."""
    found: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def add(codes: Ints, columns: Mapping[int, Ints]) -> None:
        some, which = np.unique(codes, return_inverse=True)
        for place, values in columns.items():
            for code, value in zip(some.tolist(), totals(values, which, len(some)).tolist(), strict=True):
                found[code][place] += value

    for part in view.parts():
        add(codes_of(part.work), {0: np.ones_like(part.length), 2: part.length, 3: (part.work.host < 0).astype(np.int64)})
    for slices in view.stretches():
        busy = slices.cause == BUSY
        add(codes_of(view.work.at(slices.event[busy])), {1: slices.length[busy]})
    return {code: tuple(counts) for code, counts in found.items()}
