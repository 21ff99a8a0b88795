"""Effect of a knob for a model on a device, and the reason where it has none."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import torch

from strobe.core.libraries import broken
from strobe.engine.config import Knobs

OVERLAP_CORES = 4
"""Fewest CPU cores from which decoding runs beside the commit pass. On two, a frame block of `shapes` took 1.06 times as long
with it (95 % interval 1.02 to 1.09, 30 mirrored pairs); three cores and more were not measured."""


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
class KnobPlace:
    """Device and model as far as they decide which knobs have an effect.

    Args:
        elsewhere: another device decodes.
        lora: a LoRA belongs to the model.
        own_graphs: the compiler makes graphs of its own.
        recomputed: a frame block is derived from the frames of the one before.
    """

    device: torch.device
    elsewhere: bool
    lora: bool
    own_graphs: bool
    recomputed: bool


def knob_state(knobs: Knobs, name: str, meaning: str, place: KnobPlace) -> KnobState:
    """Resolve a knob for a model on a device."""
    asked: bool = getattr(knobs, name)
    reason = _does_nothing(knobs, name, place) if asked else ""
    return KnobState(name=name, meaning=meaning, on=asked and not reason, reason=reason)


def _does_nothing(knobs: Knobs, name: str, place: KnobPlace) -> str:
    """Say why a knob does nothing for this model on this device; empty if it does something."""
    if name == "merge_lora":
        return "" if place.lora else "no LoRA belongs to the model"
    if name in ("compile", "fused_kernels", "cuda_graphs"):
        return _cannot_compile(place.device) if name == "compile" else _cannot_launch(knobs, name, place)
    if name == "memory_pool":
        return "used on CUDA only" if place.device.type == "cpu" else ""
    if name == "late_frames" and place.recomputed:
        return "the past of a frame block is derived from the frames of the one before"
    if place.elsewhere:  # which always works beside the transformer
        return ""
    cores = len(os.sched_getaffinity(0))
    if name == "overlap_decode" and place.device.type == "cpu" and cores < OVERLAP_CORES:
        return f"{cores} CPU core(s), below {OVERLAP_CORES}: on two, decoding beside the transformer measured slower"
    if name == "late_frames" and (not knobs.overlap_decode or _does_nothing(knobs, "overlap_decode", place)):
        return "it needs overlap_decode, which is off here"
    return ""


NEEDED_BY_GRAPHS = ("ring_cache", "rope_table", "modulation_table", "text_once")
"""Knobs without which a pass does not stay on the device or does not keep its addresses."""


def _cannot_launch(knobs: Knobs, name: str, place: KnobPlace) -> str:
    if place.device.type == "cpu":
        return "used on CUDA only"
    if place.own_graphs:
        return "compile_mode 'reduce-overhead' fuses and makes graphs of its own"
    if name == "fused_kernels":
        return f"needs Triton: {why}" if (why := broken("triton.language")) else ""
    off = next((each for each in NEEDED_BY_GRAPHS if not getattr(knobs, each)), "")
    return f"knob {off} is off" if off else ""


def _cannot_compile(device: torch.device) -> str:
    if device.type == "cpu":
        return "used on CUDA only: a CPU machine need not have a C++ compiler"
    if why := broken("triton.language"):
        return f"needs Triton: {why}"
    if not any(map(shutil.which, ("gcc", "clang"))):
        return "Triton needs a C compiler, and neither gcc nor clang is on the path"
    return ""
