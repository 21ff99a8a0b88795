"""Operations of a denoise step and of a decoder call, each ready to run by itself on tensors of real sizes."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from strobe.attention.dense import dense_attention
from strobe.bench.costs import decoder_stages, dtype_name, steady_pass, transformer_shape, unipc_cost
from strobe.cache.eightbit_ring import EightBitStep
from strobe.cache.kv import CacheStep, KVCache
from strobe.core import costs
from strobe.core.costs import Cost
from strobe.core.errors import ConfigError
from strobe.core.spans import ATTENTION, CROSS_ATTENTION, FFN
from strobe.eightbit.rounded import RoundedKeys, RoundedQueries
from strobe.engine.caches import new_cache
from strobe.engine.config import ResolvedConfig
from strobe.engine.load import Model
from strobe.engine.noise import draw_block
from strobe.engine.prepared import latent_shape
from strobe.engine.transformer import TextContext, Transformer
from strobe.engine.unipc import onward
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.tiny import TinyVAE
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.flow import add_noise, to_x0
from strobe.models.wan.layers import WanLayer, add_gated, modulate
from strobe.models.wan.text import TextKV
from strobe.models.wan.transformer import Modulation
from strobe.perf.analysis.runs.budget import (
    CACHE,
    DECODER,
    EDGES,
    FEED_FORWARD,
    KERNELS,
    NORMS,
    PROJECTIONS,
    RESIDUALS,
    REST,
    BudgetLine,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A runnable operation; see `strobe.perf.analysis.runs.budget.Operation` for its fields."""

    name: str
    what: str
    kind: BudgetLine
    inside: str
    calls: int
    run: Callable[[], object]
    cost: Cost | None = None
    waits: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """One layer with the input tensors of its operations."""

    index: int
    layer: WanLayer
    mod: Tensor
    text: tuple[Tensor, Tensor]


