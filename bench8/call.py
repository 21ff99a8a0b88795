"""Attention in eight bits as a call: what lies in a cache, how work is cut, and the launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import triton
from kernels import attend_kernel, keys_kernel, merge_kernel, queries_kernel
from reference import LOG2E, hadamard
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

PV = Literal["bf16", "fp8", "int8"]
LIMIT = {"int8": 127.0, "fp8": 448.0, "bf16": 1.0}
_ROWS = {"queries": 64, "keys": 128}
"""Rows that a program of the rounding kernels takes."""
_SOME = 16
"""Rows that a program of the merge takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """How a kernel is built. Args: see `attend_kernel` and `gluon_kernel`; `registers` of a thread before groups trade them."""

    gluon: bool
    pv: PV
    rows: int = 128
    keys: int = 128
    warps: int = 8
    stages: int = 3
    two_level: bool = True
    paced: bool = False
    registers: int = 168

    @property
    def name(self) -> str:
        """The kernel's kind, of whose configurations the fastest is taken."""
        if self.gluon:
            return f"gluon int8 x {self.pv}{' paced' if self.paced else ''}"
        return f"triton int8 x {self.pv}{'' if self.two_level or self.pv == 'bf16' else ' one sum'}"

    @property
    def tile(self) -> str:
        return f"{self.rows}x{self.keys} w{self.warps} s{self.stages}"


class Constants(NamedTuple):
    """What a stream rounds with, per head: keys' mean after the turn and scale, values' mean and scale, and the turn."""

    turn: Tensor
    k_mean: Tensor
    k_scale: Tensor
    v_mean: Tensor
    v_scale: Tensor


class Cache(NamedTuple):
    """Keys `[H, S, D]` in int8 and values, transposed in eight bits `[H, D, W]` or `[H, S, D]` in bfloat16."""

    k: Tensor
    v: Tensor


class Queries(NamedTuple):
    """Queries in int8 `[H, S_q, D]` and the scale of their logits in units of log 2 `[H, S_q]`."""

    q: Tensor
    scale: Tensor


def constants(k: Tensor, v: Tensor, pv: PV, room: float = 1.0) -> Constants:
    """Measure means and scales on keys and values `[S, H, D]`; `room`: how much larger later ones may be."""
    dim = k.shape[-1]
    turn = (hadamard(dim) * dim**0.5).to(k.device)
    turned = torch.einsum("shd,de->hse", k.float(), turn.float())
    k_mean = turned.mean(1)
    k_scale = room * (turned - k_mean[:, None]).abs().amax((1, 2)).clamp_min(1e-12) / 127.0
    v_mean = v.float().mean(0) if pv != "bf16" else torch.zeros_like(k_mean)
    v_scale = room * (v.float() - v_mean).abs().amax(0).clamp_min(1e-12) / LIMIT[pv] if pv != "bf16" else torch.ones_like(k_mean)
    return Constants(turn.to(k.dtype), k_mean.contiguous(), k_scale, v_mean.contiguous(), v_scale.contiguous())


