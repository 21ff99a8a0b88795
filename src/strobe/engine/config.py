"""Configurations of a stream: as the user gives them, and resolved for one model on one device."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Literal

import torch

from strobe.cache.kv import Positions
from strobe.cache.policy import RingPolicy
from strobe.core.device import card_of, resolve_device
from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice
from strobe.core.shapes import VaeStride
from strobe.eightbit.rows import FP8_CAPABILITY
from strobe.engine.schedule import NoiseSchedule, check_timesteps

DType = Literal["auto", "float32", "bfloat16"]
Format = Literal["native", "fp8", "int8"]
FORMATS: tuple[Format, ...] = ("native", "fp8", "int8")
CompileMode = Literal["default", "max-autotune", "reduce-overhead"]
COMPILE_MODES: tuple[CompileMode, ...] = ("default", "max-autotune", "reduce-overhead")
DTYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


OVERLAP_CORES = 4
"""Fewest CPU cores from which decoding runs beside the commit pass. On two, a frame block of `shapes` took 1.06 times as long
with it (95 % interval 1.02 to 1.09, 30 mirrored pairs); three cores and more were not measured."""


def _knob(meaning: str, *, on: bool = True) -> bool:
    return field(default=on, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Optimisations, each on or off. Off costs what the official code pays; a knob that the device cannot use is turned off."""

    ring_cache: bool = _knob("keys and values stay in fixed slots; off: rolled, cloned and concatenated in every layer and pass")
    rope_table: bool = _knob("rotations built once per frame block in float32; off: built in every pass, applied in float64")
    modulation_table: bool = _knob("time path worked out once per timestep; off: in every pass and for every latent frame")
    text_once: bool = _knob("text embedding once per prompt; off: again in every pass")
    block_decode: bool = _knob("one decoder call per frame block; off: one per latent frame")
    commit_kv_only: bool = _knob("last layer of the commit pass writes keys and values only; off: a full pass")
    fused_qkv: bool = _knob("queries, keys and values in one matrix product; off: three")
    merge_lora: bool = _knob("a LoRA, if there is one, is added into the weights; off: two more matrix products per linear layer")
    overlap_decode: bool = _knob("decoding runs beside the commit pass; off: after it")
    late_frames: bool = _knob(
        "decoding runs beside the next frame block too, so frames come and prompts act one frame block later; off: at once",
        on=False,
    )
    fused_kernels: bool = _knob("norms, modulation, gates, RoPE and cache writes in Triton kernels of their own; off: in PyTorch")
    cuda_graphs: bool = _knob("a pass is one CUDA graph, replayed; off: every kernel is launched by the host")
    memory_pool: bool = _knob(
        "keys and values, recorded passes and the decoder take from one pool, sized at the start; off: from torch's as they come",
        on=False,
    )
    compile: bool = _knob("the decoder, and without fused_kernels the layers of a pass, through torch.compile; off: eager")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDefaults:
    """Settings that a model was trained for; they fill in what a configuration leaves open.

    Args:
        frame_size: height and width in pixels.
        fps: pixel frames per second.
        stride: pixels and frames per latent.
        frame_block: latent frames of a frame block.
        timesteps: nominal timesteps of its full schedule.
        shift: of the schedule.
        window: latent frames attended, sink and current frame block included.
        sink: first latent frames, never evicted.
        positions: see `EngineConfig`.
        lora: a LoRA belongs to it.
    """

    frame_size: tuple[int, int]
    fps: int
    stride: VaeStride
    frame_block: int
    timesteps: tuple[float, ...]
    shift: float
    window: int = 12
    sink: int = 3
    positions: Positions = "rebased"
    lora: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of a stream, as given. Presets are functions that return one (`strobe.engine.presets`).

    Args:
        name: shown in tables.
        timesteps: nominal, from 1000 down; None: the model's own.
        shift: of the schedule; None: the model's own.
        window: latent frames attended, sink and current frame block included; None: the model's own.
        sink: first latent frames, never evicted; None: the model's own.
        first_block: latent frames of the first frame block; None: as many as every other. 1 starts from a single frame.
        positions: "absolute" (official) or "rebased" (the sink moves along, so that a stream may be endless); None: the model's
            own.
        sparsity: share of the past, behind the sink and in tiles, that a query leaves out; 0: everything kept is attended.
        keep_sink: a prompt switch with recache leaves the sink as it is once frames were evicted; False: the sink is renewed.
        dtype: of weights and cache; "auto": float32 on a CPU, bfloat16 on a GPU.
        linear_format: of the weights of the layers' matrices: "native" (in `dtype`), "fp8" (weights and activations, on
            FP8 matrix units) or "int8" (weights alone).
        kv_format: of the cached keys and values: "native", "fp8" or "int8", one scale per token and head.
        native_layers: numbers of layers whose matrices stay native whatever `linear_format` says; -1 is the last.
        simulate: compute what "fp8" would give in `dtype`, for hardware without it; no faster.
        compile_mode: of `torch.compile`: "default", "max-autotune" or "reduce-overhead", which makes graphs of its own and is the
            compiler's to fuse: with it, knobs `cuda_graphs` and `fused_kernels` are off.
        decode_device: where the autoencoder runs, such as "cuda:1"; None: where the transformer does.
        knobs: optimisations.

    Raises:
        ConfigError: a value is not allowed; names the nearest that is.
    """

    name: str = "custom"
    timesteps: tuple[float, ...] | None = None
    shift: float | None = None
    window: int | None = None
    sink: int | None = None
    first_block: int | None = None
    positions: Positions | None = None
    sparsity: float = 0.0
    keep_sink: bool = True
    dtype: DType = "auto"
    linear_format: Format = "native"
    kv_format: Format = "native"
    native_layers: tuple[int, ...] = ()
    simulate: bool = False
    compile_mode: CompileMode = "default"
    decode_device: str | None = None
    knobs: Knobs = field(default_factory=Knobs)

    def __post_init__(self) -> None:
        sink = self.sink or 0
        RingPolicy(window=max(sink, 0) + 1 if self.window is None else self.window, sink=sink)
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"sparsity {self.sparsity} is not valid: give 0 (everything is attended) to below 1")
        if self.sparsity and not self.knobs.ring_cache:
            raise ConfigError(f"sparsity {self.sparsity} needs knob ring_cache: turn it on, or set sparsity to 0")
        if self.timesteps is not None:
            check_timesteps(self.timesteps)
            object.__setattr__(self, "timesteps", tuple(self.timesteps))  # a list would not equal its resumed self
        object.__setattr__(self, "native_layers", tuple(self.native_layers))
        if self.native_layers and self.linear_format == "native":
            raise ConfigError(f"native_layers {self.native_layers} goes with linear_format 'fp8' or 'int8'; it is 'native'")
        if self.positions not in ("absolute", "rebased", None):
            raise unknown_choice("positions", self.positions, ["absolute", "rebased"])
        if self.dtype not in ("auto", *DTYPES):
            raise unknown_choice("dtype", self.dtype, ["auto", *DTYPES])
        for name in ("linear_format", "kv_format"):
            if getattr(self, name) not in FORMATS:
                raise unknown_choice(name, getattr(self, name), FORMATS)
        if self.compile_mode not in COMPILE_MODES:
            raise unknown_choice("compile_mode", self.compile_mode, COMPILE_MODES)
        if self.kv_format != "native" and (self.sparsity or not self.knobs.ring_cache):
            other = f"sparsity {self.sparsity}" if self.sparsity else "knob ring_cache off"
            raise ConfigError(
                f"kv_format {self.kv_format!r} does not go with {other}: use kv_format 'native', or change the other"
            )
        if self.first_block is not None and self.first_block < 1:
            raise ConfigError(f"first_block {self.first_block} is not valid: the first frame block has 1 or more latent frames")


@dataclass(frozen=True, kw_only=True, slots=True)
class KnobState:
    """One knob on one device.

    Args:
        name: field of `Knobs`.
        meaning: what it does on, and what off costs.
        on: it is in effect.
        reason: why it is off although asked for; empty otherwise.
    """

    name: str
    meaning: str
    on: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedConfig:
    """An `EngineConfig` for one model on one device, with nothing left to fill in.

    `knobs` are those in effect; `asked` is what it was made from.
    """

    asked: EngineConfig
    device: torch.device
    decode_device: torch.device
    dtype: torch.dtype
    frame_block: int
    first_block: int
    schedule: NoiseSchedule
    policy: RingPolicy
    positions: Positions
    sparsity: float
    keep_sink: bool
    linear_format: Format
    kv_format: Format
    simulate: bool
    compile_mode: CompileMode
    knobs: Knobs
    knob_states: tuple[KnobState, ...]

    @property
    def name(self) -> str:
        """Name of the preset."""
        return self.asked.name

    def latents_of(self, frame_block: int) -> range:
        """Return the numbers of the latent frames of a frame block."""
        first = 0 if frame_block == 0 else self.first_block + (frame_block - 1) * self.frame_block
        return range(first, first + (self.frame_block if frame_block else self.first_block))

    @property
    def simulated(self) -> bool:
        """Whether linear layers compute in `dtype` what FP8 would give."""
        return self.simulate and self.linear_format == "fp8"

    @property
    def calls_per_block(self) -> dict[str, int]:
        """Transformer passes of a steady frame block, by stage."""
        return {"denoise_step": len(self.schedule.timesteps), "commit": 1}


def filled(config: EngineConfig, defaults: ModelDefaults) -> ModelDefaults:
    """Replace a model's trained settings by those that a configuration gives."""
    names = ("window", "sink", "positions", "timesteps", "shift")
    return replace(defaults, **{name: value for name in names if (value := getattr(config, name)) is not None})