@dataclass(kw_only=True, slots=True)
class StepParts:
    """Transformer and full cache of one configuration, at a steady frame block.

    Args:
        model: the loaded model.
        config: its resolved configuration.

    Raises:
        ConfigError: its transformer is not Wan's.
    """

    model: Model
    config: ResolvedConfig
    transformer: Transformer = field(init=False)
    dit: CausalWan = field(init=False)
    cache: KVCache = field(init=False)
    step: CacheStep = field(init=False)
    text: TextContext = field(init=False)
    latents: Tensor = field(init=False)
    history: Tensor = field(init=False)

    def __post_init__(self) -> None:
        model, config = self.model, self.config
        shape = latent_shape(model.defaults, model.dit.config)
        self.transformer = Transformer(model.dit, config, shape.token_grid(model.dit.config.patch).num_tokens)
        if not isinstance(self.transformer.dit, CausalWan):
            raise ConfigError(f"{model.name} is none of Wan's transformers, whose operations are known, so none is timed alone")
        self.dit = self.transformer.dit
        self.cache = new_cache(model.dit.config, shape, config, 1)
        block = (shape.frames, shape.channels, shape.height, shape.width)
        self.latents = draw_block(0, (0,), 0, 1, block, config.device).initial
        self.text = self.transformer.read(torch.zeros(1, 1, model.dit.config.text_dim))
        blocks = 1 + -(-config.policy.window // shape.frames)  # one more than fills the window, so that frames were evicted
        for number in range(blocks):
            self.step = self.cache.at(number * shape.frames, shape.frames)
            self.transformer.write(self.latents, self.text, self.step)
        frames = min(config.policy.window, blocks * shape.frames)
        self.history = self.latents.repeat(1, -(-frames // shape.frames), 1, 1, 1)[:, :frames]

    @property
    def timestep(self) -> float:
        """Timestep of the first denoise step."""
        return self.config.schedule.warped[0]

    def recache(self) -> None:
        """Recompute the window, as a prompt switch does."""
        step = self.cache.rewrite(keep_sink=self.config.keep_sink)
        self.transformer.write(self.history, self.text, step)

    def open_next(self) -> None:
        """Open the next frame block of the cache: once the window is full, this turns the sink."""
        frames = self.latents.shape[1]
        self.cache.at(self.cache.end, frames)

    def operations(self) -> tuple[Prepared, ...]:
        """Return every operation of one denoise step. Each call takes the next layer's weights, as in a pass."""
        return tuple(itertools.chain(self._section(), self._cross(), self._ffn(), self._edges()))

    # ------------------------------------------------------------------------------------------------- pieces of a step

    def _conditions(self) -> tuple[Modulation, TextKV, Tensor]:
        return self.transformer.conditions(self.latents, self.timestep, self.text, self.step)

    def _costs(self) -> dict[str, Cost]:
        parts = costs.transformer_pass(transformer_shape(self.model), steady_pass(self.model, self.config))
        return {part.name: part.each for part in parts}

    def _maker(self, inside: str) -> _Make:
        """Return a factory of operations of a region; each call of an operation takes the next layer."""
        modulation, text, _ = self._conditions()
        layers = [
            _Layer(index=index, layer=layer, mod=modulation.layers[index], text=text.layers[index])
            for index, layer in enumerate(self.dit.layers)
        ]
        return _Make(inside=inside, layers=layers, costs=self._costs())

    def _section(self) -> Iterator[Prepared]:
        make, x = self._maker(ATTENTION), self.dit.patchify(self.latents)
        modulation, _, rope = self._conditions()
        first, mod = self.dit.layers[0], modulation.layers[0]
        normed = modulate(x, mod[..., 0, :], mod[..., 1, :], first.eps)
        q, k, v = first.self_attn.qkv(normed)
        queries, keys = first.self_attn.turned(q, k, rope)
        values = v.unflatten(-1, queries.shape[2:])
        new, reach = (keys, values), self.step.reach
        step = self.step
        asked: Tensor | RoundedQueries = queries
        kept: tuple[Tensor, Tensor] | RoundedKeys
        if isinstance(step, EightBitStep):
            asked, kept = step.write_beside(0, queries, *new)
        else:
            kept = step.write(0, *new)
        out = first.attend_kept(asked, new, kept, reach, 0).flatten(2)
        attended = steady_pass(self.model, self.config).kv_tokens
        ring = self.config.knobs.ring_cache
        yield make("norm_modulate", NORMS, "layer norm, scale and shift", "modulated_norm",
                   lambda at: modulate(x, at.mod[..., 0, :], at.mod[..., 1, :], at.layer.eps))  # fmt: skip
        yield make("qkv_projection", PROJECTIONS, "queries, keys and values", "qkv_projection",
                   lambda at: at.layer.self_attn.qkv(normed))  # fmt: skip
        yield make("qk_norm_rope", NORMS, "RMS norms over the full width, RoPE", "qk_norm_rope",
                   lambda at: at.layer.self_attn.turned(q, k, rope))  # fmt: skip
        where = "into their slots, which attention reads in place" if ring else "roll, clone, write, concatenate"
        if isinstance(step, EightBitStep):
            yield make("kv_write", CACHE, "queries into eight bits, keys and values too and into their slots", "kv_write",
                       lambda at: step.write_beside(at.index, queries, keys, values))  # fmt: skip
        else:
            write = make("kv_write", CACHE, where, "kv_write", lambda at: step.write(at.index, keys, values))
            yield replace(write, waits=not ring)
        yield make("attention_kernel", KERNELS, f"{queries.shape[1]} queries, {attended} keys", "attention_kernel",
                   lambda at: at.layer.attend_kept(asked, new, kept, reach, 0))  # fmt: skip
        yield make("output_projection", PROJECTIONS, "of self-attention", "output_projection",
                   lambda at: at.layer.self_attn.o(out))  # fmt: skip
        yield make("attention_residual", RESIDUALS, "x + y * gate", "gated_residual",
                   lambda at: add_gated(x, x, at.mod[..., 2, :]))  # fmt: skip

    def _cross(self) -> Iterator[Prepared]:
        make, x = self._maker(CROSS_ATTENTION), self.dit.patchify(self.latents)
        first = self.dit.layers[0].cross_attn
        q = first.norm_q(first.q(x)).unflatten(-1, (first.num_heads, -1))
        sizes = f"{x.shape[1]} queries, {self.model.dit.config.text_len} text tokens"
        yield make("cross_norm", NORMS, "layer norm", "cross_norm", lambda at: at.layer.norm3(x))
        yield make("cross_q_projection", PROJECTIONS, "queries", "cross_projection", lambda at: at.layer.cross_attn.q(x))
        yield make("cross_q_norm", NORMS, "RMS norm", "cross_norm", lambda at: at.layer.cross_attn.norm_q(x))
        yield make("cross_attention_kernel", KERNELS, sizes, "cross_attention_kernel",
                   lambda at: dense_attention(q, *at.text).out)  # fmt: skip
        yield make("cross_output_projection", PROJECTIONS, "of cross-attention", "cross_projection",
                   lambda at: at.layer.cross_attn.o(x))  # fmt: skip
        yield make("cross_residual", RESIDUALS, "x + y", "cross_residual", lambda at: x + x)

    def _ffn(self) -> Iterator[Prepared]:
        make, x = self._maker(FFN), self.dit.patchify(self.latents)
        wide = self.dit.layers[0].ffn[0](x)
        narrow, broad = self.model.dit.config.dim, self.model.dit.config.ffn_dim
        yield make("ffn_norm_modulate", NORMS, "layer norm, scale and shift", "modulated_norm",
                   lambda at: modulate(x, at.mod[..., 3, :], at.mod[..., 4, :], at.layer.eps))  # fmt: skip
        yield make("ffn_up", FEED_FORWARD, f"{narrow} to {broad}", "ffn_up", lambda at: at.layer.ffn[0](x))
        yield make("ffn_activation", FEED_FORWARD, "GELU, tanh", "ffn_activation", lambda at: at.layer.ffn[1](wide))
        yield make("ffn_down", FEED_FORWARD, f"{broad} to {narrow}", "ffn_down", lambda at: at.layer.ffn[2](wide))
        yield make("ffn_residual", RESIDUALS, "x + y * gate", "gated_residual",
                   lambda at: add_gated(x, x, at.mod[..., 5, :]))  # fmt: skip

    def _edges(self) -> Iterator[Prepared]:
        dit, cost, latents = self.dit, self._costs(), self.latents
        x, modulation, grid = dit.patchify(latents), self._conditions()[0], dit.grid(latents)
        sigmas = self.config.schedule.sigmas

        def part(name: str, what: str, run: Callable[[], object], cost: Cost | None = None) -> Prepared:
            return Prepared(name=name, what=what, kind=EDGES, inside=REST, calls=1, run=run, cost=cost)

        yield part("conditions", "modulation and rotations, as far as a pass works them out", self._conditions)
        yield part("patch_embedding", "latents to tokens", lambda: dit.patchify(latents), cost["patch_embedding"])
        yield part("head", "modulated norm, projection", lambda: dit.project_out(x, modulation.head, grid), cost["head"])
        if self.config.schedule.sampler == "unipc":
            steps = itertools.cycle(range(len(sigmas)))

            def sample() -> object:
                index = next(steps)
                clean = [latents] * index + [to_x0(latents, latents, sigmas[index])]
                return clean if index + 1 == len(sigmas) else onward(sigmas, index, latents, latents, clean)

            yield part("unipc", "flow to clean latents, corrector, predictor: the schedule's steps in turn", sample,
                       unipc_cost(latents.numel(), len(sigmas)))  # fmt: skip
        else:
            yield part("renoise", "flow to clean latents, fresh noise mixed in",
                       lambda: add_noise(to_x0(latents, latents, sigmas[0]), latents, sigmas[0]))  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Make:
    """Factory of the operations of one region."""

    inside: str
    layers: Sequence[_Layer]
    costs: Mapping[str, Cost]

    def __call__(self, name: str, kind: BudgetLine, what: str, cost: str, run: Callable[[_Layer], object]) -> Prepared:
        turns = itertools.cycle(self.layers)
        return Prepared(
            name=name,
            what=what,
            kind=kind,
            inside=self.inside,
            calls=len(self.layers),
            run=lambda: run(next(turns)),
            cost=self.costs[cost],
        )


# --------------------------------------------------------------------------------------------------- cache, for reference


def cache_copies(parts: StepParts) -> tuple[Prepared, ...]:
    """Return the copies of a rolling cache in every layer of every pass, on buffers of this window; a ring has none."""
    config, dit = parts.config, parts.model.dit.config
    tokens = parts.latents.shape[3] * parts.latents.shape[4] // (dit.patch[0] * dit.patch[1])
    sink, window = config.policy.sink * tokens, config.policy.window * tokens
    shape = (1, window, dit.num_heads, dit.head_dim)
    keys, values = (torch.zeros(shape, device=config.device, dtype=config.dtype) for _ in range(2))
    dtype = dtype_name(config)

    def cost(rows: int) -> Cost:
        read = costs.kv_read(rows, dit.num_heads, dit.head_dim, dtype=dtype)
        return read + Cost(write_bytes=read.read_bytes)

    def part(name: str, what: str, run: Callable[[], object], rows: int) -> Prepared:
        return Prepared(name=name, what=what, kind=CACHE, inside="", calls=0, run=run, cost=cost(rows))

    pair = (keys, values)
    return (
        part(
            "kv_local_window_read",
            "copy of the window without the sink",
            lambda: [t[:, sink:].clone() for t in pair],
            window - sink,
        ),
        part("kv_sink_read", "copy of the sink", lambda: [t[:, :sink].clone() for t in pair], sink),
        part(
            "kv_window_concat",
            "sink and window into one tensor",
            lambda: [torch.cat((t[:, :sink], t[:, sink:]), dim=1) for t in pair],
            window,
        ),
    )


# ------------------------------------------------------------------------------------------------------------- decoder


def decoder_operations(model: Model, config: ResolvedConfig, latents: Tensor) -> tuple[Prepared, ...]:
    """Return the tiny decoder's modules with their inputs in a stream's second frame block; none for other decoders."""
    if not isinstance(model.vae, TinyVAE):
        return ()
    vae = copy.deepcopy(model.vae).to(device=config.device, dtype=config.dtype).requires_grad_(False).eval()
    pieces = 1 if config.knobs.block_decode else latents.shape[1]
    inputs = _inputs(vae, latents.to(config.dtype)[:, : latents.shape[1] // pieces])
    cost = dict(decoder_stages(model, dtype_name(config)))
    found = []
    for name, module in vae.decoder.named_children():
        arguments = inputs[name]
        found.append(
            Prepared(
                name=f"vae_{name}",
                what=f"{type(module).__name__}, {'x'.join(map(str, arguments[0].shape))}",
                kind=DECODER,
                inside="",
                calls=pieces,
                run=_call(module, arguments),
                cost=cost[name] if pieces == 1 else None,
            )
        )
    return tuple(found)


def _call(module: nn.Module, arguments: tuple[Any, ...]) -> Callable[[], object]:
    return lambda: module(*arguments)


def _inputs(vae: TinyVAE, latents: Tensor) -> dict[str, tuple[Any, ...]]:
    """Return the arguments of every decoder module once its memories are filled, by module name."""
    found: dict[str, tuple[Any, ...]] = {}
    decoder = StreamingDecoder(vae)
    decoder.push(latents)
    handles = [
        module.register_forward_pre_hook(lambda _, arguments, name=name: found.__setitem__(name, arguments))
        for name, module in vae.decoder.named_children()
    ]
    decoder.push(latents)
    for handle in handles:
        handle.remove()
    return found
