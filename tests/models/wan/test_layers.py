"""Parts of a layer against plain formulas, and rotations of its tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.flow import add_noise, shifted_sigma, to_x0
from strobe.models.wan.layers import (
    CrossAttention,
    RMSNorm,
    add_gated,
    device_table,
    modulate,
    rope_table,
    rotate,
    rotate_temporal,
)

CONFIG = WanConfig(dim=88, num_heads=2)  # head_dim 44: 22 pairs = 8 for time, 7 for height, 7 for width
HEIGHT, WIDTH = 3, 5


def draw(frames: int, *between: int) -> Tensor:
    return torch.randn(2, frames * HEIGHT * WIDTH, *between, 44, generator=torch.Generator().manual_seed(frames))


def by_hand(x: Tensor, positions: tuple[int, ...]) -> Tensor:
    """Token (t, y, x) of a head: complex pair i of an axis with n pairs is turned by `index * 10000 ** (-i / n)`, in float64."""
    values = x.double().numpy()
    pairs = values[..., 0::2] + 1j * values[..., 1::2]
    token = 0
    for t in positions:
        for y in range(HEIGHT):
            for column in range(WIDTH):
                turns = [index * 10_000.0 ** (-i / n) for index, n in ((t, 8), (y, 7), (column, 7)) for i in range(n)]
                pairs[:, token] *= np.exp(1j * np.array(turns))
                token += 1
    return torch.from_numpy(np.stack((pairs.real, pairs.imag), axis=-1).reshape(values.shape))


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the length of the vector it belongs to."""
    expected = expected.double()
    return ((found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def test_the_axes_share_the_head() -> None:
    assert CONFIG.rope_pairs == (8, 7, 7)
    assert WanConfig().rope_pairs == (22, 21, 21)


@pytest.mark.parametrize("positions", [(0,), (0, 1, 2), (7, 8, 9), (5, 0, 3), (999_998, 999_999, 1_000_000)])
def test_rotations_are_the_complex_numbers_of_the_definition(positions: tuple[int, ...]) -> None:
    x, turns = draw(len(positions), 2), rope_table(CONFIG, positions, HEIGHT, WIDTH)
    expected = by_hand(x, positions)
    assert turns.dtype == torch.complex128
    assert relative(rotate(x.double(), turns), expected) < tolerance("rotation", "float64")
    complex64 = device_table(turns, torch.float32, torch.device("cpu"))
    pairs = device_table(turns, torch.bfloat16, torch.device("cpu"))
    assert (complex64.dtype, pairs.dtype) == (torch.complex64, torch.float32)
    for form in (turns, complex64, pairs):
        found = rotate(x, form)
        assert found.dtype == torch.float32 and found.isfinite().all()
        assert relative(found, expected) < tolerance("rotation", "float32")


def test_bfloat16_is_rotated_in_float32() -> None:
    x, turns = draw(3, 2).bfloat16(), rope_table(CONFIG, (7, 8, 9), HEIGHT, WIDTH)
    found = rotate(x, device_table(turns, torch.bfloat16, torch.device("cpu")))
    assert torch.equal(found, by_hand(x, (7, 8, 9)).to(torch.bfloat16))


def test_queries_and_keys_may_be_rotated_together() -> None:
    both, turns = draw(3, 2, 2), rope_table(CONFIG, (4, 5, 6), HEIGHT, WIDTH).to(torch.complex64)
    q, k = rotate(both, turns).unbind(2)
    assert torch.equal(q, rotate(both[:, :, 0], turns)) and torch.equal(k, rotate(both[:, :, 1], turns))


@pytest.mark.parametrize(("first", "frames"), [(0, 0), (0, 1), (0, 9), (3, 1000), (12, -5), (0, 1_000_000)])
def test_moving_keys_in_time_is_drawing_them_there(first: int, frames: int) -> None:
    x = draw(3, 2)
    here, there = tuple(range(first, first + 3)), tuple(range(first + frames, first + frames + 3))
    moved = rotate(x, rope_table(CONFIG, here, HEIGHT, WIDTH))
    rotate_temporal(CONFIG, moved, frames, moved)
    assert moved.dtype == torch.float32 and moved.isfinite().all()
    assert relative(moved, by_hand(x, there)) < tolerance("rotation", "float32")


BATCH, FRAMES, TOKENS, DIM = 2, 3, 5, 48
ROWS = [(1, 1), (BATCH, 1), (1, FRAMES), (BATCH, FRAMES)]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def per_token(row: Tensor) -> Tensor:
    """A row `[B or 1, F or 1, dim]` as `[B, F * N, dim]`, in float64."""
    return row.double().expand(BATCH, FRAMES, DIM).repeat_interleave(TOKENS, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_modulate(rows: tuple[int, int], dtype: torch.dtype) -> None:
    x, shift, scale = (t.to(dtype) for t in (drawn(1, BATCH, FRAMES * TOKENS, DIM), drawn(2, *rows, DIM), drawn(3, *rows, DIM)))
    wide = x.double()
    variance = wide.var(dim=-1, unbiased=False, keepdim=True)
    normed = (wide - wide.mean(dim=-1, keepdim=True)) / (variance + 1e-6).sqrt()
    found = modulate(x, shift, scale, 1e-6)
    assert found.dtype == dtype
    tolerance = 5e-6 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), normed * (1 + per_token(scale)) + per_token(shift), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_add_gated(rows: tuple[int, int], dtype: torch.dtype) -> None:
    x, y, gate = (
        drawn(1, BATCH, FRAMES * TOKENS, DIM),
        drawn(2, BATCH, FRAMES * TOKENS, DIM),
        drawn(3, *rows, DIM),
    )
    x, y, gate = x.to(dtype), y.to(dtype), gate.to(dtype)
    found = add_gated(x, y, gate)
    assert found.dtype == dtype
    tolerance = 2e-6 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), x.double() + y.double() * per_token(gate), rtol=0, atol=tolerance)


