"""Time of the operators whose cost follows from their inputs, against adding it up one event at a time."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from layouts import compact, write
from strobe.perf.trace import Trace, read_trace
from synthetic import META, event, kernel

MM = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": ["", ""]}


def _read(folder: Path, events: list[dict[str, Any]], **options: Any) -> Trace:
    return read_trace(write(folder / "t.json", compact(events, META)), ops=False, **options)


def test_odd_arguments_are_no_error(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"Input Dims": [[2, 2], "x", [[1], [2]]], "Input type": 7}, {"Input Dims": [[2, 2], [2, 2]], "Input type": [None, 3]},
        {"Input Dims": "none", "Input type": []}, {"Input Dims": []}, {},
    ]  # fmt: skip
    ops = [event("cpu_op", "aten::mm", str(i), "1", **{"External id": i}, **args) for i, args in enumerate(odd)]
    trace = _read(tmp_path, [*ops, *(kernel("k", f"{9 + i}", "1", i, **{"External id": i}) for i in range(5))], shapes=True)
    assert [(one.sizes, one.types) for one, _ in trace.operators] == [(((2, 2), (), ()), ()), (((2, 2), (2, 2)), ("None", "3"))]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9999)), max_size=30),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_against_one_event_at_a_time(launches: list[tuple[int, int]], kinds: list[int]) -> None:
    sizes = [[[8, 4], [4, 2]], [[16, 4], [4, 2]], [[3, 4], [4, 5]]]
    ops = [
        event("cpu_op", "aten::mm", "1", "1", **{"External id": i + 1}, **MM | {"Input Dims": sizes[kind]})
        for i, kind in enumerate(kinds)
    ]
    work = [
        kernel("k", f"{100 + 50 * i}", f"{ns // 1000}.{ns % 1000:03d}", i, **{"External id": op + 1})
        for i, (op, ns) in enumerate(launches)
    ]
    expected: Counter[int] = Counter()
    for op, ns in launches:
        expected[kinds[op]] += ns
    with tempfile.TemporaryDirectory() as folder:
        trace = _read(Path(folder), [*ops, *work], shapes=True)
    assert {sizes.index([list(s) for s in one.sizes]): ns for one, ns in trace.operators} == expected
