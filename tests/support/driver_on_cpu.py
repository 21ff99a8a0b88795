"""A CUDA driver that notes what it is given, below Triton's own launcher and ours, on a machine without a GPU.

It stands in the place of libcuda for the whole process: for processes of their own. A handle of a function is the address of what
says how many bytes each argument has, because a driver knows that of a kernel.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

NOTES: Final = r"""
#include <string.h>
#include "cuda.h"

unsigned char notes[4096];
int used, failure;
static _Thread_local CUcontext current;

static void note(const void *what, size_t bytes) {
  memcpy(notes + used, what, bytes);
  used += bytes;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  const int *bytes = (const int *)function;
  if (bytes[0] == 0)
    return failure;
  note(config, 7 * sizeof(int));
  note(&config->hStream, sizeof(CUstream));
  note(&config->numAttrs, sizeof(int));
  note(&current, sizeof(CUcontext));
  for (int i = 0; i < bytes[0]; i++)
    note(arguments[i], bytes[1 + i]);
  return failure;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *block,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  uint64_t words[16] = {(uint64_t)address, 0, type, rank, interleave, swizzle, promotion, fill};
  for (cuuint32_t i = 0; i < rank && i < 4; i++)
    words[8 + i] = sizes[i] * 1000003 + strides[i], words[12 + i] = block[i] * 1000003 + steps[i];
  memcpy(map, words, sizeof(words));
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
  memcpy(map, &address, sizeof(address));
  return ((uint64_t)map & 63) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)(100L + device);
  return CUDA_SUCCESS;
}
"""
NOTHING: Final = (
    "cuCtxGetLimit", "cuCtxSetLimit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDriverGetVersion", "cuFuncGetAttribute",
    "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuModuleGetFunction", "cuModuleLoadData", "cuPointerGetAttribute",
)  # fmt: skip
"""What Triton's launcher is linked with beside, and does not call here."""


class Driver:
    """The library, built in a folder and loaded, and Triton's own functions over it."""

    def __init__(self, folder: Path) -> None:
        from triton import knobs
        from triton.backends.nvidia import driver

        (folder / "notes.c").write_text(NOTES)
        (folder / "nothing.c").write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in NOTHING))
        built, sources = folder / "libcuda.so.1", (folder / "notes.c", folder / "nothing.c")
        include = [f"-I{each}" for each in driver.include_dirs]
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", *include, *sources, "-o", built], check=True)
        knobs.nvidia.libcuda_path = str(folder)
        self.library = ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)
        self.utils: Any = driver.CudaUtils()
        self._functions: list[Any] = []

    def function(self, *sizes: int) -> int:
        """Return the handle of a function whose arguments have so many bytes."""
        self._functions.append((ctypes.c_int * (1 + len(sizes)))(len(sizes), *sizes))
        return ctypes.addressof(self._functions[-1])

    def taken(self) -> bytes:
        """Return what was noted since this was last called."""
        used = ctypes.c_int.in_dll(self.library, "used")
        found = bytes((ctypes.c_ubyte * used.value).in_dll(self.library, "notes"))
        used.value = 0
        return found

    def fail(self, error: int) -> None:
        """From here on every launch ends with this error."""
        ctypes.c_int.in_dll(self.library, "failure").value = error


def described(signature: dict[str, str]) -> list[dict[str, Any]] | None:
    """Return how the copy engine reads each descriptor of a signature, as Triton's compiler decides it; None if there is none."""
    how = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "fp4_padded": False, "block_size": [1, 64, 1, 64]}
    return [how for kind in signature.values() if kind.startswith("tensordesc")] or None


def launcher(signature: dict[str, str], fn: Any = None, **others: Any) -> Any:
    """Return Triton's own launcher of a kernel of this signature, as it makes it of what was compiled."""
    from triton.backends.nvidia.driver import CudaLauncher

    usual = {"global_scratch_size": 0, "profile_scratch_size": 0, "global_scratch_align": 1, "profile_scratch_align": 1}
    usual |= {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False}
    metadata = SimpleNamespace(cluster_dims=(1, 1, 1), **(usual | {"tensordesc_meta": described(signature)} | others))
    return CudaLauncher(SimpleNamespace(signature=signature, constants={}, fn=fn), metadata)


def variant(run: Any, signature: dict[str, str], function: int, packed: Sequence[int] = (4, 1, 0)) -> Any:
    """Return what a compiled kernel is to those that launch it."""
    source, metadata = SimpleNamespace(signature=signature), SimpleNamespace(tensordesc_meta=described(signature))
    return SimpleNamespace(run=run, src=source, function=function, packed_metadata=tuple(packed), metadata=metadata)


def compiled(function: int, kernel: Any, key: str, signature: Any, device: int, constants: Any, *_: Any) -> Any:
    """Replace Triton's compile step by a kernel with this handle, which Triton launches as any other."""
    from triton.compiler import ASTSource
    from triton.compiler.compiler import CompiledKernel

    made = CompiledKernel.__new__(CompiledKernel)
    made.src, made.name, made.packed_metadata = ASTSource(kernel, signature, constants, {}), "", (4, 1, 0)
    made.metadata = SimpleNamespace(tensordesc_meta=described(signature))
    made.module, made.function, made._run = 1, function, launcher(signature, kernel)
    kernel.device_caches[device][0][key] = made
    return made
