"""Machines, headers and spans of runs that tests make up: what a test does not say is as on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strobe.perf.records.record import Clocks, Git, Header, Machine, PromptAt, Span, Workload


def machine_of(**fields: Any) -> Machine:
    """Return a machine; its clocks are not read unless they are given."""
    usual = {
        "device": "cpu", "device_name": "a CPU", "gpu_count": 0, "gpu_memory_bytes": None, "driver": None, "cuda": None,
        "torch": "2.13.0", "python": "3.11.7", "os": "Linux", "cpu_name": "a CPU", "cores": 2, "threads": 2,
        "memory_bytes": None, "clocks": Clocks(source="none"),
    }  # fmt: skip
    return Machine(**usual | fields)


def header_of(order: Sequence[str], **fields: Any) -> Header:
    """Return the header of a run whose clips come in this order, the first variant the reference."""
    usual = {
        "run": "r", "date": "2026-01-01T00:00:00Z", "strobe": "0.1.0", "git": Git(commit=None, dirty=None), "argv": ("strobe",),
        "machine": machine_of(), "baseline": order[0], "palindromes": 3,
    }  # fmt: skip
    return Header(**usual | {"order": tuple(order)} | fields)


def span_of(variant: str, name: str, value_ns: int, **fields: Any) -> Span:
    """Return a region that a clock of the host timed."""
    usual = {"palindrome": None, "index": None, "start_ns": 0, "clock": "perf_counter", "warmup": False}
    return Span(variant=variant, name=name, value_ns=value_ns, **usual | fields)


def workload_of(frame_blocks: int, *switches: int, **fields: Any) -> Workload:
    """Return a clip of frame blocks of 12 frames, the first of 9, with prompt switches before some of them."""
    prompts = [PromptAt(frame_block=0, text="a red circle", mode="start")]
    prompts += [PromptAt(frame_block=at, text="a blue square", mode="recache") for at in switches]
    usual = {
        "prompts": tuple(prompts), "seed": 0, "frame_blocks": frame_blocks, "latents_per_block": 3, "frames_first_block": 9,
        "frames_per_block": 12, "frames": 9 + 12 * (frame_blocks - 1), "height": 32, "width": 32, "fps": 16,
    }  # fmt: skip
    return Workload(**usual | fields)
