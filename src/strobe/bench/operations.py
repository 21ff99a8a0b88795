"""Operations of a denoise step: their costs, what is prepared for them, and each timed by itself."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.bench.case import Progress
from strobe.bench.runner import span_cost
from strobe.cache.quantized import EightBitStep
from strobe.core import costs, spans
from strobe.core.costs import Cost, PassParts, PassShape, TransformerShape
from strobe.core.errors import ConfigError
from strobe.core.shapes import LatentShape
from strobe.eightbit.rounded import RoundedKeys, RoundedQueries
from strobe.engine.caches import attended_keys, new_cache
from strobe.engine.config import EngineConfig
from strobe.engine.denoise import draw_block
from strobe.engine.model import Model, latent_shape
from strobe.engine.prompts import encode_prompts
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from strobe.engine.transformer import Transformer
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.flow import add_noise, to_x0
from strobe.models.wan.layers import Modulation, TextKV, WanLayer, add_gated, distinct_rows, modulate
from strobe.perf.analysis.runs.breakdown import (
    CACHE,
    DECODER,
    EDGES,
    FEED_FORWARD,
    KERNELS,
    NORMS,
    PROJECTIONS,
    REGIONS,
    RESIDUALS,
    REST,
    BudgetName,
    KernelProfile,
    Operation,
    Whole,
)
from strobe.perf.measure.timing import TimedRegion, TimingRecorder, time_isolated
from strobe.perf.records.record import SpanCost


def transformer_shape(model: Model, text_rows: int | None = None) -> TransformerShape:
    """Return the sizes of a loaded model's transformer; `text_rows`: rows of a text that passes attend, None: all."""
    config = model.dit.config
    return TransformerShape(
        name=model.name,
        num_layers=config.num_layers,
        dim=config.dim,
        ffn_dim=config.ffn_dim,
        num_heads=config.num_heads,
        text_tokens=config.text_len if text_rows is None else text_rows,
        latent_channels=config.latent_channels,
        patch=config.patch,
        stride=model.defaults.stride,
        frame_block=model.defaults.frame_block,
    )


def steady_pass(model: Model, config: ResolvedConfig, *, commit: bool = False) -> PassShape:
    """Return the sizes of a pass over a frame block with a full window; `commit`: of the pass that writes a finished block."""
    grid = latent_shape(model.defaults, model.dit.config).token_grid(model.dit.config.patch)
    return PassShape(
        q_tokens=config.frame_block * grid.tokens_per_frame,
        kv_tokens=attended_keys(grid, config),
        dtype=dtype_name(config),
        last_layer_kv_only=commit and config.knobs.commit_kv_only,
    )


def keys_of_blocks(model: Model, config: ResolvedConfig) -> tuple[int, ...]:
    """Return the keys per query in each frame block until the window is full; the last entry holds for all later ones."""
    grid = latent_shape(model.defaults, model.dit.config).token_grid(model.dit.config.patch)
    full = next(index for index in count(1) if config.latents_of(index).stop >= config.policy.window)
    return tuple(attended_keys(grid, config, index) for index in range(full + 1))


def dtype_name(config: ResolvedConfig) -> str:
    """Return the dtype of weights and activations, without `torch.`"""
    return str(config.dtype).removeprefix("torch.")


_MATRICES: Final = ("qkv_projection", "output_projection", "cross_projection", "ffn_up", "ffn_down")
"""Parts of a pass whose matrices `linear_format` applies to."""
_SECTIONS: Final = {
    spans.ATTENTION: (
        "modulated_norm", "qkv_projection", "qk_norm_rope", "kv_write", spans.ATTENTION_KERNEL, "output_projection",
        "gated_residual",
    ),
    spans.CROSS_ATTENTION: (
        "cross_norm", "cross_norm", "cross_projection", "cross_projection", "cross_attention_kernel", "cross_residual"
    ),
    spans.FFN: ("modulated_norm", "ffn_up", "ffn_activation", "ffn_down", "gated_residual"),
}  # fmt: skip
"""Parts of a pass in each section of a layer."""


