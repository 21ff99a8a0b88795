"""Tiny models of diffusers' own classes with random weights, and the arguments of one forward of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    CosmosTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoTransformer3DModel,
    LTX2VideoTransformer3DModel,
    WanPipeline,
    WanTransformer3DModel,
)
from torch import Tensor, nn

import strobe
from history_on_cpu import tiles_of
from strobe.integrations.diffusers.processors import SparseProcessor

GRID = (5, 6, 7)
"""Tokens in time, height and width: odd for every tile."""
NUM_TOKENS = 5 * 6 * 7
WIDTH = 24
"""Channels of the tiny Wan and LTX-2."""


@dataclass(frozen=True)
class Case:
    """A transformer and its arguments; `first` selects the video from its output."""

    model: Any
    arguments: dict[str, Any]
    layers: int

    def run(self, **changes: Any) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.model(**{**self.arguments, **changes}, return_dict=False)[0]
        return found

    def to(self, dtype: torch.dtype, device: str = "cpu") -> Case:
        """Move model and arguments; a time stays in float32, but for HunyuanVideo 1.5, whose embedding takes its dtype."""
        times = () if "encoder_attention_mask_2" in self.arguments else ("timestep", "sigma")
        moved = {
            name: each.to(device, dtype if each.is_floating_point() and name not in times else None)
            for name, each in self.arguments.items()
            if torch.is_tensor(each)
        }
        return Case(self.model.to(device, dtype), self.arguments | moved, self.layers)


def randomise(model: nn.Module) -> Any:
    """Give every parameter a value that matters: tables that begin at 0 or 1 would hide what is wrong."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            spread = 0.5 / value.shape[-1] ** 0.5 if value.dim() > 1 else 0.1
            value.copy_(torch.randn(value.shape, generator=generator) * spread + ("norm" in name and value.dim() == 1))
    return model.eval().requires_grad_(False)


def _case(model: nn.Module, layers: int, **given: Any) -> Case:
    """Return the model with random weights, and its arguments, in which a tuple is a tensor to draw."""
    generator = torch.Generator().manual_seed(2)
    drawn = {name: torch.randn(each, generator=generator) if isinstance(each, tuple) else each for name, each in given.items()}
    return Case(randomise(model), drawn, layers)


def wan(batch: int = 2, *, layers: int = 3, image: bool = False, heads: int = 2, head_dim: int = 12, **config: Any) -> Case:
    model = WanTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=head_dim, in_channels=4, out_channels=4, text_dim=16, freq_dim=16,
        ffn_dim=32, num_layers=layers, image_dim=8 if image else None,
        added_kv_proj_dim=heads * head_dim if image else None, **config,
    )  # fmt: skip
    picture = {"encoder_hidden_states_image": (batch, 9, 8)} if image else {}
    return _case(
        model, layers, hidden_states=(batch, 4, 5, 12, 14), timestep=torch.full((batch,), 500),
        encoder_hidden_states=(batch, 512 if image else 7, 16), **picture,
    )  # fmt: skip


def wan_pipeline(kind: type = WanPipeline, *, experts: int = 1, scheduler: Any = None) -> Any:
    """Build a whole pipeline of Wan without a text encoder."""
    torch.manual_seed(4)
    vae = AutoencoderKLWan(base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
                           latents_mean=[0.0] * 4, latents_std=[1.0] * 4)  # fmt: skip
    made = kind(
        tokenizer=None,
        text_encoder=None,
        vae=randomise(vae),
        scheduler=scheduler or FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=wan().model,
        transformer_2=wan().model if experts == 2 else None,
        boundary_ratio=0.8 if experts == 2 else None,
    )
    made.set_progress_bar_config(disable=True)
    return made


def clip(pipe: Any, steps: int | None = 4, *, seed: int = 5, **changes: Any) -> Tensor:
    """Latents of a video of 17 frames of 96x112, for random text."""
    generator = torch.Generator().manual_seed(seed)
    given: dict[str, Any] = {"height": 96, "width": 112, "num_inference_steps": steps, "output_type": "latent"}
    given |= {} if "video" in changes else {"num_frames": 17}
    given |= {f"{kind}prompt_embeds": torch.randn(1, 7, 16, generator=generator) for kind in ("", "negative_")}
    given |= {"generator": torch.Generator().manual_seed(seed + 1), "return_dict": False}
    found: Tensor = pipe(**given | changes)[0]
    return found


