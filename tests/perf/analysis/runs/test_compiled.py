"""Attention kernels of a compiled pass get the regions that they have uncompiled, and only if all of them agree."""

from __future__ import annotations

import msgspec
import pytest

from made_traces import trace_of
from strobe.perf.analysis.ledger.account import Part, part_of
from strobe.perf.analysis.runs.timeline import DeviceTimeline, EagerPass, Label, named, passes_of, timeline_of
from strobe.perf.trace import DeviceEvent, HostEvent, Region, Trace

LAYER = (("gemm", "attention"), ("tile", "attention/attention_tile"), ("flash", "attention/attention_kernel"),
         ("gemm", "attention"), ("flash", "cross_attention/cross_attention_kernel"), ("gemm", "ffn"))  # fmt: skip
"""Kernels of a layer with their regions: self- and cross-attention run kernels of one name."""
NONE: frozenset[str] = frozenset()


Kernels = tuple[tuple[str, str], ...]


def trace(
    steps: int, layers: int, *, compiled: bool, flash: int | None = None, layer: Kernels = LAYER, marked: frozenset[str] = NONE
) -> Trace:
    """Forward passes, kernel by kernel. Compiled, the layers have no regions but the innermost in `marked`, and their products
    other names; `flash` attention kernels are left out of each pass at the end. A name is followed by its grid: `flash 64`."""
    regions, events, clock = [], [], 0

    def region(name: str, index: int | None, start: int, end: int) -> Region:
        return Region(name=name, index=index, start_ns=start, end_ns=end, thread=0)

    for step in range(steps):
        begun, kernels = clock, list(layer) * layers
        if flash is not None:
            kernels = [each for at, each in enumerate(kernels) if each[0] != "flash" or at < len(kernels) - 2 * flash]
        for name, path in kernels:
            start, clock = clock + 1, clock + 10
            called = HostEvent("cudaLaunchKernel", start, start + 2, 0)
            for depth, part in enumerate(path.split("/")):
                if not compiled or part in marked:
                    regions.append(region(part, None, start - (depth == 0), start + 5 - depth))
            shown, _, grid = (f"compiled_{name}" if compiled and name == "gemm" else name).partition(" ")
            events.append(DeviceEvent(shown, "kernel", 1_000 + start, 1_000 + start + 8, 0, 7, len(events), called, grid))
        regions += [region("frame_block", step, begun, clock), region("denoise_step", step, begun, clock)]
        regions += [region("dit_forward", None, begun, clock)]
        clock += 5
    order = sorted(regions, key=lambda each: (each.start_ns, -each.end_ns))
    nested = [each for each in order if each.name in ("frame_block", "denoise_step", "dit_forward")]
    nested += [each for each in order if each not in nested]
    nested.sort(key=lambda each: (each.start_ns, -each.end_ns))
    return trace_of(events, regions=tuple(nested))


def timeline(found: Trace) -> DeviceTimeline:
    made = timeline_of(found)
    assert isinstance(made, DeviceTimeline)
    return made


def regions_of(found: DeviceTimeline) -> list[tuple[str, str]]:
    """Name and innermost region of every kernel, in order."""
    events = found.trace.device_events
    paths = (found.paths[number] for number in found.path.tolist())
    return [(events.names[number], (path or ("",))[-1]) for number, path in zip(found.work.name.tolist(), paths, strict=True)]


def eager_passes() -> tuple[EagerPass, ...]:
    return passes_of(trace(2, 2, compiled=False))


def test_attention_of_other_sizes_is_told_apart_when_the_compiler_reorders_it() -> None:
    video, audio = ("flash 64x32", "attention/attention_kernel"), ("flash 8x32", "cross_attention/cross_attention_kernel")
    text = ("flash 64x32", "cross_attention/cross_attention_kernel")  # after the video's, which it depends on
    passes = passes_of(trace(1, 2, compiled=False, layer=(video, audio, text)))
    found = regions_of(named(timeline(trace(2, 2, compiled=True, layer=(audio, video, text))), passes))
    assert [region for _, region in found] == ["cross_attention_kernel", "attention_kernel", "cross_attention_kernel"] * 4
    other = (audio, video, ("flash 32x32", text[1]))  # the compiler took another variant for one of them
    found = regions_of(named(timeline(trace(1, 2, compiled=True, layer=other)), passes))
    assert [region for _, region in found] == ["attention kernels"] * 6, "by its name alone, for the order proves nothing"


