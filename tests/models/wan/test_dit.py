"""The transformer's passes against each other: patches, fused weights, commit pass, prompts per sample."""

from __future__ import annotations

import copy
from functools import partial

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
from strobe.models.wan.layers import rotate_temporal
from strobe.models.wan.transformer import TextKV, distinct_rows

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


CONFIG = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=40, latent_channels=4, num_heads=2, num_layers=2)


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
    found = CausalWan(CONFIG).requires_grad_(False).text_kv(texts(10))
    again = TextKV.made_of(found.tensors)
    assert len(found.tensors) == 5 and again.layers == found.layers and again.distinct is found.distinct