class PromptedWan(WanPipeline):
    """A Wan pipeline for any prompt: text embeddings are random, the video has 17 frames of 96x112."""

    def encode_prompt(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return torch.randn(1, 7, 16), torch.randn(1, 7, 16)

    def __call__(self, prompt: str) -> Any:
        return super().__call__(prompt, height=96, width=112, num_frames=17, num_inference_steps=2, output_type="latent")


def wan_ti2v() -> Case:
    """Return a case of Wan 2.2 TI2V, with a timestep for each token."""
    case = wan()
    times = torch.linspace(0, 900, NUM_TOKENS).expand(2, -1)
    return Case(case.model, case.arguments | {"timestep": times}, case.layers)


def ltx2(*, batch: int = 2, layers: int = 2, head_dim: int = 12, **config: Any) -> Case:
    model = LTX2VideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=head_dim, cross_attention_dim=2 * head_dim,
        audio_in_channels=8, audio_out_channels=8, audio_num_attention_heads=2, audio_attention_head_dim=head_dim // 2,
        audio_cross_attention_dim=head_dim, num_layers=layers, caption_channels=16, **config,
    )  # fmt: skip
    t, h, w = GRID
    return _case(
        model, layers, hidden_states=(batch, NUM_TOKENS, 8), audio_hidden_states=(batch, 9, 8),
        encoder_hidden_states=(batch, 8, 16), audio_encoder_hidden_states=(batch, 8, 16),
        timestep=torch.full((batch,), 500.0), sigma=torch.full((batch,), 0.5),
        num_frames=t, height=h, width=w, audio_num_frames=9,
    )  # fmt: skip


def _text_mask(*lengths: int, size: int) -> Tensor:
    return (torch.arange(size) < torch.tensor(lengths)[:, None]).long()


def _axes(head_dim: int) -> tuple[int, int, int]:
    side = head_dim // 6 * 2
    return head_dim - 2 * side, side, side


def hunyuan(*lengths: int, layers: int = 2, head_dim: int = 12, **config: Any) -> Case:
    lengths = lengths or (6, 3)
    batch = len(lengths)
    model = HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=head_dim, num_layers=layers,
        num_single_layers=layers, num_refiner_layers=1, text_embed_dim=16, pooled_projection_dim=8,
        rope_axes_dim=_axes(head_dim), **config,
    )  # fmt: skip
    return _case(
        model, 2 * layers, hidden_states=(batch, 4, 5, 12, 14), timestep=torch.full((batch,), 500),
        encoder_hidden_states=(batch, 8, 16), encoder_attention_mask=_text_mask(*lengths, size=8), pooled_projections=(batch, 8),
        guidance=torch.full((batch,), 6000.0),
    )  # fmt: skip


