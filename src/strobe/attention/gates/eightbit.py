"""The cases of attention in eight bits: every kernel against the reference in eight bits, and against plain attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Final

import torch
from torch import Tensor

from strobe.attention.dense.api import dense_attention
from strobe.attention.dense.eight.api import (
    attend_rounded,
    best_blocks,
    eightbit_attention,
    explain_eightbit,
    round_keys,
    store_rounded,
)
from strobe.attention.dense.eight.impl import reference
from strobe.attention.dense.eight.impl.reference import QUERIES
from strobe.attention.gates.case import CaseRefusedError, GateCase, hold, same_bits
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import Measure, tolerance
from strobe.eightbit.rounded import BLOCK, BlockBudget, RoundedKeys, RoundedQueries
from strobe.eightbit.rounding import RoundingImpl, round_queries

IMPLS: Final = ("gluon", "triton")
"""Implementations that have a gate."""
LENGTHS: Final = ((1, 1), (1, 63), (63, 100), (100, 1), (129, 128), (7, 2000), (2000, 129), (1500, 4999))
DTYPES: Final = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class _EightBitSizes:
    """One call: samples, queries and keys, heads, dtype; head_dim is 128."""

    lengths: tuple[int, int]
    batch: int = 1
    heads: int = 3
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}-{self.batch}-{self.lengths[0]}x{self.lengths[1]}-{self.heads}"

    def draw(self, device: torch.device) -> list[Tensor]:
        """Draw q, k and v; keys and values have means, and channels larger than others."""
        generator = torch.Generator().manual_seed(sum(self.lengths))
        shapes = [(self.batch, length, self.heads, 128) for length in (self.lengths[0], *self.lengths[1:] * 2)]
        q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
        spread, mean = (0.5 * torch.randn(2, self.heads, 128, generator=generator)).unbind()
        return [each.to(self.dtype).to(device) for each in (q, k * spread.exp() + mean, v * spread.exp() + mean)]


def cases(impl: str, device: torch.device) -> Iterator[GateCase]:
    """List every case of an implementation's gate on a device."""
    for lengths, dtype, return_lse in product(LENGTHS, DTYPES, (False, True)):
        sizes = _EightBitSizes(lengths=lengths, dtype=dtype)
        yield GateCase(name=f"output, {sizes}, with lse: {return_lse}", check=partial(_output, impl, device, sizes, return_lse))
    several = _EightBitSizes(lengths=(63, 300), batch=3)
    yield GateCase(name="output, of three samples", check=partial(_output, impl, device, several, True))
    for lengths, number in (((1, 63), 1), ((300, 1000), 3), ((300, 1000), 8), ((129, 2048), 5)):
        yield GateCase(
            name=f"{number} blocks of keys for each tile, {lengths[0]}x{lengths[1]}",
            check=partial(_blocks, impl, device, _EightBitSizes(lengths=lengths, batch=2), number),
        )
    for lengths, number in (((300, 1000), 3), ((129, 5000), 17)):
        name = f"the {number} best blocks of keys, {lengths[0]}x{lengths[1]}"
        check = partial(_best, impl, device, _EightBitSizes(lengths=lengths, batch=2), number)
        yield GateCase(name=name, check=check, needs_gpu=True)
    for some in (None, 9):
        name = "a last wave in parts of the keys" + ("" if some is None else f", {some} blocks for each tile")
        yield GateCase(name=name, check=partial(_parts, impl, device, some), needs_gpu=True)
    yield GateCase(name="one key far above all others", check=partial(_sink, impl, device))
    yield GateCase(name="keys rounded piece by piece", check=partial(_pieces, impl, device))
    yield GateCase(name="views of a larger buffer", check=partial(_views, impl, device))
    yield GateCase(
        name="nothing waits for the device and a graph captures it", check=partial(_graph, impl, device), needs_gpu=True
    )


def _error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.double(), expected.double()
    return ((found - expected).square().mean() / expected.square().mean()).sqrt().item()


def _held(found: Tensor, expected: Tensor, measure: Measure, dtype: torch.dtype) -> None:
    error, limit = _error(found, expected), tolerance(measure, dtype)
    hold(error <= limit, f"{measure}: error {error:.2g}, {limit:g} allowed")


def _drawn(impl: str, device: torch.device, sizes: _EightBitSizes) -> list[Tensor]:
    """Draw inputs; refuse the case with the impl's own reason if it refuses these."""
    q, k, v = sizes.draw(device)
    try:
        explain_eightbit(q, k, v, impl=impl)
    except ImplUnavailableError as error:
        raise CaseRefusedError(error.reason) from error
    return [q, k, v]


