"""The transformer's passes against each other, and parts of a layer against plain formulas."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.cache.kv import CacheShape, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan, sinusoid
from strobe.models.wan.flow import add_noise, shifted_sigma, to_x0
from strobe.models.wan.layers import (
    CrossAttention,
    RMSNorm,
    TextKV,
    add_gated,
    device_table,
    distinct_rows,
    modulate,
    rope_table,
    rotate,
    rotate_temporal,
)

ELEMENT = tolerance("element", "float32")

HEIGHT, WIDTH = 4, 6  # latent cells: 2 x 3 tokens per frame


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def latents(seed: int, frames: int = 3) -> Tensor:
    return draw(seed, 2, frames, 4, HEIGHT, WIDTH)


def ring(dit: CausalWan, window: int = 8, sink: int = 3) -> RingCache:
    shape = CacheShape(num_layers=len(dit.layers), batch=2, tokens_per_frame=6, num_heads=2, head_dim=24)
    rotate, policy = partial(rotate_temporal, dit.config), RingPolicy(window=window, sink=sink)
    cpu = torch.device("cpu")
    return RingCache(shape, policy, device=cpu, dtype=torch.float32, positions="rebased", rotate=rotate)


def stream(dit: CausalWan, cache: RingCache, blocks: int, *, whole_commit: bool = False) -> list[Tensor]:
    """A denoise pass and a commit pass per frame block; `whole_commit` runs the last layers of the commit pass as well."""
    text, flows = dit.text_kv(draw(0, 2, 5, 12)), []
    noisy, clean = (dit.modulation(torch.tensor([[t]])) for t in (600.0, 0.0))
    for block in range(blocks):
        x = latents(block)
        step = cache.at(3 * block, 3)
        rope = dit.rope(step.positions, dit.grid(x))
        flows.append(dit(x, noisy, text, rope, step))
        step = cache.at(3 * block, 3)
        run = dit if whole_commit else dit.commit
        run(0.5 * x, clean, text, rope, step)
    return flows


def test_patches_are_the_convolution_of_the_checkpoint(dit: CausalWan) -> None:
    x = latents(1)
    grid = dit.grid(x)
    assert (grid.frames, grid.height, grid.width) == (3, 2, 3)
    convolved = dit.patch_embedding(x.transpose(1, 2)).flatten(2).transpose(1, 2)  # [B, C, F, Y, X] in, [B, F*h*w, dim] out
    torch.testing.assert_close(dit.patchify(x), convolved, rtol=0, atol=tolerance("layer", "float32"))


def test_unpatchify_puts_every_value_in_its_cell(dit: CausalWan) -> None:
    grid = dit.grid(latents(1))
    tokens = draw(2, 2, grid.num_tokens, 2 * 2 * 4)
    found = dit.unpatchify(tokens, grid)
    assert found.shape == (2, 3, 4, HEIGHT, WIDTH)
    for frame, row, column in ((0, 0, 0), (1, 1, 2), (2, 0, 1)):
        token = tokens[:, (frame * grid.height + row) * grid.width + column].reshape(2, 2, 2, 4)  # [B, ph, pw, C]
        cell = found[:, frame, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert torch.equal(cell, token.permute(0, 3, 1, 2))


def test_the_timestep_embedding_is_the_sinusoid() -> None:
    t = torch.tensor([[0.0, 250.0], [937.5, 1000.0]])
    found = sinusoid(t, 16)
    for row in range(2):
        for column in range(2):
            angles = [t[row, column].double() * 10_000.0 ** (-i / 8) for i in range(8)]
            expected = torch.stack([a.cos() for a in angles] + [a.sin() for a in angles])
            torch.testing.assert_close(found[row, column], expected, rtol=0, atol=tolerance("element", "float64"))


def test_one_timestep_per_frame_and_one_for_all_agree(dit: CausalWan) -> None:
    x, text = latents(1), dit.text_kv(draw(0, 2, 5, 12))
    rope = dit.rope((0, 1, 2), dit.grid(x))
    one = dit(x, dit.modulation(torch.tensor([[400.0]])), text, rope)
    every = dit(x, dit.modulation(torch.full((2, 3), 400.0)), text, rope)
    torch.testing.assert_close(one, every, rtol=0, atol=ELEMENT)
    mixed = dit(x, dit.modulation(torch.tensor([[400.0, 400.0, 900.0]])), text, rope)
    assert (mixed - one).abs().max() > 1e-2


def test_fused_qkv_changes_nothing(dit: CausalWan) -> None:
    fused = copy.deepcopy(dit)
    fused.fuse_qkv()
    assert fused.layers[0].self_attn.fused is not None and dit.layers[0].self_attn.fused is None
    plain_cache, fused_cache = ring(dit), ring(dit)
    pairs = zip(stream(dit, plain_cache, 5), stream(fused, fused_cache, 5), strict=True)
    for plain, other in pairs:
        torch.testing.assert_close(other, plain, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(fused_cache.keys, plain_cache.keys, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(fused_cache.values, plain_cache.values, rtol=0, atol=ELEMENT)


@pytest.mark.parametrize("fused", [False, True])
def test_the_commit_pass_writes_what_a_whole_pass_writes(dit: CausalWan, fused: bool) -> None:
    model = copy.deepcopy(dit)
    if fused:
        model.fuse_qkv()
    short, whole = ring(model), ring(model)
    stream(model, short, 5)
    stream(model, whole, 5, whole_commit=True)
    torch.testing.assert_close(short.keys, whole.keys, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(short.values, whole.values, rtol=0, atol=ELEMENT)
    assert (short.keys.flatten(1).std(dim=1) > 0.1).all()


def test_prompts_per_sample_are_prompts_of_their_frames(dit: CausalWan) -> None:
    """Without self-attention across blocks, a pass with P prompts per sample is P passes with one."""
    x, text = latents(1, frames=6), draw(3, 2 * 2, 5, 12)
    mask = torch.zeros(36, 36, dtype=torch.bool)
    mask[:18, :18] = mask[18:, 18:] = True
    modulation = dit.modulation(torch.tensor([[400.0]]))
    together = dit(x, modulation, dit.text_kv(text), dit.rope((0, 1, 2, 0, 1, 2), dit.grid(x)), None, mask)
    for prompt in range(2):
        part = x[:, 3 * prompt : 3 * prompt + 3]
        alone = dit(part, modulation, dit.text_kv(text[prompt::2]), dit.rope((0, 1, 2), dit.grid(part)))
        torch.testing.assert_close(together[:, 3 * prompt : 3 * prompt + 3], alone, rtol=0, atol=ELEMENT)


def test_short_prompts_are_padded_with_zeros_that_are_attended(dit: CausalWan) -> None:
    text = draw(4, 2, 3, 12)
    padded = F.pad(text, (0, 0, 0, 2))
    for (k, v), (padded_k, padded_v) in zip(dit.text_kv(text).layers, dit.text_kv(padded).layers, strict=True):
        assert k.shape == (2, 5, 2, 24)
        assert torch.equal(k, padded_k) and torch.equal(v, padded_v)


def test_what_does_not_fit_is_refused(dit: CausalWan) -> None:
    with pytest.raises(ShapeError, match=r"latents: got shape \(2, 3, 5, 4, 6\), expected \[B, F, 4, Y, X\]"):
        dit.grid(torch.zeros(2, 3, 5, 4, 6))
    with pytest.raises(ShapeError, match="latent size 5x6 is not a multiple of the patch 2x2"):
        dit.grid(torch.zeros(2, 3, 4, 5, 6))
    with pytest.raises(ShapeError, match=r"text: got \(2, 6, 12\), expected \[B, 1..5, 12\]"):
        dit.text_kv(torch.zeros(2, 6, 12))
    with pytest.raises(ShapeError, match=r"text: got \(2, 5, 13\)"):
        dit.text_kv(torch.zeros(2, 5, 13))
    with pytest.raises(ConfigError, match="dim 50 over 4 heads"):
        WanConfig(dim=50, num_heads=4)


LONG = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=40, latent_channels=4, num_heads=2, num_layers=2)


def texts(*lengths: int, rows: int = 40) -> Tensor:
    """Texts of so many rows, and zeros behind them."""
    text = torch.randn(len(lengths), rows, 12, generator=torch.Generator().manual_seed(sum(lengths)))
    return text * (torch.arange(rows) < torch.tensor(lengths)[:, None])[..., None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [0, 1, 7, 38, 39, 40])
def test_rows_are_counted_up_to_the_first_of_the_padding(length: int, dtype: torch.dtype) -> None:
    assert distinct_rows(texts(length, 3, 40).to(dtype)).tolist() == [min(length + 1, 40), 4, 40]


def test_only_equal_rows_behind_everything_else_are_padding() -> None:
    text = texts(9)
    text[:, 4] = 0.0  # amid the prompt
    assert (text[:, 9:] == 0).all() and text[:, 9:].signbit().any()
    assert distinct_rows(text).item() == 10
    text[:, 20, 7] = 1e-38
    assert distinct_rows(text).item() == 22
    text[:, 30:] = float("nan")
    assert distinct_rows(text).item() == 40
    text[:] = 7.0
    assert distinct_rows(text).item() == 1


def test_it_can_be_taken_apart() -> None:
    found = CausalWan(LONG).requires_grad_(False).text_kv(texts(10))
    again = TextKV.made_of(found.tensors)
    assert len(found.tensors) == 5 and again.layers == found.layers and again.distinct is found.distinct


CONFIG = WanConfig(dim=88, num_heads=2)  # head_dim 44: 22 pairs = 8 for time, 7 for height, 7 for width
ROWS_OF_FRAME, COLUMNS = 3, 5


def clip(frames: int, *between: int) -> Tensor:
    return torch.randn(2, frames * ROWS_OF_FRAME * COLUMNS, *between, 44, generator=torch.Generator().manual_seed(frames))


def by_hand(x: Tensor, positions: tuple[int, ...]) -> Tensor:
    """Token (t, y, x) of a head: complex pair i of an axis with n pairs is turned by `index * 10000 ** (-i / n)`, in float64."""
    values = x.double().numpy()
    pairs = values[..., 0::2] + 1j * values[..., 1::2]
    token = 0
    for t in positions:
        for y in range(ROWS_OF_FRAME):
            for column in range(COLUMNS):
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
    x, turns = clip(len(positions), 2), rope_table(CONFIG, positions, ROWS_OF_FRAME, COLUMNS)
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
    x, turns = clip(3, 2).bfloat16(), rope_table(CONFIG, (7, 8, 9), ROWS_OF_FRAME, COLUMNS)
    found = rotate(x, device_table(turns, torch.bfloat16, torch.device("cpu")))
    assert torch.equal(found, by_hand(x, (7, 8, 9)).to(torch.bfloat16))


def test_queries_and_keys_may_be_rotated_together() -> None:
    both, turns = clip(3, 2, 2), rope_table(CONFIG, (4, 5, 6), ROWS_OF_FRAME, COLUMNS).to(torch.complex64)
    q, k = rotate(both, turns).unbind(2)
    assert torch.equal(q, rotate(both[:, :, 0], turns)) and torch.equal(k, rotate(both[:, :, 1], turns))


@pytest.mark.parametrize(("first", "frames"), [(0, 0), (0, 1), (0, 9), (3, 1000), (12, -5), (0, 1_000_000)])
def test_moving_keys_in_time_is_drawing_them_there(first: int, frames: int) -> None:
    x = clip(3, 2)
    here, there = tuple(range(first, first + 3)), tuple(range(first + frames, first + frames + 3))
    moved = rotate(x, rope_table(CONFIG, here, ROWS_OF_FRAME, COLUMNS))
    rotate_temporal(CONFIG, moved, frames, moved)
    assert moved.dtype == torch.float32 and moved.isfinite().all()
    assert relative(moved, by_hand(x, there)) < tolerance("rotation", "float32")


BATCH, FRAMES, TOKENS, DIM = 2, 3, 5, 48
ROWS = [(1, 1), (BATCH, 1), (1, FRAMES), (BATCH, FRAMES)]


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
    x, y, gate = (
        draw(1, BATCH, FRAMES * TOKENS, DIM),
        draw(2, BATCH, FRAMES * TOKENS, DIM),
        draw(3, *rows, DIM),
    )
    x, y, gate = x.to(dtype), y.to(dtype), gate.to(dtype)
    found = add_gated(x, y, gate)
    assert found.dtype == dtype
    tolerance = 2e-6 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), x.double() + y.double() * per_token(gate), rtol=0, atol=tolerance)


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