def hunyuan15(*lengths: int, layers: int = 2, image: bool = False, head_dim: int = 12, **config: Any) -> Case:
    lengths = lengths or (6, 3)
    batch = len(lengths)
    model = HunyuanVideo15Transformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=head_dim, num_layers=layers,
        num_refiner_layers=1, text_embed_dim=16, text_embed_2_dim=8, image_embed_dim=8, rope_axes_dim=_axes(head_dim), **config,
    )  # fmt: skip
    case = _case(
        model, layers, hidden_states=(batch, 4, 5, 6, 7), timestep=torch.full((batch,), 500.0),
        encoder_hidden_states=(batch, 8, 16), encoder_attention_mask=_text_mask(*lengths, size=8),
        encoder_hidden_states_2=(batch, 5, 8),
        encoder_attention_mask_2=_text_mask(*[length // 2 for length in lengths], size=5), image_embeds=(batch, 3, 8),
    )  # fmt: skip
    case.arguments["image_embeds"] *= image
    return case


def cosmos(batch: int = 2, *, layers: int = 2, head_dim: int = 24, in_channels: int = 4, **config: Any) -> Case:
    model = CosmosTransformer3DModel(
        in_channels=in_channels, out_channels=4, num_attention_heads=2, attention_head_dim=head_dim, num_layers=layers,
        text_embed_dim=16, adaln_lora_dim=8, max_size=(8, 16, 16), concat_padding_mask=False, **config,
    )  # fmt: skip
    states, text = (batch, 4, 5, 12, 14), (batch, 7, 16)
    return _case(model, layers, hidden_states=states, timestep=torch.full((batch,), 0.5), encoder_hidden_states=text, fps=16)


def is_sparse(model: Any) -> bool:
    return any(isinstance(getattr(each, "processor", None), SparseProcessor) for each in model.modules())


class OwnLoop:
    """A pipeline that diffusers knows nothing of: a model, its scheduler and a loop over three steps."""

    def __init__(self, case: Case) -> None:
        self.case, self.transformer, self.scheduler = case, case.model, FlowMatchEulerDiscreteScheduler()

    def __call__(self, **told: Any) -> Tensor:
        self.scheduler.set_timesteps(3)
        latents: Tensor = self.case.arguments["hidden_states"]
        for timestep in self.scheduler.timesteps:
            latents = self.scheduler.step(self.case.run(hidden_states=latents, **told), timestep, latents, return_dict=False)[0]
        return latents


def cosmos_from_video() -> Case:
    """Return a case of video to world: a timestep for each frame, and a channel that says which frames are given."""
    case = cosmos(in_channels=5, extra_pos_embed_type=None)
    given = (torch.arange(5) < 1).float().view(1, 1, 5, 1, 1)
    times = torch.where(given > 0, 0.1, 0.7).expand(2, -1, -1, -1, -1)
    return Case(case.model, case.arguments | {"timestep": times, "condition_mask": given.expand(2, 1, 5, 12, 14)}, case.layers)


def gates(layers: int = 3, width: int = WIDTH, blocks: str = "blocks") -> dict[str, Tensor]:
    """Draw trained gates in FastWan's layout."""
    generator = torch.Generator().manual_seed(7)
    return {
        f"{blocks}.{number}.to_gate_compress.{kind}": torch.randn(*shape, generator=generator) * 0.3
        for number in range(layers)
        for kind, shape in (("weight", (width, width)), ("bias", (width,)))
    }


NEWER = {"rope_type": "split", "gated_attn": True, "cross_attn_mod": True, "audio_gated_attn": True, "audio_cross_attn_mod": True}
"""What LTX-2.3 and 2.5 have and LTX-2 has not."""

CASES: dict[str, Callable[[], Case]] = {
    "wan": wan,
    "wan one sample": lambda: wan(1),
    "wan i2v": lambda: wan(image=True),
    "wan 2.2 ti2v": wan_ti2v,
    "ltx-2": ltx2,
    "ltx-2 split rope": lambda: ltx2(rope_type="split"),
    "ltx-2.3": lambda: ltx2(perturbed_attn=True, **NEWER),
    "ltx-2.5": lambda: ltx2(use_prompt_adaln_single=False, ff_bias=False, **NEWER),
    "hunyuan": hunyuan,
    "hunyuan one length": lambda: hunyuan(5, 5),
    "hunyuan token replace": lambda: hunyuan(image_condition_type="token_replace"),
    "hunyuan 1.5": hunyuan15,
    "hunyuan 1.5 i2v": lambda: hunyuan15(image=True),
    "cosmos": cosmos,
    "cosmos from video": cosmos_from_video,
}


def selected_tokens(q: Tensor, k: Tensor, layout: strobe.TileLayout, sparsity: float) -> Tensor:
    """Compute which keys each query sees, `[B, H, S, S]`, step by step and tile by tile."""
    t, h, w = layout.grid
    tile_of = torch.empty(t * h * w, dtype=torch.long)
    tiles = tiles_of(layout.grid, layout.tile)
    for number, tile in enumerate(tiles):
        tile_of[tile] = number
    count = len(tiles)
    keep = max(1, -(-round((1 - sparsity) * count * 1e9) // 10**9))
    seen = torch.zeros(q.shape[0], q.shape[2], t * h * w, t * h * w, dtype=torch.bool)
    for sample in range(q.shape[0]):
        for head in range(q.shape[2]):
            queries = torch.stack([q[sample, tile_of == tile, head].mean(0) for tile in range(count)])
            keys = torch.stack([k[sample, tile_of == tile, head].mean(0) for tile in range(count)])
            chosen = (queries @ keys.T).topk(keep, dim=1).indices
            allowed = torch.zeros(count, count, dtype=torch.bool).scatter_(1, chosen, True)
            seen[sample, head] = allowed[tile_of][:, tile_of]
    return seen


@contextmanager
def masked_attention(
    tile: tuple[int, int, int], sparsity: float, attn_of: Callable[[int, int], bool], frames: Sequence[int] = ()
) -> Iterator[None]:
    """Mask diffusers' own attention, so that its calls over the whole grid see the selected tiles only.

    Args:
        attn_of: whether a call of so many queries and keys is one of the layers that are sparse.
        frames: those whose queries see the whole video.
    """
    families = ("hunyuan_video", "hunyuan_video15", "ltx2", "wan", "cosmos")
    modules = [import_module(f"diffusers.models.transformers.transformer_{name}") for name in families]
    layout, stock = strobe.tile_layout(GRID, tile), modules[0].dispatch_attention_fn

    def masked(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **rest: Any) -> Tensor:
        if not attn_of(query.shape[1], key.shape[1]):
            return stock(query, key, value, attn_mask=attn_mask, **rest)
        seen = torch.ones(query.shape[0], query.shape[2], query.shape[1], key.shape[1], dtype=torch.bool)
        video = slice(0, NUM_TOKENS)
        seen[:, :, video, video] = selected_tokens(query[:, video], key[:, video], layout, sparsity)
        for frame in frames:
            seen[:, :, frame * GRID[1] * GRID[2] : (frame + 1) * GRID[1] * GRID[2], video] = True
        if attn_mask is not None:
            seen &= attn_mask.bool()
        scores = torch.einsum("bqhd,bkhd->bhqk", query.double(), key.double()) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num()
        return torch.einsum("bhqk,bkhd->bqhd", weights, value.double()).to(query.dtype)

    for module in modules:
        module.dispatch_attention_fn = masked
    try:
        yield
    finally:
        for module in modules:
            module.dispatch_attention_fn = stock