def rows_of_text(model: Model, prompts: Sequence[str], config: ResolvedConfig) -> int | None:
    """Return the rows that a pass attends under the longest of some prompts; None: all of a text.

    Fused kernels attend the distinct ones (`strobe.models.wan.layers`).
    """
    if not config.knobs.fused_kernels:
        return None
    text = encode_prompts(model.text, prompts)
    return int(distinct_rows(F.pad(text, (0, 0, 0, model.dit.config.text_len - text.shape[1]))).max())


def stream_costs(model: Model, config: ResolvedConfig, text_rows: int | None = None) -> tuple[SpanCost, ...]:
    """Return the cost of one call of every region of a steady frame block whose work follows from the sizes.

    These are denoise step, commit pass, decoder call, the sections of a layer and their pieces. FP8 matrices read inputs and
    weights in one byte and are held against the FP8 peak, int8 ones read their weights in one byte. Attention in eight bits
    multiplies int8 and FP8 and is held against the FP8 peak, which that of int8 equals; its rounding is part of `kv_write`. What
    has matrices of several kinds has no one peak: its dtype names them, and only its rates are known.

    Args:
        text_rows: that a pass attends; None: all.
    """
    shape = transformer_shape(model, text_rows)
    one = {spans.DENOISE_STEP: steady_pass(model, config), spans.COMMIT: steady_pass(model, config, commit=True)}
    wider = {name: replace(each, kv_tokens=2 * each.kv_tokens) for name, each in one.items()}
    found, more = (_regions(shape, passes, config) for passes in (one, wider))
    decode = sum((cost for _, cost in decoder_stages(model, dtype_name(config))), Cost())
    if decode != Cost():
        found[spans.VAE_DECODE] = more[spans.VAE_DECODE] = decode
    return tuple(
        span_cost(
            name,
            cost,
            dtype=_multiplied(name, config),
            attended_flops=more[name].flops - cost.flops,  # as many keys again cost as much again
            attended_read_bytes=more[name].read_bytes - cost.read_bytes,
        )
        for name, cost in found.items()
    )


def _regions(shape: TransformerShape, passes: Mapping[str, PassShape], config: ResolvedConfig) -> dict[str, Cost]:
    """Return the cost of one call of a denoise step, of a commit pass, of each section of a layer and of each piece."""
    parts = {name: _formatted(shape, one, config) for name, one in passes.items()}
    each = {name: cost for name, (_, cost) in parts[spans.DENOISE_STEP].items()}
    sections = {name: sum((each[part] for part in inside), Cost()) for name, inside in _SECTIONS.items()}
    return {name: costs.total(own) for name, own in parts.items()} | sections | each


def _multiplied(name: str, config: ResolvedConfig) -> str:
    """Return the dtype of a region's matrix products; empty: the model's."""
    linears, eight = config.linear_format == "fp8" and not config.simulate, config.attention_format == "int8"
    if (linears and name in (*_MATRICES, spans.FFN)) or (eight and name == spans.ATTENTION_KERNEL):
        return "float8"
    every = spans.DENOISE_STEP, spans.COMMIT, spans.ATTENTION
    mixed = dict.fromkeys(every, linears or eight) | {spans.CROSS_ATTENTION: linears}
    return f"float8 and {dtype_name(config)}" if mixed.get(name) else ""


