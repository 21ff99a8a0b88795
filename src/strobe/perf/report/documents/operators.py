"""Rows of the trace document about operators: device time, kernels, callers, and rates against the device's peaks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strobe.perf.report.documents.value import OnDevice

Place = Annotated[
    int,
    Meta(description="position of the operator's row among the rows of `operator_times` with the same trace and device, from 0"),
]


class OperatorTimeRow(OnDevice, frozen=True, kw_only=True):
    """Device time of one operator with the same inputs; exclusive times add up to the busy time of the device."""

    place: Place
    source: Annotated[
        str, Meta(description="`operator`, or the reason why the row has none: `no operator`, `launch not in the trace`")
    ]
    operator: Annotated[str, Meta(description="name of the innermost operator around the launch call; empty: none")]
    input_sizes: Annotated[str, Meta(description="sizes of the input tensors; empty: not recorded")]
    dtypes: Annotated[str, Meta(description="dtypes of the input tensors, each once; empty: not recorded")]
    phase: Annotated[str, Meta(description="`forward` or `backward`; empty: autograd took no part")]
    calls: Annotated[int, Meta(description="number of calls that launched a device event; 0 without an operator")]
    events: Annotated[int, Meta(description="number of device events")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the device events")]


class OperatorKernelRow(OnDevice, frozen=True, kw_only=True):
    """One kernel that an operator of `operator_times` launched."""

    place: Place
    kernel: Annotated[str, Meta(description="normalised name of the kernel")]
    kind: Annotated[str, Meta(description="`kernel`, `comm` (communication), `memset` or `memcpy`")]
    events: Annotated[int, Meta(description="number of device events")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    sum_ns: Annotated[int, Meta(description="sum of the durations of the device events")]


class OperatorCallerRow(OnDevice, frozen=True, kw_only=True):
    """One caller of an operator of `operator_times`."""

    place: Place
    caller: Annotated[str, Meta(description="name of the operator that calls it; empty: none")]
    scope: Annotated[
        str,
        Meta(
            description="range or module around the call, without its number; for a backward operator: that of its forward "
            "operator"
        ),
    ]
    calls: Annotated[int, Meta(description="number of calls")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]


class OperatorRateRow(OnDevice, frozen=True, kw_only=True):
    """Compute and memory rates of one operator with recorded inputs, compared with the peaks of the device."""

    place: Place
    operator: Annotated[str, Meta(description="name of the operator")]
    input_sizes: Annotated[str, Meta(description="sizes of the input tensors")]
    dtype: Annotated[str, Meta(description="dtype of the matrix products; empty: the cost is not known")]
    calls: Annotated[int, Meta(description="number of calls")]
    exclusive_ns: Annotated[int, Meta(description="device time that no other row counts")]
    call_ns: Annotated[
        float | None, Meta(description="mean over the calls of the summed durations of their device events; null without calls")
    ]
    call_flops: Annotated[int | None, Meta(description="FLOPs of the matrix products in one call; null: the cost is not known")]
    call_bytes: Annotated[int | None, Meta(description="least number of bytes that one call moves; null: the cost is not known")]
    flops_per_s: Annotated[float | None, Meta(description="FLOPs of a call / its time, FLOP/s; null: the cost is not known")]
    bytes_per_s: Annotated[
        float | None, Meta(description="least bytes of a call / its time, bytes/s; null: the cost is not known")
    ]
    compute_share: Annotated[
        float | None,
        Meta(
            description="`flops_per_s` / peak matrix rate of the dtype, 1 at the peak; null: no matrix products, or no known "
            "cost or peak"
        ),
    ]
    memory_share: Annotated[
        float | None,
        Meta(description="`bytes_per_s` / memory bandwidth of the device, 1 at the peak; null: cost or bandwidth is not known"),
    ]
    bound: Annotated[
        str | None, Meta(description="`compute` or `memory`, whichever alone would take longer at its peak; null: not known")
    ]
    floor_ns: Annotated[float | None, Meta(description="least time that the device could take for one call; null: not known")]
    unknown: Annotated[str, Meta(description="reason why the cost is not known; empty if it is")]