def resolve(config: EngineConfig, defaults: ModelDefaults, device: torch.device) -> ResolvedConfig:
    """Fill in a configuration for a model and a device.

    Raises:
        ConfigError: the window leaves no room for the model's frame block beside the sink, or `decode_device` is no
            device's name.
        ImplUnavailableError: `decode_device` is not on this machine, or as `check_device`.
    """
    check_device(config, device)
    decode_device = device if config.decode_device is None else resolve_device(config.decode_device)
    own = filled(config, defaults)
    policy = RingPolicy(window=own.window, sink=own.sink)
    first_block = defaults.frame_block if config.first_block is None else config.first_block
    policy.check_block(max(first_block - policy.sink, defaults.frame_block))
    states = knob_states(config, defaults, device)
    automatic: DType = "bfloat16" if device.type == "cuda" else "float32"
    return ResolvedConfig(
        asked=config,
        device=device,
        decode_device=decode_device,
        dtype=DTYPES[automatic if config.dtype == "auto" else config.dtype],
        frame_block=defaults.frame_block,
        first_block=first_block,
        schedule=NoiseSchedule(timesteps=own.timesteps, shift=own.shift),
        policy=policy,
        positions=own.positions,
        sparsity=config.sparsity,
        keep_sink=config.keep_sink,
        linear_format=config.linear_format,
        kv_format=config.kv_format,
        simulate=config.simulate,
        compile_mode=config.compile_mode,
        knobs=Knobs(**{state.name: state.on for state in states}),
        knob_states=states,
    )


