from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.costs import WAN_1_3B, AttentionShape, Cost, attention, device_peaks, elementwise, matmul
from strobe.core.errors import DataError
from strobe.perf.analysis.device.roofline import roofline

H100 = device_peaks("H100 SXM")
assert H100 is not None


def test_a_matrix_product_by_hand() -> None:
    """8192^3 in bfloat16: 1.0995 TFLOP, 402 653 184 bytes; at 1.5 ms."""
    found = roofline(1_500_000, matmul(8192, 8192, 8192, dtype="bf16"), H100, "bf16")
    assert found.flops_per_s == pytest.approx(2 * 8192**3 / 1.5e-3)
    assert found.bytes_per_s == pytest.approx(402_653_184 / 1.5e-3)
    assert found.compute_share == pytest.approx(733.0e12 / 989.4e12, rel=1e-4)
    assert found.memory_share == pytest.approx(268.4e9 / 3352e9, rel=1e-3)
    assert found.bound == "compute" and found.share == found.compute_share
    assert found.floor_ns == pytest.approx(2 * 8192**3 / 989.4e12 * 1e9)
    assert not found.anomaly and found.device == "H100 SXM"


def test_a_rate_is_held_against_the_peak_at_the_clock_that_ran() -> None:
    """The peak holds at 1,830 MHz; at 1,464, four fifths of it, the same rate is five fourths of the share."""
    product = matmul(8192, 8192, 8192, dtype="bf16")
    found = roofline(1_500_000, product, H100, "bf16", sm_mhz=1464)
    assert found.compute_share is not None and found.clock_share == pytest.approx(found.compute_share * 1.25)
    assert roofline(1_500_000, product, H100, "bf16").clock_share is None
    assert (
        roofline(1_500_000, product, device_peaks("A100 SXM 80GB"), "bf16", sm_mhz=1410).clock_share is None
    )  # peak of no clock
    assert roofline(100_000, elementwise(64, dtype="bf16"), H100, "bf16", sm_mhz=1464).clock_share is None


def test_work_without_matrix_flops_is_bound_by_memory() -> None:
    found = roofline(100_000, elementwise(64 * 2**20, dtype="bf16"), H100, "bf16")
    assert found.bound == "memory" and found.compute_share is None
    assert found.share == found.memory_share == pytest.approx(2 * 2 * 64 * 2**20 / 1e-4 / 3352e9)


def test_the_220_us_of_the_latency_analysis_are_above_the_peak() -> None:
    """538 GFLOP of self-attention cannot take 220 us on an H100."""
    tokens = WAN_1_3B.tokens_per_frame(480, 832)
    shape = AttentionShape(q_tokens=3 * tokens, kv_tokens=12 * tokens, num_heads=WAN_1_3B.num_heads, head_dim=WAN_1_3B.head_dim)
    found = roofline(220_000, attention(shape, dtype="bf16"), H100, "bf16")
    assert found.compute_share is not None and found.compute_share > 2
    assert "2447 TFLOP/s is above the bfloat16 peak of H100 SXM, 989.4" in found.anomaly
    assert not roofline(800_000, attention(shape, dtype="bf16"), H100, "bf16").anomaly


def test_a_sparse_call_may_exceed_the_peak_only_by_work_that_it_does_not_do() -> None:
    shape = AttentionShape(q_tokens=4096, kv_tokens=16384, num_heads=12, head_dim=128)
    dense, sparse = attention(shape, dtype="bf16"), attention(shape, dtype="bf16", pairs=shape.pairs // 10)
    found = roofline(80_000, sparse, H100, "bf16", dense=dense)
    assert found.effective_flops_per_s is not None and found.effective_flops_per_s > 989.4e12
    assert found.effective_flops_per_s == pytest.approx(10 * found.flops_per_s, rel=1e-6)
    assert not found.anomaly
    assert roofline(80_000, dense, H100, "bf16").anomaly


def test_what_fits_into_the_cache_may_be_faster_than_memory() -> None:
    small, large = elementwise(2**20, dtype="bf16"), elementwise(2**28, dtype="bf16")
    assert not roofline(500, small, H100, "bf16").anomaly  # 8.4 TB/s out of the cache
    assert "do not fit into its cache" in roofline(120_000, large, H100, "bf16").anomaly


@pytest.mark.parametrize(("device", "dtype"), [("Intel Xeon", "bf16"), ("H100 SXM", "float64"), ("H100 SXM", "no dtype")])
def test_without_a_peak_there_are_rates_and_nothing_else(device: str, dtype: str) -> None:
    found = roofline(1000, matmul(64, 64, 64, dtype="bf16"), device_peaks(device), dtype)
    assert found.flops_per_s == pytest.approx(2 * 64**3 / 1e-6)
    assert (found.compute_share, found.bound, found.floor_ns, found.share) == (None, None, None, None)
    assert not found.anomaly


@pytest.mark.parametrize("time_ns", [0, -1])
def test_no_time_no_rate(time_ns: int) -> None:
    with pytest.raises(DataError, match="no rate"):
        roofline(time_ns, Cost(flops=1), H100, "bf16")


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.integers(1, 10**12))
def test_the_share_is_the_floor_over_the_time(time_ns: int, flops: int, moved: int) -> None:
    found = roofline(time_ns, Cost(flops=flops, read_bytes=moved), H100, "bf16")
    assert found.share is not None and found.floor_ns is not None
    assert math.isclose(found.share, found.floor_ns / time_ns, rel_tol=1e-9)
    assert found.floor_ns == pytest.approx(max(flops / 989.4e12, moved / 3352e9) * 1e9)
    if not found.anomaly and moved > H100.cache_bytes:
        assert found.share <= 1.021
