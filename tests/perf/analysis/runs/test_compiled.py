"""Attention kernels of a compiled pass get the regions that they have uncompiled, and only if all of them agree."""

from __future__ import annotations

from pathlib import Path

from strobe.perf.analysis.ledger.parts import Part, part_of
from strobe.perf.analysis.runs.compiled import named
from strobe.perf.analysis.runs.replays import Pass, passes_of
from strobe.perf.analysis.runs.timeline import DeviceTimeline, Label, timeline_of
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Region, Trace

LAYER = (("gemm", "attention"), ("tile", "attention/attention_tile"), ("flash", "attention/attention_kernel"),
         ("gemm", "attention"), ("flash", "cross_attention/cross_attention_kernel"), ("gemm", "ffn"))  # fmt: skip
"""Kernels of a layer with their regions: self- and cross-attention run kernels of one name."""


def trace(steps: int, layers: int, *, compiled: bool, flash: int | None = None) -> Trace:
    """Forward passes, kernel by kernel. Compiled, the layers have no regions and their products other names; `flash` attention
    kernels are left out of each pass at the end."""
    regions, events, clock = [], [], 0

    def region(name: str, index: int | None, start: int, end: int) -> Region:
        return Region(name=name, index=index, start_ns=start, end_ns=end, thread=0)

    for step in range(steps):
        begun, kernels = clock, list(LAYER) * layers
        if flash is not None:
            kernels = [each for at, each in enumerate(kernels) if each[0] != "flash" or at < len(kernels) - 2 * flash]
        for name, path in kernels:
            start, clock = clock + 1, clock + 10
            called = HostEvent("cudaLaunchKernel", start, start + 2, 0)
            if not compiled:
                for depth, part in enumerate(path.split("/")):
                    regions.append(region(part, None, start - (depth == 0), start + 5 - depth))
            shown = f"compiled_{name}" if compiled and name == "gemm" else name
            events.append(DeviceEvent(shown, "kernel", 1_000 + start, 1_000 + start + 8, 0, 7, len(events), called))
        regions += [region("frame_block", step, begun, clock), region("denoise_step", step, begun, clock)]
        regions += [region("dit_forward", None, begun, clock)]
        clock += 5
    order = sorted(regions, key=lambda each: (each.start_ns, -each.end_ns))
    nested = [each for each in order if each.name in ("frame_block", "denoise_step", "dit_forward")]
    nested += [each for each in order if each not in nested]
    nested.sort(key=lambda each: (each.start_ns, -each.end_ns))
    rows = DeviceEvents.from_rows(events)
    return Trace(path=Path("t"), threads=("1/1",), ops=HostEvents.empty(), regions=tuple(nested), device_events=rows)


def timeline(found: Trace) -> DeviceTimeline:
    made = timeline_of(found, None)
    assert isinstance(made, DeviceTimeline)
    return made


def regions_of(found: DeviceTimeline) -> list[tuple[str, str]]:
    """Name and innermost region of every kernel, in order."""
    events = found.trace.device_events
    paths = (found.paths[number] for number in found.path.tolist())
    return [(events.names[number], (path or ("",))[-1]) for number, path in zip(found.work.name.tolist(), paths, strict=True)]


def eager_passes() -> tuple[Pass, ...]:
    return passes_of(trace(2, 2, compiled=False))


def test_the_hand_made_pass_has_its_regions() -> None:
    assert regions_of(timeline(trace(1, 1, compiled=False))) == [(name, path.split("/")[-1]) for name, path in LAYER]


def test_attention_kernels_are_told_from_cross_attention_by_their_order() -> None:
    found = regions_of(named(timeline(trace(3, 2, compiled=True)), eager_passes()))
    layer = [(f"compiled_{name}", "matrix products") if name == "gemm" else (name, path.split("/")[-1]) for name, path in LAYER]
    assert found == layer * 6


def test_a_pass_that_differs_is_told_apart_by_names_alone() -> None:
    bare = timeline(trace(2, 2, compiled=True, flash=3))
    kinds = {"compiled_gemm": "matrix products", "flash": "attention kernels", "tile": "other kernels"}
    expected = [(name, kinds[name]) for name, _ in regions_of(bare)]
    assert regions_of(named(bare, eager_passes())) == expected
    assert regions_of(named(bare, ())) == expected


def test_the_answer_has_no_norms_where_a_pass_is_compiled() -> None:
    found = named(timeline(trace(2, 2, compiled=True)), eager_passes())
    parts = {part_of(Label(found.paths[number], "kernel")) for number in found.path.tolist()}
    assert parts == {Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND, Part.CROSS_ATTENTION, Part.MATRIX}