def knob_states(config: EngineConfig, defaults: ModelDefaults, device: torch.device) -> tuple[KnobState, ...]:
    """Resolve each knob of a configuration for a model on a device: on, or off with the reason.

    Raises: as `resolve` does for `decode_device`.
    """
    place = _Place(
        device=device,
        elsewhere=config.decode_device is not None and resolve_device(config.decode_device) != device,
        lora=defaults.lora,
        own_graphs=config.compile_mode == "reduce-overhead" and config.knobs.compile,
    )
    return tuple(_knob_state(config.knobs, each.name, each.metadata["meaning"], place) for each in fields(Knobs))


def check_device(config: EngineConfig, device: torch.device) -> None:
    """Refuse a device that lacks what a configuration needs, whatever the model.

    Raises:
        ImplUnavailableError: FP8 matrix units are not on it and `simulate` is off.
    """
    if reason := lacking(config, device):
        raise ImplUnavailableError(
            config.name,
            f"it{reason.removeprefix(config.name)}",
            ("preset 'turbo' or linear_format 'native'", "this one with --simulate (what FP8 would give, no faster)"),
            what="preset",
        )


def lacking(config: EngineConfig, device: torch.device) -> str:
    """Say what a configuration needs and a device lacks; empty if nothing."""
    if config.linear_format != "fp8" or config.simulate:
        return ""
    if card_of(device).capability >= FP8_CAPABILITY:
        return ""
    least = ".".join(map(str, FP8_CAPABILITY))
    return f"{config.name} runs linear layers in FP8, and {device} has no FP8 matrix units (compute capability {least} or later)"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Device and model as far as they decide which knobs have an effect.

    Args:
        elsewhere: another device decodes.
        lora: a LoRA belongs to the model.
        own_graphs: the compiler makes graphs of its own.
    """

    device: torch.device
    elsewhere: bool
    lora: bool
    own_graphs: bool


def _knob_state(knobs: Knobs, name: str, meaning: str, place: _Place) -> KnobState:
    asked: bool = getattr(knobs, name)
    reason = _does_nothing(knobs, name, place) if asked else ""
    return KnobState(name=name, meaning=meaning, on=asked and not reason, reason=reason)


def _does_nothing(knobs: Knobs, name: str, place: _Place) -> str:
    """Say why a knob does nothing for this model on this device; empty if it does something."""
    if name == "merge_lora":
        return "" if place.lora else "no LoRA belongs to the model"
    if name in ("compile", "fused_kernels", "cuda_graphs"):
        return _cannot_compile(place.device) if name == "compile" else _cannot_launch(knobs, name, place)
    if name == "memory_pool":
        return "used on CUDA only" if place.device.type == "cpu" else ""
    if place.elsewhere:  # which always works beside the transformer
        return ""
    cores = len(os.sched_getaffinity(0))
    if name == "overlap_decode" and place.device.type == "cpu" and cores < OVERLAP_CORES:
        return f"{cores} CPU core(s), below {OVERLAP_CORES}: on two, decoding beside the transformer measured slower"
    if name == "late_frames" and (not knobs.overlap_decode or _does_nothing(knobs, "overlap_decode", place)):
        return "overlap_decode is off here, so decoding runs beside nothing"
    return ""


NEEDED_BY_GRAPHS = ("ring_cache", "rope_table", "modulation_table", "text_once")
"""Knobs without which a pass does not stay on the device or does not keep its addresses."""


def _cannot_launch(knobs: Knobs, name: str, place: _Place) -> str:
    if place.device.type == "cpu":
        return "used on CUDA only"
    if place.own_graphs:
        return "compile_mode 'reduce-overhead' fuses and makes graphs of its own"
    if name == "fused_kernels":
        return "" if find_spec("triton") else "needs Triton, which is not installed"
    off = next((each for each in NEEDED_BY_GRAPHS if not getattr(knobs, each)), "")
    return f"knob {off} is off" if off else ""


def _cannot_compile(device: torch.device) -> str:
    if device.type == "cpu":
        return "used on CUDA only: a CPU machine need not have a C++ compiler"
    if find_spec("triton") is None:
        return "needs Triton, which is not installed"
    if not any(map(shutil.which, ("gcc", "clang"))):
        return "Triton needs a C compiler, and neither gcc nor clang is on the path"
    return ""


def replace_knobs(knobs: Knobs, **changes: bool) -> Knobs:
    """Copy knobs with some changed.

    Raises:
        ConfigError: no knob has that name; names the nearest.
    """
    values = {each.name: getattr(knobs, each.name) for each in fields(Knobs)}
    for name in changes:
        if name not in values:
            raise unknown_choice("knob", name, values)
    return Knobs(**(values | changes))
