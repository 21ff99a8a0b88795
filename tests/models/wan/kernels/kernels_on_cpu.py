"""The Triton kernels against the reference, in Triton's interpreter: `TRITON_INTERPRET=1 python kernels_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. On a GPU: `python kernels_on_cpu.py cuda`.
Tensors lie amid NaN, so that a channel read past the end shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.eightbit.impl.reference import quantize_rows
from strobe.eightbit.types import Quantized
from strobe.models.wan.kernels import api

ULPS = {torch.float32: 16, torch.float16: 1, torch.bfloat16: 1}
"""Steps of the dtype, at the size of the largest number of a row, by which another order of sums moves a result rounded once."""
TURNED = {torch.float32: 16, torch.float16: 4, torch.bfloat16: 4}
"""The same after three roundings in a chain (normed, weighted, rotated): one step of the first is up to two of the second, which
a pair has in both numbers, sqrt(2) of them after rotation, and one of the third: 2 sqrt(2) + 1 < 4."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one call."""

    dtype: torch.dtype
    batch: int = 2
    tokens: int = 6
    heads: int = 3
    width: int = 64
    frames: int = 1

    @property
    def dim(self) -> int:
        return self.heads * self.width


class Draw:
    """Random tensors amid NaN, the same for the same seed."""

    def __init__(self, seed: int, device: str) -> None:
        self.generator, self.device = torch.Generator().manual_seed(seed), device

    def __call__(self, dtype: torch.dtype, *shape: int, size: float = 1.0) -> Tensor:
        found = poisoned(dtype, self.device, *shape)
        return found.copy_(size * torch.randn(shape, generator=self.generator))


def poisoned(dtype: torch.dtype, device: str, *shape: int) -> Tensor:
    """NaN amid NaN."""
    number = torch.Size(shape).numel()
    return torch.full((number + 128,), float("nan"), dtype=dtype, device=device)[64 : 64 + number].view(shape)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype, what: object, steps: dict[torch.dtype, int] = ULPS) -> None:
    """Equal but for the last bits, in 16 bits nearly everywhere. A row has one step, as a rotated pair has that of the larger."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, what
    step = torch.finfo(dtype).eps * expected.float().abs().amax(-1, keepdim=True)
    difference = (found.float() - expected.float()).abs()
    assert bool((difference <= steps[dtype] * step).all()), (what, difference.max().item(), expected.abs().max().item())
    assert dtype == torch.float32 or int((difference > 0).sum()) <= 0.02 * difference.numel(), (what, "rounds elsewhere")


def check_turn(shape: Shape, device: str) -> None:
    """Queries, keys and values; into rows of a cache, some of which are not to be written, and returned."""
    draw = Draw(shape.dim, device)
    weight_q, weight_k = draw(shape.dtype, shape.dim), draw(shape.dtype, shape.dim)
    angles = draw(torch.float32, shape.tokens, shape.width // 2, size=7)
    rope = poisoned(torch.float32, device, shape.tokens, shape.width // 2, 2).copy_(torch.stack((angles.cos(), angles.sin()), -1))
    rows = torch.randperm(shape.tokens + 4, generator=draw.generator)[: shape.tokens].to(device)
    rows[torch.tensor([0, shape.tokens // 2])] = -1
    for parts in (3, 2):
        packed = draw(shape.dtype, shape.batch, shape.tokens, parts * shape.dim, size=3)
        turn = api.Turn(weight_q=weight_q if parts == 3 else None, weight_k=weight_k, rope=rope, eps=1e-6)
        results = {}
        for impl in api.IMPLS:
            buffers = [poisoned(shape.dtype, device, shape.batch, shape.tokens + 4, shape.heads, shape.width) for _ in range(2)]
            q = api.qk_norm_rope_write(packed, turn, api.CacheRows(keys=buffers[0], values=buffers[1], rows=rows), impl=impl)
            results[impl] = (q, *buffers, *api.qk_norm_rope(packed, turn, shape.heads, impl=impl))
        q, keys, values, *returned = results["triton"]
        written = torch.zeros(shape.tokens + 4, dtype=torch.bool, device=device)
        written[rows[rows >= 0]] = True
        for buffer, expected in ((keys, results["reference"][1]), (values, results["reference"][2])):
            assert bool(buffer[:, ~written].isnan().all()), shape
            close(buffer[:, written], expected[:, written], shape.dtype, shape, TURNED)
        for found, expected in zip((q, *returned), (results["reference"][0], *results["reference"][3:]), strict=True):
            assert (found is None) == (expected is None)
            if found is not None:
                close(found, expected, shape.dtype, shape, TURNED)
        assert q is None or torch.equal(q, returned[0])
        assert torch.equal(keys[:, rows[rows >= 0]], returned[1][:, rows >= 0])


def tables(draw: Draw, shape: Shape) -> Iterator[tuple[Tensor | None, api.Affine]]:
    """A gate and what follows the norm: as slices of one table, as a norm's own weights, with and without a gate."""
    mod = draw(shape.dtype, 1, shape.frames, 6, shape.dim)
    yield mod[..., 2, :], api.Affine(shift=mod[..., 3, :], scale=mod[..., 4, :])
    weight, bias = draw(shape.dtype, shape.dim).view(1, 1, -1), draw(shape.dtype, shape.dim).view(1, 1, -1)
    each = draw(shape.dtype, shape.batch, shape.frames, 3, shape.dim)
    yield each[..., 2, :], api.Affine(scale=weight, shift=bias, from_one=False)
    yield None, api.Affine(shift=each[..., 0, :], scale=each[..., 1, :])