def _rounded(q: Tensor, k: Tensor, v: Tensor, impl: str) -> tuple[RoundedQueries, RoundedKeys]:
    """Round as an impl does, and compare with what the reference rounds: only ties may fall the other way."""
    by: RoundingImpl = "reference" if impl == "reference" else "triton"
    kept, right = (round_keys(k, v, impl=each) for each in (impl, "reference"))
    scale = q.shape[-1] ** -0.5
    small, other = (round_queries(q, each, scale, with_taken=True, impl=how) for each, how in ((kept, by), (right, "reference")))
    apart = (small.values.int() - other.values.int()).abs()
    hold(apart.max() <= 1 and apart.float().mean() < 2e-3, "queries are rounded otherwise")
    mine, theirs = (each.keys * each.key_scale[..., None, None] + each.key_mean[:, :, None] for each in (kept, right))
    step = right.key_scale[..., None, None] + 1e-5 * right.key_mean.abs().amax(-1)[..., None, None]  # of one key, the mean is all
    hold(((mine - theirs).abs() <= 1.01 * step).all(), "keys are rounded otherwise")
    return small, kept


def _output(impl: str, device: torch.device, sizes: _EightBitSizes, return_lse: bool) -> None:
    q, k, v = _drawn(impl, device, sizes)
    found = eightbit_attention(q, k, v, impl=impl, return_lse=return_lse)
    small, kept = _rounded(q, k, v, impl)
    expected = attend_rounded(small, kept, impl="reference", return_lse=True)
    hold(found.out.dtype == sizes.dtype and found.out.shape == q.shape, f"out is {found.out.dtype} {tuple(found.out.shape)}")
    _held(found.out, expected.out, "eight-bit kernel", sizes.dtype)
    plain = dense_attention(q.float(), k.float(), v.float(), impl="reference", return_lse=True)
    _held(found.out, plain.out, "eight-bit attention of noise", sizes.dtype)
    hold((found.lse is not None) == return_lse, "the lse comes when it is asked for")
    if found.lse is not None and expected.lse is not None and plain.lse is not None:
        hold(found.lse.dtype == torch.float32 and found.lse.shape == plain.lse.shape, "lse: float32 [B, H, S]")
        for other, measure in ((expected.lse, "lse of an eight-bit kernel"), (plain.lse, "lse in eight bits")):
            error = (found.lse - other).double().square().mean().sqrt().item()
            hold(error <= tolerance(measure, sizes.dtype), f"{measure}: error {error:.2g}")  # type: ignore[arg-type]


