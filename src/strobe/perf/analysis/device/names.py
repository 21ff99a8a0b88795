"""Kernel names: demangled, and grouped so that one row of a table is one kind of kernel.

The rules, in order:

1. `_Z...` names are demangled by the C++ runtime where it can be loaded; otherwise the name stays and is counted.
2. A C++ name loses its return type, its parameters, anonymous namespaces, PyTorch's own namespaces and its template arguments,
   except the first one that says what the kernel does: a functor, a function, a library's kernel - not a type, a number, a
   container or a wrapper. `vectorized_elementwise_kernel<4, GeluCUDAKernelImpl(...)::{lambda()#2}, ...>` is
   `vectorized_elementwise_kernel<GeluCUDAKernelImpl>`; FlashAttention 2 is `flash::flash_fwd_kernel`, FlashAttention 3 is
   `cutlass::device_kernel<FlashAttnFwdSm90>`.
3. A plain name ends before its tile shape (`_128x64`, `_tilesize64x64x64`, `_MT256x192x64`) or cuDNN's `_knob_`: nvjet, cutlass,
   cuBLAS and Tensile kernels are grouped by family. What was cut stays in the full name, which is listed with its group.
4. What a code generator appends is cut: the counter of Inductor and XLA (`triton_poi_fused_add_12`), the argument list of Triton
   (`_0d1d2de`) and of the CuTe DSL (`_object_at__tensorptr...`), and hashes of 8 or more hexadecimal digits. Of the
   template kernels of FlexAttention the operators fused into them are cut.
5. Copies and memsets keep their names.
"""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Final, NamedTuple

_LIBRARIES: Final = ("libstdc++.so.6", "libc++abi.so.1", "libc++abi.dylib")
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


class KernelName(NamedTuple):
    """A demangled name and its group.

    Args:
        group: the normalised name.
        full: the demangled name.
        mangled: it could not be demangled.
    """

    group: str
    full: str
    mangled: bool = False


@functools.lru_cache(maxsize=65_536)
def kernel_name(raw: str) -> KernelName:
    """Demangle and normalise one name."""
    text = _without_suffixes(raw)
    full = demangle(text) if text.startswith("_Z") else text
    mangled = full.startswith("_Z")
    if _COPY.match(full) or mangled:
        return KernelName(full, full, mangled)
    is_cpp = full.startswith("void ") or "::" in full or ("<" in full and " -> " not in full)
    group = _cpp_group(_ANONYMOUS.sub("", full)) if is_cpp or re.search(r"\S\(", full) else _plain_group(full)
    return KernelName(group or full, full)


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
    """Return `__cxa_demangle` and the matching `free`."""
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