def check_norm(shape: Shape, device: str) -> None:
    """Every norm, plain and in FP8."""
    draw = Draw(shape.dim + 1, device)
    size = (shape.batch, shape.tokens, shape.dim)
    x, y = draw(shape.dtype, *size, size=4), draw(shape.dtype, *size)
    x[0, 0] += 30.0  # a mean that the variance must not feel
    weight = draw(shape.dtype, shape.dim)
    close(*(api.rms_norm(x, weight, 1e-6, impl=impl) for impl in api.IMPLS), shape.dtype, shape)
    for gate, after in tables(draw, shape):
        plain = [api.norm_modulate(x, after, 1e-6, impl=impl) for impl in api.IMPLS]
        close(*plain, shape.dtype, shape)
        both = [api.add_gated_norm(x, y, gate, after, 1e-6, impl=impl) for impl in api.IMPLS]
        for found, expected in zip(*both, strict=True):
            close(found, expected, shape.dtype, shape)
        total, normed = api.add_gated_norm(x, y, gate, after, 1e-6, impl="triton", fp8=True)
        assert torch.equal(total, both[0][0])
        assert isinstance(normed, Quantized)
        same_quantised(normed, both[0][1], shape)
        same_quantised(api.norm_modulate(x, after, 1e-6, impl="triton", fp8=True), plain[0], shape)


def same_quantised(found: Quantized, of: Tensor, what: object) -> None:
    """What quantising the result that was not quantised gives, but for what the last bits of that result move."""
    values, scale = quantize_rows(of, torch.float8_e4m3fn)
    close(found.scale, scale, of.dtype, what)
    same_values(found.values, values, what)


def same_values(found: Tensor, expected: Tensor, what: object) -> None:
    """FP8 numbers: few are one step apart, the others equal. Triton's interpreter rounds ties up, loses the carry into a power of
    two and what lies below the smallest normal number: those are left to the GPU."""
    ours, theirs = found.float(), expected.float()
    if not found.is_cuda:
        fine = (expected.view(torch.uint8) & 7 != 0) & (theirs.abs() >= 2**-6)
        assert fine.float().mean() > 0.5, what
        ours, theirs = ours[fine], theirs[fine]
    assert bool(((ours - theirs).abs() <= theirs.abs() / 7 + 2**-9).all()), what
    assert (ours != theirs).float().mean().item() < (0.01 if found.is_cuda else 0.05), what


def check_gelu(dtype: torch.dtype, dim: int, device: str) -> None:
    """Scales to the last bits, values to the step of FP8 that a last bit can turn; rows of zeros and of NaN."""
    x = Draw(dim, device)(dtype, 5, dim, size=3)
    x[1], x[2, dim - 1] = 0.0, float("nan")
    found, expected = (api.gelu_quantize(x, impl=impl) for impl in api.IMPLS)
    assert bool(found.scale[2].isnan().all()) and bool(found.values[2].float().isnan().all() or device == "cpu")
    assert not bool(found.values[1].float().any())
    rows = torch.tensor([0, 1, 3, 4], device=device)
    close(found.scale[rows], expected.scale[rows], dtype, dim)
    same_values(found.values[rows[[0, 2, 3]]], expected.values[rows[[0, 2, 3]]], dim)


def check_text(shape: Shape, rows: int, device: str) -> None:
    """Attention to a text of which other rows are distinct in each sample."""
    draw = Draw(shape.dim + rows, device)
    q, k, v = (draw(shape.dtype, shape.batch, number, shape.heads, shape.width) for number in (shape.tokens, rows, rows))
    distinct = torch.tensor([1 + (rows - 1) // (1 + sample) for sample in range(shape.batch)], dtype=torch.int32, device=device)
    for sample, number in enumerate(distinct):
        k[sample, number:], v[sample, number:] = float("nan"), float("nan")  # not read
    found, expected = (api.text_attention(q, k, v, distinct, impl=impl) for impl in api.IMPLS)
    limits = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # weights are rounded before they meet the values
    torch.testing.assert_close(found, expected, rtol=limits[shape.dtype], atol=limits[shape.dtype])
    apart = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v)]  # heads far apart
    assert torch.equal(api.text_attention(*apart, distinct, impl="triton"), found), shape


def turns_of(draw: Draw, pairs: int) -> Tensor:
    """(cos, sin) of so many pairs, amid NaN."""
    angles = draw(torch.float32, pairs, size=50)
    return poisoned(torch.float32, draw.device, pairs, 2).copy_(torch.stack((angles.cos(), angles.sin()), -1))


