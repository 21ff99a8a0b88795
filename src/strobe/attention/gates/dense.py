"""The cases of dense attention: every implementation against the reference in float32 on the same rounded inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.attention.dense.impl import fa4
from strobe.attention.explain import explain
from strobe.attention.gates.case import CaseRefusedError, GateCase, hold, near, room_for, same_bits
from strobe.attention.types import AttentionOutput, check
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance

IMPLS: Final = ("fa4", "sdpa")
"""Implementations that have a gate."""
LENGTHS: Final = ((1, 1), (1, 63), (63, 100), (100, 1), (7, 2000), (2000, 129))
HEADS: Final = ((3, 3), (4, 2), (5, 1))
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
_ROOM: Final = 14 << 30
_WAVES: Final = (1, 1500, 4500)
"""Queries of which the last wave of programs is split, on a card with 132 multiprocessors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfDense:
    """One implementation of dense attention on one device, called as `dense_attention` would be."""

    impl: str
    device: torch.device

    def __call__(self, inputs: list[Tensor], *, return_lse: bool = False) -> AttentionOutput:
        q, k, v = inputs
        return dense_attention(q, k, v, impl=self.impl, return_lse=return_lse)

    def takes(self, inputs: list[Tensor], *, return_lse: bool, needs_grad: bool = False) -> None:
        """Refuse the case with the impl's own reason if it refuses these inputs."""
        q, k, v = (tensor.detach().requires_grad_(needs_grad) for tensor in inputs)
        try:
            explain(q, k, v, impl=self.impl, return_lse=return_lse)
        except ImplUnavailableError as error:
            raise CaseRefusedError(error.reason) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Sequence lengths, head counts, dtype and head_dim of one case."""

    lengths: tuple[int, int]
    heads: tuple[int, int]
    dtype: torch.dtype = torch.bfloat16
    width: int = 128

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name}-{self.lengths[0]}x{self.lengths[1]}-{self.heads[0]}/{self.heads[1]}-{self.width}"

    def draw(self, device: torch.device) -> list[Tensor]:
        """Draw random q, k and v on a device; the seed follows from the sizes."""
        (q_len, kv_len), (heads, kv_heads) = self.lengths, self.heads
        generator = torch.Generator().manual_seed(1000 * q_len + 10 * kv_len + kv_heads)
        shapes = [(2, q_len, heads, self.width)] + [(2, kv_len, kv_heads, self.width)] * 2
        return [torch.randn(shape, generator=generator).to(self.dtype).to(device) for shape in shapes]


def cases(impl: str, device: torch.device) -> Iterator[GateCase]:
    """List every case of an implementation's gate on a device."""
    of = _OfDense(impl=impl, device=device)
    for lengths, heads, dtype, width in product(LENGTHS, HEADS, DTYPES, (64, 128)):
        sizes = _Sizes(lengths=lengths, heads=heads, dtype=dtype, width=width)
        for return_lse in (False, True):
            yield GateCase(name=f"output, {sizes}, with lse: {return_lse}", check=partial(_output, of, sizes, return_lse))
            if dtype != torch.float32:
                name = f"gradients, {sizes}, through the lse: {return_lse}"
                yield GateCase(name=name, check=partial(_gradients, of, sizes, return_lse))
    yield GateCase(name="views of a larger buffer", check=partial(_views, of))
    yield GateCase(name="it compiles without a graph break", check=partial(_compiles, of))
    for return_lse in (False, True):
        name = f"nothing waits for the device and a graph captures it, with lse: {return_lse}"
        yield GateCase(name=name, check=partial(_graph, of, return_lse), needs_gpu=True)
    for q_len, return_lse in product(_WAVES if impl == "fa4" else (), (False, True)):
        name = f"a last wave over parts of the keys, {q_len} queries, with lse: {return_lse}"
        yield GateCase(name=name, check=partial(_last_wave, of, q_len, return_lse), needs_gpu=True)


def _output(of: _OfDense, sizes: _Sizes, return_lse: bool) -> None:
    inputs = sizes.draw(of.device)
    of.takes(inputs, return_lse=return_lse)
    expected = _OfDense(impl="reference", device=of.device)([each.float() for each in inputs], return_lse=True)
    found = of(inputs, return_lse=return_lse)
    hold(found.out.dtype == sizes.dtype, f"out is {found.out.dtype}, not {sizes.dtype}")
    near(found.out, expected.out, tolerance("element of a library", sizes.dtype), "out")
    if found.lse is not None and expected.lse is not None:
        hold(found.lse.dtype == torch.float32 and found.lse.shape == expected.lse.shape, "lse: float32 [B, H, S]")
        near(found.lse, expected.lse, tolerance("lse of a library", sizes.dtype), "lse")
    hold((found.lse is not None) == return_lse, "the lse comes when it is asked for")


