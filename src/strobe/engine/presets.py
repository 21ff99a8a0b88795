"""Named configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from strobe.core.errors import unknown_choice
from strobe.engine.config import EngineConfig, Knobs


def baseline() -> EngineConfig:
    """Every knob off, passes run eagerly: it costs what the official code costs."""
    return EngineConfig(name="baseline", knobs=Knobs(**{each.name: False for each in fields(Knobs)}))


def quality() -> EngineConfig:
    """The full schedule and window without waste: nothing is copied or computed twice. The reference for quality."""
    knobs = Knobs(commit_kv_only=False, fused_qkv=False, overlap_decode=False, cuda_graphs=False, compile=False)
    return EngineConfig(name="quality", knobs=knobs)


def balanced() -> EngineConfig:
    """The full schedule and window with every optimisation that leaves the result alone and delays nothing."""
    return EngineConfig(name="balanced")


def balanced_int8() -> EngineConfig:
    """`balanced`, with self-attention and linear layers in eight bits: int8 queries and keys, all else FP8."""
    return EngineConfig(name="balanced_int8", attention_format="int8", linear_format="fp8")


def sparse() -> EngineConfig:
    """`balanced`, with queries that leave out four fifths of the past between the sink and the frame block."""
    return EngineConfig(name="sparse", sparsity=0.8)


def low_memory() -> EngineConfig:
    """`balanced`, with int8 matrices and cached keys and values; decoding goes frame by frame, with nothing in parallel."""
    knobs = Knobs(overlap_decode=False, block_decode=False)
    return EngineConfig(name="low_memory", linear_format="int8", kv_format="int8", knobs=knobs)


def turbo() -> EngineConfig:
    """Three steps and a window of eight latent frames; frames come one frame block late."""
    return EngineConfig(name="turbo", timesteps=(1000, 500, 250), window=8, sink=3, knobs=Knobs(late_frames=True))


def turbo_fp8() -> EngineConfig:
    """`turbo`, with the linear layers in FP8."""
    return replace(turbo(), name="turbo_fp8", linear_format="fp8")


def turbo_int8() -> EngineConfig:
    """`turbo_fp8`, with self-attention in eight bits too."""
    return replace(turbo_fp8(), name="turbo_int8", attention_format="int8")


def ultra() -> EngineConfig:
    """Two steps, a window of six latent frames (a sink of one leaves room for history), FP8; frames come one frame block late."""
    knobs = Knobs(late_frames=True)
    return EngineConfig(name="ultra", timesteps=(1000, 250), window=6, sink=1, linear_format="fp8", knobs=knobs)


PRESETS: dict[str, Callable[[], EngineConfig]] = {
    each.__name__: each
    for each in (baseline, quality, balanced, balanced_int8, low_memory, sparse, turbo, turbo_fp8, turbo_int8, ultra)
}


def preset(name: str) -> EngineConfig:
    """Return a preset by name.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    if name not in PRESETS:
        raise unknown_choice("preset", name, PRESETS)
    return PRESETS[name]()


def diff(configs: Sequence[EngineConfig]) -> dict[str, tuple[str, ...]]:
    """Return every setting with its value in each of some configurations, knobs last."""
    settings = [each.name for each in fields(EngineConfig) if each.name not in ("name", "knobs")]
    found = {name: tuple(_text(getattr(config, name)) for config in configs) for name in settings}
    return found | {each.name: tuple(_text(getattr(config.knobs, each.name)) for config in configs) for each in fields(Knobs)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(f"{each:g}" for each in value)
    return "model" if value is None else str(value)
