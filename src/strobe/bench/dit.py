"""One forward pass of a diffusers transformer, dense or sparse, eager or compiled, as a case: `strobe profile dit`."""

from __future__ import annotations

import copy
import hashlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from strobe.attention.explain import components_of
from strobe.bench import gate, quality
from strobe.bench.gate import GateResult
from strobe.bench.probe import hooked
from strobe.bench.runner import number, span_cost
from strobe.core import costs, spans
from strobe.core.errors import ConfigError, ImplUnavailableError, WeightsError, unknown_choice
from strobe.core.tolerances import tolerance
from strobe.engine.load import RANDOM
from strobe.integrations.diffusers import SparseHandle, processors, sparsify
from strobe.integrations.diffusers.families import family_of
from strobe.perf.measure.profile import file_sha256
from strobe.perf.records import record

Sizes = Mapping[str, Any]
Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shot:
    """Sizes of one forward pass: height and width in pixels, pixel frames of the whole clip, samples."""

    height: int
    width: int
    frames: int
    batch: int = 1

    def grid(self, stride: tuple[int, int, int], patch: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the tokens in time, height and width behind a causal autoencoder of that stride.

        Raises:
            ConfigError: a size that the model's autoencoder or patches do not divide.
        """
        time, rows, columns = stride[0], stride[1] * patch[1], stride[2] * patch[2]
        if self.frames < 1 or (self.frames - 1) % time or self.height % rows or self.width % columns:
            raise ConfigError(
                f"{self.height}x{self.width} and {self.frames} frames: this model takes heights divisible by {rows}, widths "
                f"divisible by {columns} and {time} n + 1 frames"
            )
        latents = (self.frames - 1) // time + 1
        return (latents // patch[0], self.height // rows, self.width // columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DitModel:
    """Entry of the table of transformers: class, sizes, strides and arguments.

    Args:
        sizes: configuration where it is not the default of the class.
        tiny, tiny_shot: the same for a configuration that a CPU runs at once, and its pass.
        stride: of the model's autoencoder in time, height and width.
        arguments: makes the arguments of a forward pass from the model's configuration, the grid of tokens, the pass and a
            drawing function.
        masked: the stock attention is given a mask of pairs, which not every kernel takes.
    """

    cls: str
    sizes: Sizes
    tiny: Sizes
    stride: tuple[int, int, int]
    patch: tuple[int, int, int]
    shot: Shot
    tiny_shot: Shot
    arguments: Callable[[Any, tuple[int, int, int], Shot, Callable[..., Tensor]], Arguments]
    masked: bool = False


def _wan(config: Any, grid: tuple[int, int, int], shot: Shot, draw: Callable[..., Tensor]) -> Arguments:
    patch = config.patch_size
    latents = (side * step for side, step in zip(grid, patch, strict=True))
    return {
        "hidden_states": draw(shot.batch, config.in_channels, *latents),
        "encoder_hidden_states": draw(shot.batch, min(512, 64 * config.num_layers), config.text_dim),
        "timestep": torch.full_like(draw(shot.batch), 500),
    }


def _ltx2(config: Any, grid: tuple[int, int, int], shot: Shot, draw: Callable[..., Tensor]) -> Arguments:
    t, h, w = grid
    audio = round(shot.frames / 24 * config.audio_sampling_rate / config.audio_hop_length / config.audio_scale_factor)
    text = min(1024, 64 * config.num_layers)
    return {
        "hidden_states": draw(shot.batch, t * h * w, config.in_channels),
        "audio_hidden_states": draw(shot.batch, audio, config.audio_in_channels),
        "encoder_hidden_states": draw(shot.batch, text, config.caption_channels),
        "audio_encoder_hidden_states": draw(shot.batch, text, config.caption_channels),
        "timestep": torch.full_like(draw(shot.batch), 500),
        "sigma": torch.full_like(draw(shot.batch), 0.5),
        "num_frames": t,
        "height": h,
        "width": w,
        "audio_num_frames": audio,
    }


TEXT_USED: Final = 0.25
"""Share of the text tokens that are no padding: a prompt of some hundred words."""


def _hunyuan15(config: Any, grid: tuple[int, int, int], shot: Shot, draw: Callable[..., Tensor]) -> Arguments:
    sizes = (min(1000, 32 * config.num_layers), min(256, 8 * config.num_layers))
    used = (max(1, round(sizes[0] * TEXT_USED)), 0)
    masks = [
        (torch.arange(size) < count).long().expand(shot.batch, -1).contiguous() for size, count in zip(sizes, used, strict=True)
    ]
    images = min(729, 16 * config.num_layers)
    return {
        "hidden_states": draw(shot.batch, config.in_channels, *grid),
        "timestep": torch.full_like(draw(shot.batch), 500),
        "encoder_hidden_states": draw(shot.batch, sizes[0], config.text_embed_dim),
        "encoder_attention_mask": masks[0],
        "encoder_hidden_states_2": draw(shot.batch, sizes[1], config.text_embed_2_dim),
        "encoder_attention_mask_2": masks[1],
        "image_embeds": torch.zeros_like(draw(shot.batch, images, config.image_embed_dim)),
    }


_WAN_14B: Final = DitModel(
    cls="WanTransformer3DModel",
    sizes={},
    tiny={
        "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 16,
        "ffn_dim": 32, "num_layers": 2,
    },
    stride=(4, 8, 8),
    patch=(1, 2, 2),
    shot=Shot(height=480, width=832, frames=81),
    tiny_shot=Shot(height=96, width=128, frames=17),
    arguments=_wan,
)  # fmt: skip
MODELS: Final[dict[str, DitModel]] = {
    "wan-1.3b": replace(_WAN_14B, sizes={"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}),  # Wan2.1-T2V
    "wan-14b": _WAN_14B,
    "ltx-2": DitModel(
        cls="LTX2VideoTransformer3DModel",
        sizes={},
        tiny={
            "in_channels": 8, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32,
            "audio_in_channels": 8, "audio_out_channels": 8, "audio_num_attention_heads": 2, "audio_attention_head_dim": 6,
            "audio_cross_attention_dim": 12, "num_layers": 2, "caption_channels": 16,
        },
        stride=(8, 32, 32),
        patch=(1, 1, 1),
        shot=Shot(height=512, width=768, frames=121),
        tiny_shot=Shot(height=256, width=256, frames=33),
        arguments=_ltx2,
    ),
    "hunyuan-video-1.5": DitModel(
        cls="HunyuanVideo15Transformer3DModel",
        sizes={"task_type": "t2v"},
        tiny={
            "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2,
            "num_refiner_layers": 1, "text_embed_dim": 16, "text_embed_2_dim": 8, "image_embed_dim": 8,
            "rope_axes_dim": (4, 6, 6),
        },
        stride=(4, 16, 16),
        patch=(1, 1, 1),
        shot=Shot(height=480, width=832, frames=121),
        tiny_shot=Shot(height=128, width=128, frames=17),
        arguments=_hunyuan15,
        masked=True,
    ),  # HunyuanVideo 1.5 at 480p
}  # fmt: skip
"""Transformers by name; sizes that are not given are the defaults of the class."""


def model_named(name: str) -> DitModel:
    """Return a model of the table."""
    if name not in MODELS:
        raise unknown_choice("model", name, MODELS)
    return MODELS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A transformer for inference with the arguments of its forward pass by name.

    Args:
        weights_sha256: hash of the weights; of random ones, of the text that says so.
        random: the weights are drawn, so that outputs mean nothing.
    """

    name: str
    transformer: Any
    arguments: Arguments
    shot: Shot
    weights_sha256: str
    random: bool
    masked: bool


def load_named(
    name: str, *, shot: Shot, tiny: bool, weights: Path | None, device: torch.device, dtype: torch.dtype, seed: int
) -> LoadedModel:
    """Load a model of the table, `tiny` in its tiny configuration.

    Args:
        weights: folder of a transformer as diffusers saves it; None: weights are drawn.

    Raises:
        ConfigError: an unknown name, sizes that do not fit the model, or a tiny configuration with weights.
        WeightsError: the folder holds no such transformer.
    """
    model = model_named(name)
    if tiny and weights is not None:
        raise ConfigError("--tiny draws its weights; leave --weights out")
    grid = shot.grid(model.stride, model.patch)
    import diffusers

    cls = getattr(diffusers, model.cls)
    if weights is None:
        before = torch.get_default_dtype()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
            torch.manual_seed(seed)
            torch.set_default_dtype(dtype)
            try:
                transformer = cls(**(model.tiny if tiny else model.sizes))
                if tiny:
                    _spread(transformer)
            finally:
                torch.set_default_dtype(before)
        digest = hashlib.sha256(f"{RANDOM} of {name}{' tiny' if tiny else ''}, seed {seed}".encode()).hexdigest()
    else:
        try:
            transformer = cls.from_pretrained(weights, torch_dtype=dtype, local_files_only=True).to(device)
        except (OSError, ValueError) as error:
            raise WeightsError(f"{weights} holds no {model.cls} as diffusers saves it: {str(error).splitlines()[0]}") from error
        files = sorted(weights.glob("*.safetensors"))
        digest = hashlib.sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()
    transformer.requires_grad_(False).train(False)
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    label = f"{name}{', tiny' if tiny else ''}{f', {RANDOM}' if weights is None else ''}"
    return LoadedModel(
        name=label,
        transformer=transformer,
        arguments=on(model.arguments(transformer.config, grid, shot, draw), device),
        shot=shot,
        weights_sha256=digest,
        random=weights is None,
        masked=model.masked,
    )


def on(arguments: Mapping[str, Any], device: torch.device) -> Arguments:
    """Return the same arguments with all tensors on a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}


def _spread(model: nn.Module) -> None:
    """Set every parameter to non-trivial values: tables that start at 0 would hide errors."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            spread = 0.5 / value.shape[-1] ** 0.5 if value.dim() > 1 else 0.1
            value.normal_(std=spread).add_(1.0 if "norm" in name and value.dim() == 1 else 0.0)


OTHERS: Final = {
    "attn2": spans.CROSS_ATTENTION, "audio_attn1": spans.CROSS_ATTENTION, "audio_attn2": spans.CROSS_ATTENTION,
    "audio_to_video_attn": spans.CROSS_ATTENTION, "video_to_audio_attn": spans.CROSS_ATTENTION,
    "ffn": spans.FFN, "ff": spans.FFN, "audio_ff": spans.FFN, "ff_context": spans.FFN,
}  # fmt: skip
"""Sections of a block beside the video's self-attention, by the name of their module. Audio and cross-modal attention count as
cross-attention."""
_DISPATCH: Final = "dispatch_attention_fn"
_OURS: Final = "dense_attention"


@contextmanager
def marked(transformer: Any) -> Iterator[None]:
    """Mark the sections of every block and the attention kernels in them."""
    family = family_of(transformer)
    assert family is not None, "checked when it was loaded"
    layers = family.layers(transformer)
    inside: list[str] = []
    named = {layer.attn: spans.ATTENTION for layer in layers}
    for layer in layers:
        named |= {child: OTHERS[name] for name, child in layer.block.named_children() if name in OTHERS and child not in named}
    with ExitStack() as stack:
        for module, name in named.items():
            stack.enter_context(hooked(module, partial(_region, name, inside)))
        callers: dict[Any, str] = {sys.modules[type(transformer).__module__]: _DISPATCH, processors: _OURS}
        for caller, attribute in callers.items():
            if hasattr(caller, attribute):
                _wrap(stack, caller, attribute, inside)
        yield


@contextmanager
def _region(name: str, inside: list[str]) -> Iterator[None]:
    with spans.span(name):
        inside.append(name)
        try:
            yield
        finally:
            inside.pop()


def _wrap(stack: ExitStack, caller: Any, attribute: str, inside: list[str]) -> None:
    stock: Callable[..., Any] = getattr(caller, attribute)

    def within(*args: Any, **kwargs: Any) -> Any:
        of_video = bool(inside) and inside[-1] == spans.ATTENTION
        with spans.span(spans.ATTENTION_KERNEL if of_video else spans.CROSS_ATTENTION_KERNEL):
            return stock(*args, **kwargs)

    setattr(caller, attribute, within)
    stack.callback(setattr, caller, attribute, stock)


DENSE: Final = "dense"
OURS: Final = "dense-strobe"
SPARSE: Final = "vsa"
ATTENTIONS: Final = (DENSE, OURS, SPARSE)
_ALL_TILES: Final = 1e-9  # sparsity at which every key tile is selected: the sparse kernels compute dense attention


class Attends(NamedTuple):
    """One variant: one of `ATTENTIONS`, the share of key tiles that are skipped, and whether its blocks are compiled."""

    attention: str
    sparsity: float
    compiled: bool

    @property
    def name(self) -> str:
        share = f"-{100 * self.sparsity:g}" if self.sparsity else ""
        return f"{self.attention}{share}{'-compile' if self.compiled else ''}"

    @property
    def eager(self) -> Attends:
        return self._replace(compiled=False)


def variants_of(
    attention: Sequence[str], sparsity: Sequence[float], compiled: Sequence[bool], *, masked: bool
) -> tuple[Attends, ...]:
    """Return every kind of attention, eager and compiled as asked for; the first is the baseline.

    Args:
        masked: the stock attention is given a mask of pairs: strobe's dense attention without the padding joins the stock one.

    Raises:
        ConfigError: an unknown word, a sparsity outside (0, 1), or fewer than two variants.
    """
    for word in attention:
        if word not in ATTENTIONS:
            raise unknown_choice("attention", word, ATTENTIONS)
    for share in sparsity:
        if not 0 < share < 1:
            raise ConfigError(
                f"--sparsity {share:g}: give shares between 0 and 1, such as 0.9; dense attention is --attention dense"
            )
    words = list(dict.fromkeys(attention))
    if masked and DENSE in words and OURS not in words:
        words.insert(words.index(DENSE) + 1, OURS)
    kinds = [(word, 0.0) for word in words if word != SPARSE]
    kinds += [(SPARSE, share) for share in dict.fromkeys(sparsity) if SPARSE in words]
    found = tuple(Attends(word, share, mode) for mode in dict.fromkeys(compiled) for word, share in kinds)
    if len(found) < 2:
        raise ConfigError("one variant alone compares nothing: give --attention dense vsa, or --compile on off")
    return found


class _Made(NamedTuple):
    """A variant that is ready: a transformer of its own over the shared weights."""

    transformer: Any
    handle: SparseHandle | None = None
    impl: str = ""

    @property
    def attn(self) -> Any:
        assert self.handle is not None
        return next(iter(self.handle.layers.values()))

    @property
    def choice(self) -> Any:
        attn = self.attn
        return attn.processor.explain(attn)


class DitCase:
    """Case that compares kinds of attention in one transformer; a `strobe.bench.case.Case`.

    All variants share the weights: each has modules of its own over them, so that none has to be changed back. A denoise step is
    one forward pass over the same latents; the records count it as one frame block.

    Args:
        variants: the first is the baseline.
        backend: diffusers' attention backend of the stock layers; `auto`: cuDNN on a GPU where the attention has no mask, else
            the one that diffusers takes by itself.
        compiler: backend of torch.compile; on a CPU one that generates no code, such as `eager`.

    Raises:
        ImplUnavailableError: something is to be compiled where nothing is, or diffusers has no such backend here.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        variants: Sequence[Attends],
        *,
        steps: int,
        device: torch.device,
        backend: str = "auto",
        seed: int = 0,
        compiler: str = "inductor",
    ) -> None:
        if any(each.compiled for each in variants) and device.type != "cuda" and compiler == "inductor":
            raise ImplUnavailableError("compile", f"nothing is compiled on {device}", ["--compile off"], what="option")
        self._loaded, self._variants, self._steps = loaded, {each.name: each for each in variants}, steps
        best = "_native_cudnn" if device.type == "cuda" and not loaded.masked else "native"
        self._backend = best if backend == "auto" else backend
        if self._backend != "native":  # of the layers that stay dense in every variant too
            try:
                loaded.transformer.set_attention_backend(self._backend)
            except (ValueError, ImportError, RuntimeError) as error:
                raise ImplUnavailableError(
                    self._backend, str(error).splitlines()[0], ["native"], what="attention backend of diffusers"
                ) from error
        self._made: dict[Attends, _Made] = {}
        self._outputs: dict[Attends | None, Tensor] = {}  # None: of diffusers' own attention
        self._eager_now, self._compiler = False, compiler
        self.device = device
        self.baseline, *candidates = self._variants
        self.candidates = tuple(candidates)
        self.slug = "dit"
        self.absent: tuple[record.Absent, ...] = ()  # a variant that cannot run here is an error
        num_params = sum(parameter.numel() for parameter in loaded.transformer.parameters())
        self.model: record.Model | None = record.Model(
            name=loaded.name, weights_sha256=loaded.weights_sha256, num_params=num_params
        )
        shot = loaded.shot
        self.workload = record.Workload(
            prompts=(), seed=seed, frame_blocks=steps, latents_per_block=1, frames_first_block=shot.frames,
            frames_per_block=shot.frames, frames=shot.frames, height=shot.height, width=shot.width, fps=0, batch=shot.batch,
            unit="denoise step",
        )  # fmt: skip
        if any(each.compiled for each in variants):
            from torch._dynamo import config

            config.recompile_limit = max(config.recompile_limit, 8 * len(variants))  # all variants share the code of the blocks

    def gate(self, name: str) -> record.Gate:
        """Check a variant against the stock attention before any number is taken.

        A dense one must give the same output. A sparse one must give it with every key tile selected, by the kernels that it
        runs, and finite numbers with its own selection; its implementation must have passed its gate on this card. A compiled one
        must give what it gives uncompiled.
        """
        return self._held(self._variants[name]).line(name, self.baseline)

    def prepare(self, name: str) -> None:
        self._make(self._variants[name])

    def blocks(self, name: str) -> Iterator[object]:
        variant = self._variants[name].eager if self._eager_now else self._variants[name]
        transformer = self._make(variant).transformer
        listened = not isinstance(spans.span(spans.ATTENTION), nullcontext)  # a recorder records regions inside a pass
        with nullcontext() if variant.compiled or not listened else marked(transformer):
            for step in range(self._steps):
                with spans.span(spans.FRAME_BLOCK, step), spans.span(spans.DENOISE_STEP, step), spans.span(spans.DIT_FORWARD):
                    self._forward(transformer)
                yield step

    def launched(self, name: str) -> AbstractContextManager[None] | None:
        """Return a context in which a compiled variant runs uncompiled, so that its attention kernels keep their names."""
        return self._uncompiled() if self._variants[name].compiled else None

    def settings(self, name: str) -> record.Variant:
        made = self._make(variant := self._variants[name])
        known = next((each for each in (made, *self._made.values()) if each.handle is not None), None)
        known = known or self._fresh(Attends(OURS, 0.0, False))
        assert known.handle is not None
        report, attn = known.handle.report(), known.attn
        assert report.grid is not None, "a variant has run before its settings are asked for"
        tokens, dtype = prod(report.grid), str(self._dtype).removeprefix("torch.")
        shape = costs.AttentionShape(
            batch=self._loaded.shot.batch,
            q_tokens=tokens,
            kv_tokens=tokens,
            num_heads=attn.heads,
            head_dim=attn.inner_dim // attn.heads,
        )
        dense = costs.attention(shape, dtype=dtype)  # of one call of the video's self-attention
        share = report.layers[-1].share if variant.sparsity else 1.0
        own = dense if share is None else replace(dense, flops=round(dense.flops * share))
        kernel = span_cost(spans.ATTENTION_KERNEL, own, dense_flops=dense.flops if variant.sparsity else None)
        return record.Variant(
            name=name,
            preset="custom",
            knobs=(record.Knob(name="compile", value="on" if variant.compiled else "off", on=variant.compiled),),
            attention_impl=made.impl,
            attention_reason=self._reason(variant),
            sparsity=variant.sparsity,
            steps=self._steps,
            dtype=dtype,
            compile_mode="each block, full graph" if variant.compiled else None,
            tokens_per_block=tokens,
            costs=(kernel,),
        )

    def review(self, name: str, folder: Path) -> Iterator[record.Quality | record.Video]:
        """Report what is known of quality: of one forward pass, nothing with random weights."""
        if self._loaded.random:
            yield from quality.not_measured(name, RANDOM)
            return
        error = gate.relative_error(self._output(self._variants[name]), self._output(self._variants[self.baseline]))
        definition = "root mean square of the difference of one forward pass's outputs / that of the reference's, in float64"
        note = "says how far one pass moved, not how a clip looks: compare clips by `strobe quality`"
        yield number(name, "forward_error", error, definition, reference=self.baseline, note=note)

    def close(self) -> None:
        if self._backend != "native":
            self._loaded.transformer.reset_attention_backend()
        self._made.clear()
        self._outputs.clear()

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = self._loaded.arguments["hidden_states"].dtype
        return found

    def _make(self, variant: Attends) -> _Made:
        if variant not in self._made:
            self._made[variant] = self._fresh(variant)
        return self._made[variant]

    def _fresh(self, variant: Attends) -> _Made:
        stock = self._loaded.transformer
        shared = {id(value): value for value in (*stock.parameters(), *stock.buffers())}
        transformer, handle, impl = copy.deepcopy(stock, shared), None, ""
        if variant.attention == DENSE:
            impl = f"diffusers, {self._backend.lstrip('_')}"
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that quality is unmeasured, which the report says
                handle = sparsify(transformer, sparsity=variant.sparsity, tile="auto")
        if variant.compiled:
            # every forward pass has the same shapes
            transformer.compile_repeated_blocks(fullgraph=True, dynamic=False, backend=self._compiler)
        if handle is not None and not variant.compiled:
            self._forward(transformer)  # which tells it the grid
            impl = handle.report().layers[0].impl
        elif handle is not None:
            impl = self._make(variant.eager).impl
        return _Made(transformer, handle, impl)

    def _forward(self, transformer: Any) -> Tensor:
        with torch.no_grad():
            found: tuple[Tensor, ...] = transformer(**self._loaded.arguments, return_dict=False)
        return found[0]

    @contextmanager
    def _uncompiled(self) -> Iterator[None]:
        self._eager_now = True
        try:
            yield
        finally:
            self._eager_now = False

    def _output(self, variant: Attends | None) -> Tensor:
        if variant not in self._outputs:
            transformer = self._loaded.transformer if variant is None else self._make(variant).transformer
            self._outputs[variant] = self._forward(transformer).cpu()
        return self._outputs[variant]

    def _held(self, variant: Attends) -> GateResult:
        limit = tolerance("latents", self._dtype)
        dtype = str(self._dtype).removeprefix("torch.")
        stock = self._output(None)
        if variant.compiled:
            found, expected = self._output(variant), self._output(variant.eager)
            what = "the same as uncompiled"
        elif not variant.sparsity:
            found, expected, what = self._output(variant), stock, "the same as diffusers' own attention"
        else:
            own = self._make(variant)
            held = gate.recorded(own.choice, self.device)
            if not held.passed:
                assert own.handle is not None
                return GateResult(False, f"{next(iter(own.handle.layers))}: {held.rule}", held.detail)
            if not self._output(variant).isfinite().all():
                return GateResult(False, "the output is finite", "it is not")
            whole = self._fresh(variant._replace(sparsity=_ALL_TILES))
            found, expected = self._forward(whole.transformer).cpu(), stock
            what = "with every key tile selected the same as diffusers' own attention"
        error = gate.relative_error(found, expected)
        rule = f"one forward pass: {what}, relative error <= {limit:g} ({dtype})"
        return GateResult(error <= limit, rule, f"{error:.3g}", exact=not variant.sparsity)

    def _reason(self, variant: Attends) -> str:
        if variant.attention == DENSE:
            masked = "its attention is given a mask of pairs, which cuDNN is not asked for" if self._loaded.masked else ""
            return masked if self._backend == "native" and self.device.type == "cuda" else ""
        return gate.passed_over(self._make(variant.eager).choice)


def load_pipe(text: str, shot: Shot, device: torch.device) -> LoadedModel:
    """Run `module:function`, which is the user's code, and use the transformer and arguments it returns.

    The function takes no arguments. It returns the transformer, or a pipeline with one, and a mapping with the arguments of one
    forward pass of the transformer.

    Args:
        text: `module:function`; the module is looked for in the current folder too.

    Raises:
        ConfigError: there is no such function, or it returns something else.
    """
    module, _, function = text.partition(":")
    if not module or not function:
        raise ConfigError(f"--pipe {text!r}: write module:function, such as my_pipeline:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--pipe {text!r}: {error}") from error
    found = make()
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise ConfigError(f"--pipe {text!r} returned {type(found).__name__}: return (pipeline or transformer, arguments by name)")
    parts = [each for each in components_of(found[0]).values() if isinstance(each, nn.Module) and family_of(each) is not None]
    if not parts:
        raise ConfigError(f"--pipe {text!r} returned no transformer whose video attention can be sparse, see docs/profile_dit.md")
    transformer: Any = parts[0].to(device).requires_grad_(False).train(False)
    digest = hashlib.sha256(f"{text}, {sum(value.numel() for value in transformer.parameters())} parameters".encode())
    return LoadedModel(
        name=f"{type(transformer).__name__} of {text}",
        transformer=transformer,
        arguments=on(found[1], device),
        shot=shot,
        weights_sha256=digest.hexdigest(),
        random=False,
        masked=True,  # nobody knows
    )