def check_keys(shape: Shape, pairs: int, device: str) -> None:
    """The first pairs of the keys of several layers into the first rows of a larger buffer, and in place. Bit for bit what plain
    PyTorch gives that rounds every product; complex numbers, as the reference has them, may round one step elsewhere."""
    draw = Draw(shape.dim + pairs, device)
    size, turned = (3, shape.batch, shape.tokens, shape.heads, shape.width), 2 * pairs
    keys, turns = draw(shape.dtype, *size, size=4), turns_of(draw, pairs)
    cos, sin = turns.unbind(-1)
    real, imaginary = keys[..., :turned].float().unflatten(-1, (-1, 2)).unbind(-1)
    exact = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1).flatten(-2).to(shape.dtype)
    buffer = poisoned(shape.dtype, device, 3, shape.batch, shape.tokens + 2, shape.heads, shape.width)
    found, plain = buffer[:, :, : shape.tokens], keys.clone()
    api.turn_keys(keys, turns, found, impl="triton")
    api.turn_keys(plain, turns, plain, impl="reference")
    assert torch.equal(found[..., :turned], exact), (shape, pairs)
    close(found[..., :turned], plain[..., :turned], shape.dtype, shape)
    rest, there = found[..., turned:], keys[..., turned:]
    assert bool((rest.isnan() | (rest == there)).all()) and bool(buffer[:, :, shape.tokens :].isnan().all()), (shape, pairs)
    assert torch.equal(plain[..., turned:], there)
    api.turn_keys(keys, turns, keys, impl="triton")
    assert torch.equal(keys[..., :turned], exact) and torch.equal(keys[..., turned:], plain[..., turned:]), (shape, pairs)


def check_far_keys(device: str) -> None:
    """The third layer, or the third sample, is more than 2^31 elements behind the first, and the steps fit in 32 bits."""
    draw, far = Draw(2, device), 2**30 + 64
    turns = turns_of(draw, 8)
    for shape, step in (((3, 1, 2, 2, 32), (far, far)), ((1, 3, 2, 2, 32), (128, far))):
        keys, out = (torch.empty_strided(shape, (*step, 64, 32, 1), dtype=torch.float16, device=device) for _ in "ko")
        expected = draw(torch.float16, *shape)
        keys.copy_(expected)
        api.turn_keys(expected, turns, expected, impl="reference")
        api.turn_keys(keys, turns, out, impl="triton")
        close(out[..., :16], expected[..., :16], torch.float16, step)


def check_far_rows(device: str) -> None:
    """Offsets beyond 2^31: the second sample of a cache lies that far behind the first, in memory that is never touched."""
    shape, far = Shape(dtype=torch.float16, tokens=2, heads=1, width=32), 2**31 + 64
    draw = Draw(1, device)
    keys, values = (torch.empty_strided((2, 5, 1, 32), (far, 32, 32, 1), dtype=torch.float16, device=device) for _ in range(2))
    rope = draw(torch.float32, 2, 16, 2)
    turn = api.Turn(weight_q=None, weight_k=draw(torch.float16, 32), rope=rope, eps=1e-6)
    packed, rows = draw(torch.float16, 2, 2, 64), torch.tensor([3, 1], device=device)
    api.qk_norm_rope_write(packed, turn, api.CacheRows(keys=keys, values=values, rows=rows), impl="triton")
    _, k, v = api.qk_norm_rope(packed, turn, shape.heads, impl="reference")
    close(keys[:, rows], k, shape.dtype, "far keys")
    assert torch.equal(values[:, rows], v)


SHAPES = (
    Shape(dtype=torch.float32, frames=3),
    Shape(dtype=torch.float16, heads=1, width=128, tokens=1, batch=1),
    Shape(dtype=torch.float16, heads=5, width=24, tokens=4, frames=2),
    Shape(dtype=torch.float32, heads=2, width=128, tokens=3, batch=1),
)
ON_A_GPU = tuple(
    Shape(dtype=dtype, heads=heads, width=width, tokens=tokens, frames=frames)
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
    for heads, width in ((12, 128), (40, 128), (3, 64), (24, 64), (1, 32), (5, 24))
    for tokens, frames in ((1, 1), (63, 3), (100, 1), (2000, 2))
)

if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for each in SHAPES if place == "cpu" else SHAPES + ON_A_GPU:
        check_turn(each, place)
        check_norm(each, place)
    for width in (64, 100, 192) if place == "cpu" else (64, 100, 192, 8960, 13824, 16384):
        for kind in (torch.float32, torch.float16) if place == "cpu" else tuple(ULPS):
            check_gelu(kind, width, place)
    for at, each in enumerate(SHAPES if place == "cpu" else ON_A_GPU[::5]):
        check_text(each, (64, 1, 100, 7)[at % 4] if place == "cpu" else (512, 1, 100, 7, 256, 400)[at % 6], place)
    for at, each in enumerate(SHAPES if place == "cpu" else (*SHAPES, *ON_A_GPU)):
        check_keys(each, (each.width // 2 - 2 * (each.width // 6), each.width // 2, 1)[at % 3], place)
    check_far_rows(place)
    check_far_keys(place)
