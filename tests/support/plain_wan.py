"""The arithmetic of a Wan layer written out plainly, for references in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from strobe.engine.model import Model
from strobe.models.wan.config import WanConfig

Weights = dict[str, Tensor]


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def rms(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weights[f"{name}.weight"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor | float = 0.0) -> Tensor:
    """q [S, dim], k and v [T, dim]: heads are runs of channels; `bias` [S, T] is added to the scores."""
    out = []
    for one_q, one_k, one_v in zip(*(tensor.chunk(heads, dim=-1) for tensor in (q, k, v)), strict=True):
        out.append(torch.softmax(one_q @ one_k.T / math.sqrt(one_q.shape[-1]) + bias, dim=-1) @ one_v)
    return torch.cat(out, dim=-1)


def turn(x: Tensor, time: int, size: tuple[int, int], heads: int) -> Tensor:
    """Rotate one frame's tokens [h * w, dim] to a place in time."""
    pairs = x.shape[-1] // heads // 2
    side = pairs // 3
    angles = torch.zeros(*size, pairs, dtype=torch.float64)
    for row in range(size[0]):
        for column in range(size[1]):
            shares = ((time, pairs - 2 * side), (row, side), (column, side))
            angles[row, column] = torch.tensor([at * 10_000.0 ** (-i / n) for at, n in shares for i in range(n)])
    turned = x.unflatten(-1, (heads, pairs, 2)).unbind(-1)
    cos, sin = angles.flatten(0, 1).unsqueeze(1).cos(), angles.flatten(0, 1).unsqueeze(1).sin()
    return torch.stack((turned[0] * cos - turned[1] * sin, turned[0] * sin + turned[1] * cos), dim=-1).flatten(-3)


def embed_text(weights: Weights, text: Tensor) -> Tensor:
    return linear(weights, "text_embedding.2", gelu(linear(weights, "text_embedding.0", text)))


def embed_time(weights: Weights, timestep: float) -> Tensor:
    half = weights["time_embedding.0.weight"].shape[1] // 2
    angles = torch.tensor([timestep * 10_000.0 ** (-i / half) for i in range(half)], dtype=torch.float64)
    return linear(weights, "time_embedding.2", silu(linear(weights, "time_embedding.0", torch.cat((angles.cos(), angles.sin())))))


Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer, queries, keys (neither turned by RoPE) and values of all tokens of a pass, to what is attended."""


def passed(
    weights: Weights, wan: WanConfig, latents: Tensor, timesteps: Sequence[float], text: Tensor, attention: Attention
) -> Tensor:
    """The flow of latents [F, C, Y, X], a timestep for each frame; `text` is embedded."""
    w, (frames, channels, height, width) = weights, latents.shape
    size = height // 2, width // 2
    cells = latents.view(frames, channels, size[0], 2, size[1], 2).permute(0, 2, 4, 1, 3, 5).reshape(-1, channels * 4)
    x = cells @ w["patch_embedding.weight"].flatten(1).T + w["patch_embedding.bias"]
    e = torch.stack([embed_time(w, timestep) for timestep in timesteps])  # of each frame
    e0 = linear(w, "time_projection.1", silu(e)).view(-1, 6, wan.dim)
    per = [mod.repeat_interleave(size[0] * size[1], 0) for mod in e0.unbind(1)]
    for layer in range(wan.num_layers):
        name = f"blocks.{layer}"
        mod = [part + own for part, own in zip(per, w[f"{name}.modulation"][0], strict=True)]
        y = norm(x) * (1 + mod[1]) + mod[0]
        q, k = (rms(w, f"{name}.self_attn.norm_{which}", linear(w, f"{name}.self_attn.{which}", y)) for which in "qk")
        x = x + linear(w, f"{name}.self_attn.o", attention(layer, q, k, linear(w, f"{name}.self_attn.v", y))) * mod[2]
        cross = f"{name}.cross_attn"
        y = norm(x) * w[f"{name}.norm3.weight"] + w[f"{name}.norm3.bias"]
        q, k = (rms(w, f"{cross}.norm_{which}", linear(w, f"{cross}.{which}", z)) for which, z in (("q", y), ("k", text)))
        x = x + linear(w, f"{cross}.o", attend(q, k, linear(w, f"{cross}.v", text), wan.num_heads))
        y = norm(x) * (1 + mod[4]) + mod[3]
        x = x + linear(w, f"{name}.ffn.2", gelu(linear(w, f"{name}.ffn.0", y))) * mod[5]
    shift, scale = (own + e.repeat_interleave(size[0] * size[1], 0) for own in w["head.modulation"][0])
    out = linear(w, "head.head", norm(x) * (1 + scale) + shift)
    return out.view(frames, *size, 2, 2, channels).permute(0, 5, 1, 3, 2, 4).reshape(latents.shape)


class PlainWan:
    """A model's transformer in float64; `held[layer][frame]` is the pair (keys before RoPE, values) of a frame that was kept."""

    def __init__(self, model: Model) -> None:
        self.wan, self._encode = model.dit.config, model.text.encode
        self.weights = {name: tensor.double() for name, tensor in model.dit.state_dict().items()}
        self.held: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in range(self.wan.num_layers)]

    def text(self, prompt: str) -> Tensor:
        return embed_text(self.weights, self._encode([prompt])[0].double())

    def flow(
        self,
        x: Tensor,
        told: Sequence[float],
        text: Tensor,
        places: Mapping[int, int],
        own: Sequence[int],
        *,
        keep: bool = True,
        bias: Tensor | float = 0.0,
    ) -> Tensor:
        """The flow of frames `own`, which attend to the frames of `places`, each at its place in time."""
        heads, size, count = self.wan.num_heads, (x.shape[2] // 2, x.shape[3] // 2), len(own)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            held = self.held[layer] | dict(zip(own, zip(k.chunk(count), v.chunk(count), strict=True), strict=True))
            if keep:
                self.held[layer] = held
            queries = torch.cat([turn(part, places[f], size, heads) for f, part in zip(own, q.chunk(count), strict=True)])
            keys = torch.cat([turn(held[f][0], place, size, heads) for f, place in places.items()])
            return attend(queries, keys, torch.cat([held[f][1] for f in places]), heads, bias)

        return passed(self.weights, self.wan, x, told, text, attention)
