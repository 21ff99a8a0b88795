"""The pieces of a layer against their formulas, written out frame by frame in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.layers import CrossAttention, RMSNorm, add_gated, modulate

ROUNDING = tolerance("rounding", "float32")

BATCH, FRAMES, TOKENS, DIM = 2, 3, 5, 48
ROWS = [(1, 1), (BATCH, 1), (1, FRAMES), (BATCH, FRAMES)]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def per_token(row: Tensor) -> Tensor:
    """A row `[B or 1, F or 1, dim]` as `[B, F * N, dim]`, in float64."""
    return row.double().expand(BATCH, FRAMES, DIM).repeat_interleave(TOKENS, dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_modulate(rows: tuple[int, int], dtype: torch.dtype) -> None:
    x, shift, scale = (t.to(dtype) for t in (draw(1, BATCH, FRAMES * TOKENS, DIM), draw(2, *rows, DIM), draw(3, *rows, DIM)))
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
    x, y, gate = draw(1, BATCH, FRAMES * TOKENS, DIM), draw(2, BATCH, FRAMES * TOKENS, DIM), draw(3, *rows, DIM)
    x, y, gate = x.to(dtype), y.to(dtype), gate.to(dtype)
    found = add_gated(x, y, gate)
    assert found.dtype == dtype
    tolerance = 2e-6 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), x.double() + y.double() * per_token(gate), rtol=0, atol=tolerance)


def test_one_row_per_frame_and_one_row_agree() -> None:
    x, y = draw(1, BATCH, FRAMES * TOKENS, DIM), draw(2, BATCH, FRAMES * TOKENS, DIM)
    shift, scale = draw(3, 1, 1, DIM), draw(4, 1, 1, DIM)
    frames = (-1, FRAMES, -1)
    torch.testing.assert_close(
        modulate(x, shift, scale, 1e-6),
        modulate(x, shift.expand(frames), scale.expand(frames), 1e-6),
        rtol=0,
        atol=tolerance("layer", "float32"),
    )
    torch.testing.assert_close(add_gated(x, y, scale), add_gated(x, y, scale.expand(frames)), rtol=0, atol=ROUNDING)


def test_rms_norm() -> None:
    norm, x = RMSNorm(DIM, 1e-6), draw(1, BATCH, 7, DIM)
    torch.nn.init.normal_(norm.weight)
    wide = x.double()
    expected = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * norm.weight.double()
    torch.testing.assert_close(norm(x).double(), expected, rtol=0, atol=tolerance("layer", "float32"))


@pytest.mark.parametrize("prompts", [1, 3])
def test_each_prompt_owns_its_run_of_tokens(dit: CausalWan, prompts: int) -> None:
    cross: CrossAttention = dit.layers[0].cross_attn
    x, text = draw(1, BATCH, FRAMES * TOKENS, DIM), draw(2, BATCH * prompts, 5, DIM)
    together = cross(x, *cross.keys_values(text))
    run = FRAMES * TOKENS // prompts
    for sample in range(BATCH):
        for prompt in range(prompts):
            own = slice(prompt * run, (prompt + 1) * run)
            alone = cross(x[sample : sample + 1, own], *cross.keys_values(text[sample * prompts + prompt].unsqueeze(0)))
            torch.testing.assert_close(together[sample : sample + 1, own], alone, rtol=0, atol=tolerance("layer", "float32"))
            other = cross(x[sample : sample + 1, own], *cross.keys_values(text[sample * prompts + prompt - 1].unsqueeze(0)))
            assert (other - alone).abs().max() > 1e-2