def empty_cache(num_kv: int, heads: int, dim: int, pv: PV, like: Tensor) -> Cache:
    """Return a cache of zeros; transposed values have whole blocks of keys."""
    shape = (heads, num_kv, dim) if pv == "bf16" else (heads, dim, -(-num_kv // 128) * 128)
    v = torch.zeros(shape, dtype=torch.int8 if pv != "bf16" else like.dtype, device=like.device)
    v = v.view(torch.float8_e4m3fn) if pv == "fp8" else v
    return Cache(torch.zeros(heads, num_kv, dim, dtype=torch.int8, device=like.device), v)


def store(k: Tensor, v: Tensor, start: int, held: Constants, cache: Cache, pv: PV) -> None:
    """Round keys and values `[T, H, D]` into rows `start` and on."""
    count, heads, dim = k.shape
    rows = _ROWS["keys"]
    keys_kernel[((start + count - 1) // rows - start // rows + 1, heads)](
        k, v, held.turn, held.k_mean, held.k_scale, held.v_mean, held.v_scale, cache.k, cache.v,
        start, count, cache.k.shape[1], cache.v.shape[2], heads, pv=pv, rows=rows, dim=dim, num_warps=8,
    )  # fmt: skip


def round_queries(q: Tensor, softmax_scale: float, held: Constants, into: Queries | None = None) -> Queries:
    """Round queries `[S_q, H, D]`."""
    num, heads, dim = q.shape
    if into is None:
        scale = torch.empty(heads, num, device=q.device)
        into = Queries(torch.empty(heads, num, dim, dtype=torch.int8, device=q.device), scale)
    queries_kernel[(-(-num // _ROWS["queries"]), heads)](
        q, held.turn, held.k_scale, into.q, into.scale, num, heads, softmax_scale * LOG2E / dim,
        rows=_ROWS["queries"], dim=dim, num_warps=4,
    )  # fmt: skip
    return into


class Cut(NamedTuple):
    """The first `first` tiles see all keys, the others each of `parts` parts of them."""

    first: int
    parts: int


def cut(tiles: int, slots: int, blocks: int) -> Cut:
    """Cut the last wave of `tiles` programs, of which `slots` run at a time, so that it ends soonest, on paper."""
    first = tiles // slots * slots
    rest = tiles - first
    costs = {1: 1.0}
    for parts in range(2, min(12, blocks) + 1):
        waves = -(-rest * parts // slots)
        costs[parts] = waves / parts + 0.02 * waves + 0.006 * parts + 0.02
    best = min(costs, key=lambda parts: costs[parts])
    return Cut(tiles, 1) if rest == 0 or best == 1 else Cut(first, best)


class Call:
    """One attention call of fixed tensors. `launch` runs it; `out` and `lse` hold what it gave.

    Args:
        queries, cache, held: what is attended.
        config: the kernel.
        split: how the last wave is cut; None: as is best for the kernel's occupancy. `Cut(tiles, 1)`: not at all.
    """

    def __init__(self, queries: Queries, cache: Cache, held: Constants, config: Config, split: Cut | None = None) -> None:
        self.config, self.queries, self.cache, self.held = config, queries, cache, held
        heads, num, dim = queries.q.shape
        self.num, self.heads, self.dim, self.kv = num, heads, dim, cache.k.shape[1]
        self.tiles = -(-num // config.rows)
        device = queries.q.device
        self.out = torch.full((num, heads, dim), float("nan"), dtype=held.turn.dtype, device=device)
        self.lse = torch.full((heads, num), float("nan"), device=device)
        total = self.tiles * heads
        self.split = Cut(total, 1)
        self._kernel = self._gluon() if config.gluon else self._triton()
        self._rooms()
        self.slots = 0
        if split is None and device.type == "cuda":
            made = self._attend()
            self.slots = torch.cuda.get_device_properties(device).multi_processor_count * _occupancy(made, config)
            split = cut(total, self.slots, -(-self.kv // config.keys))
        if split is not None:
            self.split = split
            self._rooms()

    def launch(self) -> None:
        """Attend."""
        self._attend()
        total, (first, parts) = self.tiles * self.heads, self.split
        if first < total:
            rows = self.config.rows
            merge_kernel[((total - first) * (rows // _SOME),)](
                self.part, self.part_lse, self.out, self.lse, self.num, self.heads, first, self.tiles, parts,
                rows=rows, some=_SOME, dim=self.dim, num_warps=4,
            )  # fmt: skip

    def _attend(self) -> Any:
        total, (first, parts) = self.tiles * self.heads, self.split
        numbers = (self.num, self.kv, self.heads, first, self.tiles, parts)
        pointers = (self.queries.scale, self.held.v_scale, self.held.v_mean, self.out, self.lse, self.part, self.part_lse)
        return self._kernel((first + (total - first) * parts,), *pointers, *numbers)

    def _rooms(self) -> None:
        programs = max(1, (self.tiles * self.heads - self.split.first) * self.split.parts)
        self.part = torch.empty(programs * self.config.rows, self.dim, dtype=self.out.dtype, device=self.out.device)
        self.part_lse = torch.empty(programs * self.config.rows, device=self.out.device)

    def _triton(self) -> Callable[..., Any]:
        config, dim = self.config, self.dim
        v_block = [1, config.keys, dim] if config.pv == "bf16" else [1, dim, config.keys]
        descriptors = (
            TensorDescriptor.from_tensor(self.queries.q, [1, config.rows, dim]),
            TensorDescriptor.from_tensor(self.cache.k, [1, config.keys, dim]),
            TensorDescriptor.from_tensor(self.cache.v, v_block),
        )
        shape = {"rows": config.rows, "keys": config.keys, "dim": dim, "num_warps": config.warps, "num_stages": config.stages}
        fixed = {"pv": config.pv, "two_level": config.two_level, **shape}
        return lambda grid, *args: attend_kernel[grid](*descriptors, *args, **fixed)

    def _gluon(self) -> Callable[..., Any]:
        from gluon_kernel import gluon_kernel
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Descriptor

        config, dim = self.config, self.dim
        descriptors = [
            Descriptor.from_tensor(x.flatten(0, 1), block, gl.NVMMASharedLayout.get_default_for(block, kind))
            for x, block, kind in (
                (self.queries.q, [64, dim], gl.int8),
                (self.cache.k, [config.keys, dim], gl.int8),
                (self.cache.v, [dim, config.keys], gl.int8 if config.pv == "int8" else gl.float8e4nv),
            )
        ]
        fixed = {"pv": config.pv, "paced": config.paced, "keys": config.keys, "dim": dim, "stages": config.stages}
        fixed |= {"num_warps": 4, "maxnreg": config.registers}
        return lambda grid, *args: gluon_kernel[grid](*descriptors, *args, **fixed)


def _occupancy(made: Any, config: Config) -> int:
    """Programs that a multiprocessor runs at a time, by registers and shared memory."""
    if config.gluon:
        return 1
    registers = -(-made.n_regs // 8) * 8 * 32 * config.warps
    return max(1, min(65536 // registers, (227 << 10) // (made.metadata.shared + 1024), 2048 // (32 * config.warps)))


def _configs() -> tuple[Config, ...]:
    found = [
        Config(gluon=True, pv=pv, paced=paced, stages=stages, warps=12)
        for pv in ("fp8", "int8") for paced in (False, True) for stages in (2, 3, 4)
    ]  # fmt: skip
    shapes = ((128, 128, 8, 2), (128, 128, 8, 3), (128, 128, 8, 4), (64, 128, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3))
    for pv in ("fp8", "int8"):
        found += [Config(gluon=False, pv=pv, rows=r, keys=k, warps=w, stages=s) for r, k, w, s in shapes]
    found += [Config(gluon=False, pv="fp8", two_level=False, rows=r, keys=k, warps=w, stages=s) for r, k, w, s in shapes[:4]]
    found += [Config(gluon=False, pv="bf16", rows=r, keys=k, warps=w, stages=s) for r, k, w, s in (*shapes[:2], *shapes[3:])]
    return tuple(found)


CONFIGS = _configs()
triton_version = triton.__version__
