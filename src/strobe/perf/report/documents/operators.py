"""Rows of the trace document about operators: device time, kernels, callers, and rates against the device's peaks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strobe.perf.report.documents.value import Count, DeviceNumber, Part, TraceLabel

Place = Annotated[int, Meta(description="place of the operator's row in `operator_times` of that device, from 0")]


class OperatorTimeRow(Part, frozen=True, kw_only=True):
    """Device time of one operator with the same inputs; exclusive times add up to busy."""

    trace: TraceLabel
    device: DeviceNumber
    place: Place
    source: Annotated[str, Meta(description="operator, or why there is none: no operator, launch not in the trace")]
    operator: Annotated[str, Meta(description="the innermost one around the launch call; empty where there is none")]
    input_sizes: Annotated[str, Meta(description="sizes of its tensors; empty where not recorded")]
    dtypes: Annotated[str, Meta(description="dtypes of its tensors, each once; empty where not recorded")]
    phase: Annotated[str, Meta(description="forward or backward; empty where autograd took no part")]
    calls: Annotated[int, Meta(description="calls that launched at least one device event; 0 without an operator")]
    events: Annotated[int, Meta(description="device events")]
    exclusive_ns: Annotated[int, Meta(description="time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="durations of the device events")]


class OperatorKernelRow(Part, frozen=True, kw_only=True):
    """One kernel of an operator's row."""

    trace: TraceLabel
    device: DeviceNumber
    place: Place
    kernel: Annotated[str, Meta(description="normalised name of the group")]
    kind: Annotated[str, Meta(description="kernel, comm, memset or memcpy")]
    events: Count
    exclusive_ns: Annotated[int, Meta(description="time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="durations of the device events")]


class OperatorCallerRow(Part, frozen=True, kw_only=True):
    """One caller of an operator's row."""

    trace: TraceLabel
    device: DeviceNumber
    place: Place
    caller: Annotated[str, Meta(description="the operator around it; empty where there is none")]
    scope: Annotated[
        str, Meta(description="the range or module around it, without its number; of a backward operator that of the forward one")
    ]
    calls: Count
    exclusive_ns: Annotated[int, Meta(description="time that no other row counts")]


class OperatorRateRow(Part, frozen=True, kw_only=True):
    """Rates of one operator with recorded inputs, against the device's peaks."""

    trace: TraceLabel
    device: DeviceNumber
    place: Place
    operator: Annotated[str, Meta(description="its name")]
    input_sizes: Annotated[str, Meta(description="sizes of its tensors")]
    dtype: Annotated[str, Meta(description="of its products; empty where the cost is not known")]
    calls: Count
    exclusive_ns: Annotated[int, Meta(description="time that no other row counts")]
    call_ns: Annotated[float | None, Meta(description="mean sum of the durations of a call's device events")]
    call_flops: Annotated[int | None, Meta(description="matrix FLOPs of one call")]
    call_bytes: Annotated[int | None, Meta(description="least bytes of one call")]
    flops_per_s: Annotated[float | None, Meta(description="FLOP/s")]
    bytes_per_s: Annotated[float | None, Meta(description="bytes/s")]
    compute_share: Annotated[float | None, Meta(description="of the dtype's matrix peak, 1 is all of it; null without either")]
    memory_share: Annotated[float | None, Meta(description="of the memory bandwidth; null for an unknown device")]
    bound: Annotated[str | None, Meta(description="compute or memory: the higher of the two floors")]
    floor_ns: Annotated[float | None, Meta(description="least time that the device could take")]
    unknown: Annotated[str, Meta(description="why the cost is not known; empty where it is")]