def _gradients(of: _OfDense, sizes: _Sizes, through_lse: bool) -> None:
    inputs = sizes.draw(of.device)
    of.takes(inputs, return_lse=through_lse, needs_grad=True)
    generator = torch.Generator().manual_seed(3)
    d_out = torch.randn(inputs[0].shape, generator=generator).to(sizes.dtype).to(of.device)
    d_lse = torch.randn(2, sizes.heads[0], sizes.lengths[0], generator=generator).to(of.device)
    results = []
    for each, tensors in ((of, inputs), (_OfDense(impl="reference", device=of.device), [tensor.float() for tensor in inputs])):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        found = each(leaves, return_lse=through_lse)
        outs, grads = [found.out], [d_out.to(found.out.dtype)]
        if found.lse is not None:
            outs, grads = [*outs, found.lse], [*grads, d_lse]
        results.append(torch.autograd.grad(outs, leaves, grads))
    for name, mine, theirs in zip(("dq", "dk", "dv"), *results, strict=True):
        near(mine, theirs, tolerance("element of a library", sizes.dtype), name)


def _views(of: _OfDense) -> None:
    q, k, v = _Sizes(lengths=(63, 100), heads=(4, 4), width=64).draw(of.device)
    of.takes([q, k, v], return_lse=True)
    expected = of([q, k, v], return_lse=True)
    buffer = torch.full((2, 300, 4, 64), torch.nan, dtype=torch.bfloat16, device=of.device)
    keys, values = buffer[:, 7:107], buffer.clone()[:, 20:120]
    keys.copy_(k), values.copy_(v)
    outside = q.transpose(1, 2).contiguous().transpose(1, 2)
    found = of([outside, keys, values], return_lse=True)
    same_bits(found.out, expected.out, "out of views")
    same_bits(found.lse, expected.lse, "lse of views")


def _graph(of: _OfDense, return_lse: bool) -> None:
    inputs = _Sizes(lengths=(63, 100), heads=(4, 4)).draw(of.device)
    others = _Sizes(lengths=(63, 100), heads=(4, 1)).draw(of.device)
    of.takes(inputs, return_lse=return_lse)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for strict in ("default", "error"):  # the first run compiles
            torch.cuda.set_sync_debug_mode(strict)
            try:
                of(inputs, return_lse=return_lse)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = of(inputs, return_lse=return_lse)
    for mine, theirs in zip(inputs, others, strict=True):
        mine.copy_(theirs)
    graph.replay()
    expected = _OfDense(impl="reference", device=of.device)([each.float() for each in inputs])
    near(found.out, expected.out, tolerance("element of a library", "bfloat16"), "out")


def _compiles(of: _OfDense) -> None:
    inputs = _Sizes(lengths=(63, 100), heads=(4, 4)).draw(of.device)
    of.takes(inputs, return_lse=True)
    compiled = torch.compile(dense_attention, fullgraph=True, backend="aot_eager")
    expected, found = of(inputs, return_lse=True), compiled(*inputs, impl=of.impl, return_lse=True)
    same_bits(found.out, expected.out, "out")
    same_bits(found.lse, expected.lse, "lse")


def _last_wave(of: _OfDense, q_len: int, return_lse: bool) -> None:
    """Check FA4 with its last wave split: as near to float32 as unsplit, and the same in a CUDA graph; k and v are slices."""
    room_for(_ROOM, of.device)
    generator = torch.Generator().manual_seed(q_len)
    q, *ring = (torch.randn(1, n, 12, 128, generator=generator).to(of.device).bfloat16() for n in (q_len, 20000, 20000))
    k, v = (each[:, :18720] for each in ring)
    of.takes([q, k, v], return_lse=return_lse)
    if fa4._split(check(q, k, v, None, return_lse)) is None:
        raise CaseRefusedError("on this card its last wave is full, and is not split")
    from flash_attn.cute import flash_attn_func

    expected = _OfDense(impl="reference", device=of.device)([q.float(), k.float(), v.float()], return_lse=True)
    found = of([q, k, v], return_lse=return_lse)
    whole, _ = flash_attn_func(q, k, v)
    near(found.out, expected.out, tolerance("element of a library", "bfloat16"), "out")
    error, before = ((each.float() - expected.out).square().mean().sqrt().item() for each in (found.out, whole))
    hold(error <= 1.25 * before, f"parts of the keys: error {error:.2g}, of all keys at once {before:.2g}")
    hold(not torch.equal(found.out, whole), "the last wave was not split")
    if found.lse is not None and expected.lse is not None:
        hold(torch.allclose(found.lse, expected.lse, rtol=0, atol=1e-4), "lse")
    if return_lse:
        compiled = torch.compile(dense_attention, fullgraph=True, backend="aot_eager")
        same_bits(compiled(q, k, v, impl=of.impl, return_lse=True).out, found.out, "out of a compiled call")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = of([q, k, v], return_lse=return_lse)
    graph.replay()
    same_bits(captured.out, found.out, "out of a graph")
    hold(captured.lse is None or (found.lse is not None and torch.equal(captured.lse, found.lse)), "lse of a graph")
