"""The training pass over a whole clip is the stream: same flows, frame block by frame block, as over the ring cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.cache.kv import CacheShape, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core.tolerances import tolerance
from strobe.models.shapes.config import FRAME_BLOCK
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from train_shapes.teacher import POLICIES, block_causal_mask, draw_clips, forward_clip
from train_shapes.world import start_from_noise

ELEMENT = tolerance("element", "float32")

BLOCKS, BATCH = 7, 2  # more frames than the largest window, so that every policy evicts
FRAMES = BLOCKS * FRAME_BLOCK
TOKENS = 2  # of a frame: latents of 2 x 4 cells
TINY = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=5, latent_channels=4, num_heads=2, num_layers=3)


def ids(policy: RingPolicy) -> str:
    return f"window {policy.window}, sink {policy.sink}"


@pytest.fixture(scope="module")
def dit() -> CausalWan:
    torch.manual_seed(5)
    model = CausalWan(TINY).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(1.5)  # so that history, prompts and noise levels show in the result
    return model


class Clip:
    """Inputs of both paths: every frame block has its own prompt and noise level."""

    def __init__(self) -> None:
        torch.manual_seed(6)
        self.clean = torch.randn(BATCH, FRAMES, 4, 2, 4)
        self.noisy = torch.randn(BATCH, FRAMES, 4, 2, 4)
        self.levels = torch.rand(BATCH, BLOCKS).repeat_interleave(FRAME_BLOCK, dim=1)
        self.text = torch.randn(BATCH, BLOCKS, 5, 12)

    def in_one_pass(self, dit: CausalWan, policy: RingPolicy) -> Tensor:
        """[B, F, C, Y, X]."""
        mask = block_causal_mask(policy, BLOCKS, TOKENS)
        return forward_clip(dit, self.clean, self.noisy, self.levels, self.text.flatten(0, 1), mask)

    def as_a_stream(self, dit: CausalWan, policy: RingPolicy) -> Tensor:
        """The same over the cache; each frame block's clean latents are committed at timestep 0 under its own prompt."""
        shape = CacheShape(num_layers=3, batch=BATCH, tokens_per_frame=TOKENS, num_heads=2, head_dim=24)
        cache = RingCache(shape, policy, device=torch.device("cpu"), dtype=torch.float32)
        cache.keys.fill_(torch.nan)  # what was not written must not be attended
        flows = []
        for block in range(BLOCKS):
            own = slice(block * FRAME_BLOCK, (block + 1) * FRAME_BLOCK)
            step = cache.at(own.start, FRAME_BLOCK)
            rope, text = dit.rope(step.positions, dit.grid(self.noisy[:, own])), dit.text_kv(self.text[:, block])
            flows.append(dit(self.noisy[:, own], dit.modulation(1000 * self.levels[:, own]), text, rope, step))
            dit.commit(self.clean[:, own], dit.modulation(torch.zeros(1, 1)), text, rope, step)
        return torch.cat(flows, dim=1)


@pytest.mark.parametrize("policy", POLICIES, ids=ids)
def test_training_pass_is_the_stream(dit: CausalWan, policy: RingPolicy) -> None:
    clip = Clip()
    streamed = clip.as_a_stream(dit, policy)
    assert streamed.isfinite().all() and streamed.std() > 0.1
    torch.testing.assert_close(clip.in_one_pass(dit, policy), streamed, rtol=0, atol=ELEMENT)


@pytest.mark.parametrize("policy", POLICIES, ids=ids)
def test_mask_is_a_list_that_drops_its_oldest(policy: RingPolicy) -> None:
    mask = block_causal_mask(policy, BLOCKS, 1)
    kept: list[int] = []
    for block in range(BLOCKS):
        own = list(range(block * FRAME_BLOCK, (block + 1) * FRAME_BLOCK))
        kept += own
        while len(kept) > policy.window:
            del kept[policy.sink]
        history = [frame for frame in kept if frame not in own]
        for frame in own:
            assert mask[frame].nonzero().flatten().tolist() == sorted(kept)
            noisy = sorted([*history, *(FRAMES + other for other in own)])
            assert mask[FRAMES + frame].nonzero().flatten().tolist() == noisy
    assert torch.equal(block_causal_mask(policy, BLOCKS, 3), mask.repeat_interleave(3, 0).repeat_interleave(3, 1))


def test_true_clips_start_where_their_noise_says() -> None:
    torch.manual_seed(3)
    vae = TinyVAE(TinyVAEConfig(widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    noise = torch.randn(3, 12, 8, 16, 16)
    torch.manual_seed(4)
    latents, scenes = draw_clips(vae, noise)
    assert latents.shape == noise.shape and scenes.shape == (3, 4, 7)
    torch.manual_seed(4)
    again, _ = draw_clips(vae, noise)
    assert torch.equal(again, latents)
    moved = noise.clone()
    moved[:, :FRAME_BLOCK, :2] += 0.02  # the mean of a channel over a frame block is what places the shapes
    assert (start_from_noise(moved[:, :FRAME_BLOCK])[0] - start_from_noise(noise[:, :FRAME_BLOCK])[0]).abs().min() > 0.04
    torch.manual_seed(4)
    assert not torch.equal(draw_clips(vae, moved)[0], latents)
    later = noise.clone()
    later[:, FRAME_BLOCK:] += 1
    torch.manual_seed(4)
    assert torch.equal(draw_clips(vae, later)[0], latents)