def test_an_operator_that_marks_its_regions_in_a_compiled_pass_keeps_them() -> None:
    sparse = (("tile 64", "attention/attention_tile"), ("copy 64", "attention/attention_select"),
              ("bsa 64", "attention/attention_kernel"), ("copy 64", "ffn"), LAYER[4])  # fmt: skip
    passes = passes_of(trace(1, 2, compiled=False, layer=sparse))
    marked = frozenset({"attention_tile", "attention_select", "attention_kernel"})
    found = named(timeline(trace(1, 2, compiled=True, layer=sparse, marked=marked)), passes)
    layer = ["attention_tile", "attention_select", "attention_kernel", "other kernels", "cross_attention_kernel"]
    assert [region for _, region in regions_of(found)] == layer * 2
    inside = [found.paths[number] for number in found.path.tolist()]
    assert [("attention" in path, "dit_forward" in path) for path in inside[:4]] == [(True, True)] * 3 + [(False, True)]


def test_copies_that_the_compiler_fused_leave_the_attention_kernels_matched() -> None:
    flash, cross = ("flash 64", "attention/attention_kernel"), ("flash 64", "cross_attention/cross_attention_kernel")
    copy, kept = ("copy 8", cross[1]), ("clear 1", cross[1])
    passes = passes_of(trace(1, 2, compiled=False, layer=(flash, copy, kept, cross)))
    found = regions_of(named(timeline(trace(2, 2, compiled=True, layer=(flash, kept, cross))), passes))
    assert [region for _, region in found] == ["attention_kernel", "cross_attention_kernel", "cross_attention_kernel"] * 4
    half = (flash, copy, kept, cross, flash, kept, cross)  # one of the two copies was fused
    found = regions_of(named(timeline(trace(1, 1, compiled=True, layer=half)), passes))
    assert [region for name, region in found if name == "copy"] == ["other kernels"]
    assert [region for name, region in found if name == "flash"] == ["attention_kernel", "cross_attention_kernel"] * 2


def test_attention_outside_every_attention_region_is_told_apart_too() -> None:
    text, flash = ("flash 8", "refiner"), ("flash 64", "attention/attention_kernel")
    passes = passes_of(trace(1, 1, compiled=False, layer=(text, flash)))
    found = regions_of(named(timeline(trace(2, 1, compiled=True, layer=(text, flash))), passes))
    assert [region for _, region in found] == ["refiner", "attention_kernel"] * 2


@pytest.mark.parametrize(
    ("eager", "compiled"),
    [
        ("triton_tem_fused_flex_attention_1 4x2", "triton_tem_fused__to_copy_flex_attention_slice_sort_10 4x2"),
        (
            "kernel_cutlass_flash_fwd_object_at__tensor000o1_None__0 256x12",
            "kernel_cutlass_flash_fwd_object_at__tensor000o1_tensorptrf32__0 256x12",
        ),
    ],
    ids=["other operators are fused into it", "only compiled it writes the log-sum-exp"],
)
def test_a_kernel_that_the_compiler_changed_is_the_same_kernel(eager: str, compiled: str) -> None:
    passes = passes_of(trace(1, 1, compiled=False, layer=((eager, "attention/attention_kernel"),)))
    found = regions_of(named(timeline(trace(1, 1, compiled=True, layer=((compiled, "attention/attention_kernel"),))), passes))
    assert [region for _, region in found] == ["attention_kernel"]


def test_passes_without_launches_are_told_apart_by_names_alone() -> None:
    passes = tuple(msgspec.structs.replace(one, launches=()) for one in eager_passes())
    found = regions_of(named(timeline(trace(1, 1, compiled=True)), passes))
    assert {region for name, region in found if name == "flash"} == {"attention kernels"}


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