def _formatted(shape: TransformerShape, one: PassShape, config: ResolvedConfig) -> PassParts:
    """Return the parts of a pass with the bytes that its matrices and its attention take in their format."""
    parts = costs.transformer_pass(shape, one)
    if config.attention_format == "int8":  # queries, keys and values are rounded where keys are written
        (calls, kernel), (writes, _) = parts[spans.ATTENTION_KERNEL], parts["kv_write"]
        elements = 3 * one.batch * one.q_tokens * shape.dim
        read = costs.elementwise(elements, dtype=one.dtype, outputs=0)
        parts |= {
            spans.ATTENTION_KERNEL: (calls, replace(kernel, read_bytes=kernel.read_bytes // costs.element_bytes(one.dtype))),
            "kv_write": (writes, read + costs.elementwise(elements, dtype="int8", inputs=0)),
        }
    if config.linear_format == "native" or config.simulate:
        return parts
    rows, dim, wide, size = one.batch * one.q_tokens, shape.dim, shape.ffn_dim, costs.element_bytes(one.dtype)
    sizes = dict.fromkeys(_MATRICES, (dim, dim)) | {
        "qkv_projection": (dim, 3 * dim),
        "ffn_up": (dim, wide),
        "ffn_down": (wide, dim),
    }
    of_input = 1 if config.linear_format == "fp8" else size
    for name, (given, out) in sizes.items():
        calls, each = parts[name]
        narrower = rows * given * (size - of_input) + given * out * (size - 1)
        parts[name] = calls, replace(each, read_bytes=each.read_bytes - narrower)
    return parts


def decoder_stages(model: Model, dtype: str) -> tuple[tuple[str, Cost], ...]:
    """Return the convolutions of one decoder call by module (tiny decoder) or as a whole (Wan's); none for others."""
    latents, vae = latent_shape(model.defaults, model.dit.config), model.vae
    if isinstance(vae, TinyVAE):
        return tuple(_stages(vae.config, latents, dtype))
    if not isinstance(vae, WanVAE):
        return ()
    sizes = vae.config
    shape = costs.VideoDecoderShape(
        width=sizes.decoder_widths[0] // sizes.multipliers[0],
        latent_channels=sizes.latent_channels,
        multipliers=sizes.multipliers,
        residual_blocks=sizes.num_blocks,
        doubles_time=tuple(reversed(sizes.halve_time)),
        halves_channels=not sizes.residual,
        out_channels=3 * sizes.patch**2,
    )
    return (("decoder", costs.vae_decode(shape, latents, dtype=dtype)),)


def _stages(config: TinyVAEConfig, latents: LatentShape, dtype: str) -> Iterator[tuple[str, Cost]]:
    deep, middle, shallow = config.widths
    cells = latents.frames * latents.height * latents.width

    def conv(places: int, given: int, out: int, taps: int = 9) -> Cost:
        return costs.conv(places, given, out, taps=taps, dtype=dtype)

    def memory_block(places: int, width: int) -> Cost:
        return conv(places, 2 * width, width) + conv(places, width, width)

    yield "enter", conv(cells, config.latent_channels, deep)
    yield "deep1", memory_block(cells, deep)
    yield "deep2", memory_block(cells, deep)
    yield "down1", conv(cells, deep, 4 * middle, taps=1)
    yield "middle", memory_block(4 * cells, middle)
    yield "down2", conv(4 * cells, middle, 4 * shallow, taps=1)
    yield "shallow1", memory_block(16 * cells, shallow)
    yield "shallow2", memory_block(16 * cells, shallow)
    yield "leave", conv(16 * cells, shallow, 3 * config.stride.time * 4)


class RunnableOperation(NamedTuple):
    """An operation without its times, and how it is run."""

    operation: Operation
    run: Callable[[], object]


def _runnable(run: Callable[[], object], **what: Any) -> RunnableOperation:
    return RunnableOperation(Operation(times_ns=(), **what), run)


class _Layer(NamedTuple):
    """One layer with the input tensors of its operations."""

    number: int
    layer: WanLayer
    mod: Tensor
    text: tuple[Tensor, Tensor]


class StepParts:
    """Transformer and full cache of one configuration, at a steady frame block.

    Raises:
        ConfigError: its transformer is not Wan's.
    """

    def __init__(self, model: Model, config: ResolvedConfig) -> None:
        self.model, self.config = model, config
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
        parts = costs.transformer_pass(transformer_shape(model), steady_pass(model, config))
        self.costs = {name: each for name, (_, each) in parts.items()}
        """Cost of each part of a pass, by name."""
        self.modulation, kept, self.rope = self._conditions()
        each = zip(self.dit.layers, self.modulation.layers, kept.layers, strict=True)
        self.layers = [_Layer(number, layer, mod, text) for number, (layer, mod, text) in enumerate(each)]

    def recache(self) -> None:
        step = self.cache.rewrite(keep_sink=self.config.keep_sink)
        self.transformer.write(self.history, self.text, step)

    def operations(self) -> tuple[RunnableOperation, ...]:
        """Return every operation of one denoise step. Each call takes the next layer's weights, as in a pass."""
        return tuple(itertools.chain(self._section(), self._cross(), self._ffn(), self._edges()))

    def _conditions(self) -> tuple[Modulation, TextKV, Tensor]:
        return self.transformer.conditions(self.latents, self.config.schedule.warped[0], self.text, self.step)

    def _make(
        self, inside: str, name: str, kind: BudgetName, what: str, run: Callable[[_Layer], object], part: str = ""
    ) -> RunnableOperation:
        """Return an operation of a region; each call takes the next layer. `part`: of a pass, if it is not named alike."""
        turns, cost = itertools.cycle(self.layers), self.costs[part or name]
        calls = len(self.layers)
        return _runnable(lambda: run(next(turns)), name=name, what=what, kind=kind, inside=inside, calls=calls, cost=cost)

    def _section(self) -> Iterator[RunnableOperation]:
        make, x, rope = partial(self._make, spans.ATTENTION), self.dit.patchify(self.latents), self.rope
        _, first, mod, _ = self.layers[0]
        normed = modulate(x, mod[..., 0, :], mod[..., 1, :], first.eps)
        q, k, v = first.self_attn.qkv(normed)
        queries, keys = first.self_attn.turned(q, k, rope)
        values = v.unflatten(-1, queries.shape[2:])
        new, step = (keys, values), self.step
        reach = step.budget if isinstance(step, EightBitStep) else step.reach
        asked: Tensor | RoundedQueries = queries
        kept: tuple[Tensor, Tensor] | RoundedKeys
        if isinstance(step, EightBitStep):
            asked, kept = step.write_beside(0, queries, *new)
        else:
            kept = step.write(0, *new)
        out = first.attend_kept(asked, new, kept, reach, 0).flatten(2)
        attended = steady_pass(self.model, self.config).kv_tokens
        ring = self.config.knobs.ring_cache
        yield make("norm_modulate", NORMS, "layer norm, scale and shift",
                   lambda at: modulate(x, at.mod[..., 0, :], at.mod[..., 1, :], at.layer.eps), "modulated_norm")  # fmt: skip
        yield make("qkv_projection", PROJECTIONS, "queries, keys and values", lambda at: at.layer.self_attn.qkv(normed))
        yield make("qk_norm_rope", NORMS, "RMS norms over the full width, RoPE", lambda at: at.layer.self_attn.turned(q, k, rope))
        where = "into their slots, which attention reads in place" if ring else "roll, clone, write, concatenate"
        if isinstance(step, EightBitStep):
            yield make("kv_write", CACHE, "queries into eight bits, keys and values too and into their slots",
                       lambda at: step.write_beside(at.number, queries, keys, values))  # fmt: skip
        else:
            write, run = make("kv_write", CACHE, where, lambda at: step.write(at.number, keys, values))
            yield RunnableOperation(replace(write, waits=not ring), run)
        yield make("attention_kernel", KERNELS, f"{queries.shape[1]} queries, {attended} keys",
                   lambda at: at.layer.attend_kept(asked, new, kept, reach, 0))  # fmt: skip
        yield make("output_projection", PROJECTIONS, "of self-attention", lambda at: at.layer.self_attn.o(out))
        yield make("attention_residual", RESIDUALS, "x + y * gate", lambda at: add_gated(x, x, at.mod[..., 2, :]),
                   "gated_residual")  # fmt: skip

    def _cross(self) -> Iterator[RunnableOperation]:
        make, x = partial(self._make, spans.CROSS_ATTENTION), self.dit.patchify(self.latents)
        first = self.dit.layers[0].cross_attn
        q = first.norm_q(first.q(x)).unflatten(-1, (first.num_heads, -1))
        sizes = f"{x.shape[1]} queries, {self.model.dit.config.text_len} text tokens"
        yield make("cross_norm", NORMS, "layer norm", lambda at: at.layer.norm3(x))
        yield make("cross_q_projection", PROJECTIONS, "queries", lambda at: at.layer.cross_attn.q(x), "cross_projection")
        yield make("cross_q_norm", NORMS, "RMS norm", lambda at: at.layer.cross_attn.norm_q(x), "cross_norm")
        yield make("cross_attention_kernel", KERNELS, sizes, lambda at: dense_attention(q, *at.text).out)
        yield make("cross_output_projection", PROJECTIONS, "of cross-attention", lambda at: at.layer.cross_attn.o(x),
                   "cross_projection")  # fmt: skip
        yield make("cross_residual", RESIDUALS, "x + y", lambda at: x + x)

    def _ffn(self) -> Iterator[RunnableOperation]:
        make, x = partial(self._make, spans.FFN), self.dit.patchify(self.latents)
        wide = self.dit.layers[0].ffn[0](x)
        narrow, broad = self.model.dit.config.dim, self.model.dit.config.ffn_dim
        yield make("ffn_norm_modulate", NORMS, "layer norm, scale and shift",
                   lambda at: modulate(x, at.mod[..., 3, :], at.mod[..., 4, :], at.layer.eps), "modulated_norm")  # fmt: skip
        yield make("ffn_up", FEED_FORWARD, f"{narrow} to {broad}", lambda at: at.layer.ffn[0](x))
        yield make("ffn_activation", FEED_FORWARD, "GELU, tanh", lambda at: at.layer.ffn[1](wide))
        yield make("ffn_down", FEED_FORWARD, f"{broad} to {narrow}", lambda at: at.layer.ffn[2](wide))
        yield make("ffn_residual", RESIDUALS, "x + y * gate", lambda at: add_gated(x, x, at.mod[..., 5, :]), "gated_residual")

    def _edges(self) -> Iterator[RunnableOperation]:
        dit, cost, latents = self.dit, self.costs, self.latents
        x, modulation, grid = dit.patchify(latents), self.modulation, dit.grid(latents)
        sigmas = self.config.schedule.sigmas

        def part(name: str, what: str, run: Callable[[], object], cost: Cost | None = None) -> RunnableOperation:
            return _runnable(run, name=name, what=what, kind=EDGES, inside=REST, calls=1, cost=cost)

        yield part("conditions", "modulation and rotations, as far as a pass works them out", self._conditions)
        yield part("patch_embedding", "latents to tokens", lambda: dit.patchify(latents), cost["patch_embedding"])
        yield part("head", "modulated norm, projection", lambda: dit.project_out(x, modulation.head, grid), cost["head"])
        if self.config.schedule.sampler == "renoise":  # UniPC's own work is no operation: it stays in the difference
            yield part("renoise", "flow to clean latents, fresh noise mixed in",
                       lambda: add_noise(to_x0(latents, latents, sigmas[0]), latents, sigmas[0]))  # fmt: skip


def cache_copies(parts: StepParts) -> tuple[RunnableOperation, ...]:
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

    def whole() -> object:
        return [torch.cat((each[:, :sink], each[:, sink:]), dim=1) for each in (keys, values)]

    def part(places: slice) -> Callable[[], object]:
        return lambda: [each[:, places].clone() for each in (keys, values)]

    late, early = part(slice(sink, None)), part(slice(sink))
    return (
        _of_cache("kv_local_window_read", "copy of the window without the sink", late, cost=cost(window - sink)),
        _of_cache("kv_sink_read", "copy of the sink", early, cost=cost(sink)),
        _of_cache("kv_window_concat", "sink and window into one tensor", whole, cost=cost(window)),
    )


def _of_cache(name: str, what: str, run: Callable[[], object], **more: Any) -> RunnableOperation:
    return _runnable(run, name=name, what=what, kind=CACHE, inside="", calls=0, **more)


def decoder_operations(model: Model, config: ResolvedConfig, latents: Tensor) -> tuple[RunnableOperation, ...]:
    """Return the tiny decoder's modules with their inputs in a stream's second frame block; none for other decoders."""
    if not isinstance(model.vae, TinyVAE):
        return ()
    vae = copy.deepcopy(model.vae).to(device=config.device, dtype=config.dtype).requires_grad_(False).eval()
    pieces = 1 if config.knobs.block_decode else latents.shape[1]
    inputs = _inputs(vae, latents.to(config.dtype)[:, : latents.shape[1] // pieces])
    cost = dict(decoder_stages(model, dtype_name(config)))
    return tuple(
        _runnable(
            partial(module, *inputs[name]),
            name=f"vae_{name}",
            what=f"{type(module).__name__}, {'x'.join(map(str, inputs[name][0].shape))}",
            kind=DECODER,
            inside="",
            calls=pieces,
            cost=cost[name] if pieces == 1 else None,
        )
        for name, module in vae.decoder.named_children()
    )


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


STAGES = (spans.FRAME_BLOCK, spans.COMMIT, spans.VAE_DECODE)
"""Stages of a frame block reported beside its steps."""
_LONG_CALLS = 20
"""Most calls of the isolated window recomputation (`RECACHE`), since each takes as long as several steps."""


SWITCHES: Final = 3
"""Prompt switches at the end of the profiled stream."""


def profile_kernels(
    model: Model,
    preset: EngineConfig,
    prompts: tuple[str, str],
    *,
    device: torch.device,
    iterations: int = 500,
    cold: bool = False,
    progress: Progress,
) -> KernelProfile:
    """Measure a preset's denoise steps, its operations by themselves, and the steps again, so that drift affects both.

    Args:
        prompts: prompt of the stream, and the one that the switches alternate with.
        iterations: calls of each operation by itself, and denoise steps of the stream, with and without timers inside; from 1.
        cold: overwrite a GPU's cache before each call by itself.

    Raises:
        ConfigError: an unknown word, or a window that is not possible.
    """
    config = resolve(preset, model.defaults, device)
    with torch.inference_mode():
        parts = StepParts(model, config)
        operations = parts.operations()
        decoder = decoder_operations(model, config, parts.latents)
        others = (*cache_copies(parts), *_rare(parts))
    half = -(-iterations // (2 * len(config.schedule.timesteps)))  # frame blocks with each kind of timers
    pieces = 4 * half + SWITCHES + len((*operations, *decoder, *others))
    with closing(Session(prompts[0], preset=preset, model=model, device=device)) as session:
        session.warm_up()
        stream = _Steps(session, progress, pieces)
        stream.settle()
        stream.run(2 * half)
        timed = {}
        for each in (*operations, *decoder, *others):
            one = each.operation
            stream.tell(one.name)
            calls = min(iterations, _LONG_CALLS) if one.name == spans.RECACHE else iterations
            with torch.inference_mode():
                times_ns, _ = time_isolated(each.run, iterations=calls, device=device, warmup=2, cold=cold, waits=one.waits)
            timed[one.name] = replace(one, times_ns=times_ns)
        stream.run(2 * half)
        stream.switch(prompts, SWITCHES)

    def taken(chosen: Sequence[RunnableOperation]) -> tuple[Operation, ...]:
        return tuple(timed[each.operation.name] for each in chosen)

    decoding = tuple(stream.stages_ns[spans.VAE_DECODE])
    return KernelProfile(
        step=Whole(name=spans.DENOISE_STEP, times_ns=tuple(stream.plain_ns), operations=taken(operations)),
        fine_ns=tuple(stream.fine_ns),
        regions_ns={name: tuple(stream.regions_ns[name]) for name in REGIONS},
        decode=Whole(name=spans.VAE_DECODE, times_ns=decoding, operations=taken(decoder)),
        stages_ns={name: tuple(times) for name, times in stream.stages_ns.items()},
        reference=taken(others),
    )


def _rare(parts: StepParts) -> tuple[RunnableOperation, ...]:
    """Return the cache's operations per frame block and per prompt switch, in the order to run: `kv_open` moves the cache on."""
    frames = parts.history.shape[1]
    size = parts.latents.shape[1]
    opens = "once per frame block: slots chosen, sink turned"
    opened = _of_cache("kv_open", opens, lambda: parts.cache.at(parts.cache.end, size), waits=True)
    if parts.config.past == "shots":  # a prompt switch derives nothing again
        return (opened,)
    derives = f"{frames} latent frames derived again: a prompt switch"
    return (_of_cache(spans.RECACHE, derives, parts.recache, waits=True), opened)


class _Steps:
    """A stream whose frame blocks alternate between plain timers (P) and timers around every layer's regions (F): P F F P."""

    def __init__(self, session: Session, progress: Progress, pieces: int) -> None:
        self._session = session
        self._progress = progress
        self._filling = 2 + -(-session.config.policy.window // session.config.frame_block)
        self._pieces = pieces + self._filling
        self._done = 0
        device = session.config.device
        self._recorders = {fine: TimingRecorder(device, fine=fine) for fine in (False, True)}
        self._stream: Iterator[FrameBlock] = session.stream()
        self._timed = 0
        self.plain_ns: list[int] = []
        self.fine_ns: list[int] = []
        self.regions_ns: dict[str, list[int]] = defaultdict(list)
        self.stages_ns: dict[str, list[int]] = defaultdict(list)

    def tell(self, what: str) -> None:
        self._progress(self._done, self._pieces, what)
        self._done += 1

    def settle(self) -> None:
        """Run until the window is full, frames were evicted, and each kind of timer is warm."""
        for number in range(self._filling):
            self._block(fine=bool(number % 2), what="filling the window")

    def run(self, blocks: int) -> None:
        for _ in range(blocks):
            fine = self._timed % 4 in (1, 2)
            self._timed += 1
            regions = self._block(fine=fine, what="timing steps")
            steps = [region for region in regions if region.name == spans.DENOISE_STEP]
            (self.fine_ns if fine else self.plain_ns).extend(step.value_ns for step in steps)
            if fine:
                for name in REGIONS:
                    self.regions_ns[name] += [_inside(step, regions, name) for step in steps]
            else:
                self._stages(regions, STAGES)

    def switch(self, prompts: tuple[str, str], count: int) -> None:
        for number in range(count):
            self._session.prompt(prompts[1 - number % 2], wait=True)
            self._stages(self._block(fine=False, what="switching the prompt"), (spans.RECACHE,))

    def _stages(self, regions: Sequence[TimedRegion], names: Sequence[str]) -> None:
        for region in regions:
            if region.name in names:
                self.stages_ns[region.name].append(region.value_ns)

    def _block(self, *, fine: bool, what: str) -> tuple[TimedRegion, ...]:
        self.tell(what)
        recorder = self._recorders[fine]
        with spans.recording(recorder):
            recorder.start_clip()
            next(self._stream)
            return recorder.finish_clip()


def _inside(step: TimedRegion, regions: Sequence[TimedRegion], name: str) -> int:
    """Return the time of a region in one step: both lie on one thread or stream, one after the other."""
    end = step.start_ns + step.value_ns
    return sum(region.value_ns for region in regions if region.name == name and step.start_ns <= region.start_ns < end)
