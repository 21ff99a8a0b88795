"""Distributions against sorting the samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.device.intervals import distribution, distributions
from strobe.perf.measure.stats import P99_SAMPLES, percentile


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(10**12), 10**12)), max_size=40))
def test_each_group_is_described_alone(samples: list[tuple[int, int]]) -> None:
    group, values = (np.array(part, np.int64) for part in (zip(*samples, strict=True) if samples else ([], [])))
    for number, found in enumerate(distributions(values, group, 5)):
        mine = sorted(value for of, value in samples if of == number)
        if not mine:
            assert found is None
            continue
        assert found is not None
        assert (found.n, found.sum_ns, found.min_ns, found.max_ns) == (len(mine), sum(mine), mine[0], mine[-1])
        assert (found.p50_ns, found.p99_ns, found.mean_ns) == (percentile(mine, 0.5), None, sum(mine) / len(mine))


@pytest.mark.parametrize("n", [1, 2, 3, P99_SAMPLES - 1, P99_SAMPLES, 500, 1000, 1001])
def test_p99_needs_enough_samples_and_is_one_of_them(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 1 << 60, n)
    found = distribution(values)
    assert found is not None
    assert found.p99_ns == (percentile(values.tolist(), 0.99) if n >= P99_SAMPLES else None)
    assert found.min_ns <= found.p50_ns <= found.max_ns
    assert all(type(value) is int for value in (found.n, found.sum_ns, found.min_ns, found.p50_ns, found.max_ns))


def test_nothing_has_no_distribution() -> None:
    assert distribution(np.array([], np.int64)) is None