def test_rms_norm() -> None:
    norm, x = RMSNorm(DIM, 1e-6), drawn(1, BATCH, 7, DIM)
    torch.nn.init.normal_(norm.weight)
    wide = x.double()
    expected = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * norm.weight.double()
    torch.testing.assert_close(norm(x).double(), expected, rtol=0, atol=tolerance("layer", "float32"))


@pytest.mark.parametrize("prompts", [1, 3])
def test_each_prompt_owns_its_run_of_tokens(dit: CausalWan, prompts: int) -> None:
    cross: CrossAttention = dit.layers[0].cross_attn
    x, text = drawn(1, BATCH, FRAMES * TOKENS, DIM), drawn(2, BATCH * prompts, 5, DIM)
    together = cross(x, *cross.keys_values(text))
    run = FRAMES * TOKENS // prompts
    for sample in range(BATCH):
        for prompt in range(prompts):
            own = slice(prompt * run, (prompt + 1) * run)
            alone = cross(x[sample : sample + 1, own], *cross.keys_values(text[sample * prompts + prompt].unsqueeze(0)))
            torch.testing.assert_close(together[sample : sample + 1, own], alone, rtol=0, atol=tolerance("layer", "float32"))
            other = cross(x[sample : sample + 1, own], *cross.keys_values(text[sample * prompts + prompt - 1].unsqueeze(0)))
            assert (other - alone).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("timestep", "shift", "sigma"), [(0, 5, 0), (1000, 5, 1), (750, 1, 0.75), (500, 2, 2 / 3), (250, 5, 0.625), (750, 5, 0.9375)]
)
def test_levels(timestep: float, shift: float, sigma: float) -> None:
    assert shifted_sigma(timestep, shift) == pytest.approx(sigma, abs=1e-15)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.0])
def test_the_true_flow_leads_back(sigma: float) -> None:
    x0, noise = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)).unbind(0)
    x = add_noise(x0, noise, sigma)
    assert x.dtype == torch.float32
    torch.testing.assert_close(to_x0(x, noise - x0, sigma), x0, rtol=0, atol=tolerance("flow", "float32"))
    torch.testing.assert_close(x, (1 - sigma) * x0 + sigma * noise, rtol=0, atol=tolerance("flow", "float32"))


def test_bfloat16_predictions_are_taken_in_float64() -> None:
    x, flow = torch.randn(2, 5, generator=torch.Generator().manual_seed(2)).unbind(0)
    found = to_x0(x, flow.bfloat16(), 0.7)
    assert found.dtype == torch.float32
    assert torch.equal(found, (x.double() - 0.7 * flow.bfloat16().double()).float())