def _lists(q: RoundedQueries, kept: RoundedKeys, number: int) -> Tensor:
    """Draw blocks of keys for each tile of queries."""
    (batch, heads, rows, _), blocks = q.values.shape, -(-kept.keys.shape[2] // BLOCK)
    drawn = torch.rand((batch, heads, -(-rows // QUERIES), blocks), generator=torch.Generator().manual_seed(number))
    return drawn.argsort(-1)[..., :number].sort(-1).values.int().to(q.values.device)


def _blocks(impl: str, device: torch.device, sizes: _EightBitSizes, number: int) -> None:
    q, k, v = _drawn(impl, device, sizes)
    small, kept = _rounded(q, k, v, impl)
    lists = _lists(small, kept, number)
    found, expected = (attend_rounded(small, kept, blocks=lists, impl=each, return_lse=True) for each in (impl, "reference"))
    _held(found.out, expected.out, "eight-bit kernel", sizes.dtype)
    hold(found.lse is not None and expected.lse is not None, "the lse comes when it is asked for")
    error = (found.lse - expected.lse).double().square().mean().sqrt().item()  # type: ignore[operator]
    hold(error <= tolerance("lse of an eight-bit kernel", sizes.dtype), f"lse: error {error:.2g}")


def _best(impl: str, device: torch.device, sizes: _EightBitSizes, number: int) -> None:
    """Check the blocks that are chosen among the first rows of more: some always, the others by scores that only just may tie."""
    q, k, v = _drawn(impl, device, sizes)
    small, kept = _rounded(q, k, v, impl)
    kept = replace(kept, keys=kept.keys[:, :, : kept.keys.shape[2] - 70])
    scores = reference.scores(small, kept)
    always = torch.arange(scores.shape[3], device=device) % 5 == 1
    found = best_blocks(small, kept, BlockBudget(number=number, always=always), impl="triton")
    hold(found.shape == (*scores.shape[:3], number) and bool((found.diff() > 0).all()), "they are not ascending")
    taken = torch.zeros_like(scores, dtype=torch.bool).scatter_(3, found.long(), True)
    hold(bool((taken | ~always).all()), "one that is always taken is left out")
    least, most = scores.masked_fill(always | ~taken, torch.inf).amin(3), scores.masked_fill(taken, -torch.inf).amax(3)
    hold(bool((least >= most - tolerance("call", torch.float32) * scores.abs().amax(3)).all()), "a better one is left out")


def _parts(impl: str, device: torch.device, number: int | None) -> None:
    """Check a call of which the last wave is a third full on a card with 132 multiprocessors."""
    from strobe.attention.dense.eight.impl import triton

    sizes = _EightBitSizes(lengths=(4500, 2500), heads=12)
    q, k, v = _drawn(impl, device, sizes)
    rows, resident = (128, 1) if impl == "gluon" else (64, 3)
    programs = -(-sizes.lengths[0] // rows) * sizes.heads
    _, parts = triton.split(programs, triton.slots(device, resident), number or -(-sizes.lengths[1] // BLOCK))
    if parts == 1:
        raise CaseRefusedError("on this card its last wave is full, and is not split")
    small, kept = _rounded(q, k, v, impl)
    lists = None if number is None else _lists(small, kept, number)
    found, expected = (attend_rounded(small, kept, blocks=lists, impl=each, return_lse=True) for each in (impl, "reference"))
    _held(found.out, expected.out, "eight-bit kernel", sizes.dtype)
    hold(found.lse is not None and expected.lse is not None, "the lse comes when it is asked for")


def _sink(impl: str, device: torch.device) -> None:
    """Check keys whose weights are e^-8 of the largest, and together two thirds of it: each block has levels of its own."""
    q, k, v = _drawn(impl, device, _EightBitSizes(lengths=(100, 2000)))
    q, k = 1 + 0.1 * q, 0.01 * k
    k[:, 700] = 8 / 128**0.5
    small, kept = _rounded(q, k, v, impl)
    found, expected = (attend_rounded(small, kept, impl=each, return_lse=True) for each in (impl, "reference"))
    _held(found.out, expected.out, "eight-bit kernel", q.dtype)
    hold(_error(found.out, v[:, 700:701].expand_as(q)) > 0.1, "the other keys are left out")


def _pieces(impl: str, device: torch.device) -> None:
    q, k, v = _drawn(impl, device, _EightBitSizes(lengths=(63, 1000)))
    kept, other = round_keys(k, v, impl=impl), round_keys(k.flip(1), v.flip(1), impl=impl)
    for begin, end in pairwise((0, 1, 100, 128, 700, 1000)):
        store_rounded(other, k[:, begin:end], v[:, begin:end], begin, impl=impl)
    hold((other.keys.int() - kept.keys.int()).abs().max() <= 1, "keys differ")  # the means are added in another order
    found, expected = (attend_rounded(q, each, impl=impl).out for each in (other, kept))
    _held(found, expected, "eight-bit kernel", q.dtype)


def _views(impl: str, device: torch.device) -> None:
    q, k, v = _drawn(impl, device, _EightBitSizes(lengths=(63, 100)))
    expected = eightbit_attention(q, k, v, impl=impl, return_lse=True)
    buffer = torch.full((1, 300, 3, 128), torch.nan, dtype=q.dtype, device=device)
    keys, values = buffer[:, 7:107], buffer.clone()[:, 20:120]
    keys.copy_(k), values.copy_(v)
    outside = q.transpose(1, 2).contiguous().transpose(1, 2)
    found = eightbit_attention(outside, keys, values, impl=impl, return_lse=True)
    same_bits(found.out, expected.out, "out of views")
    same_bits(found.lse, expected.lse, "lse of views")


def _graph(impl: str, device: torch.device) -> None:
    sizes = _EightBitSizes(lengths=(700, 1000), heads=12)
    inputs = _drawn(impl, device, sizes)
    others = [each.flip(1) for each in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for strict in ("default", "error"):  # the first run compiles
            torch.cuda.set_sync_debug_mode(strict)
            try:
                eightbit_attention(*inputs, impl=impl, return_lse=True)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = eightbit_attention(*inputs, impl=impl, return_lse=True)
    for mine, theirs in zip(inputs, others, strict=True):
        mine.copy_(theirs)
    graph.replay()
    expected = eightbit_attention(*inputs, impl=impl, return_lse=True)
    same_bits(found.out, expected.out, "out of a graph")
    same_bits(found.lse, expected.lse, "lse of a graph")
