"""Run the GPU tests of the attention implementations and record which of them passed: `python tests/attention/record_gate.py`.

An implementation passes if no test of it failed and at least one ran. The record that ships with the package is updated: an entry
of the same operator, implementation and compute capability is replaced, or removed if a test failed.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from strobe.attention.gates import FILE, Gate, parse_gates

HERE = Path(__file__).resolve().parent
RECORD = HERE.parent.parent / "src" / "strobe" / "attention" / FILE
TESTS = {operator: HERE / operator / "test_libraries_gpu.py" for operator in ("dense", "sparse")}
LIBRARIES = {
    "cudnn": ("nvidia-cudnn-frontend", "nvidia-cutlass-dsl"),
    "fa4": ("flash-attn-4", "nvidia-cutlass-dsl"),
    "triton": ("triton",),
    "flex": ("triton",),
}


class Tally:
    """A pytest plugin: outcomes per (operator, implementation)."""

    def __init__(self) -> None:
        self.passed: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.of: dict[str, tuple[str, str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "impl" in item.callspec.params:
                self.of[item.nodeid] = (item.path.parent.name, item.callspec.params["impl"])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        whose = self.of.get(report.nodeid)
        if whose is not None and report.failed:
            self.failed[whose] += 1
        elif whose is not None and report.when == "call" and report.passed:
            self.passed[whose] += 1


def gates(tally: Tally, device: str, capability: tuple[int, int], date: str) -> list[Gate]:
    """What passed."""
    return [
        Gate(
            operator=operator,
            impl=impl,
            device=device,
            capability=capability,
            versions={name: importlib.metadata.version(name) for name in ("torch", *LIBRARIES.get(impl, ()))},
            date=date,
            tests=number,
        )
        for (operator, impl), number in sorted(tally.passed.items())
        if not tally.failed[operator, impl]
    ]


def updated(old: tuple[Gate, ...], new: list[Gate], tally: Tally, capability: tuple[int, int]) -> list[Gate]:
    """The record with what ran replaced."""
    ran = {*tally.passed, *tally.failed}
    kept = [gate for gate in old if gate.capability != capability or (gate.operator, gate.impl) not in ran]
    return sorted([*kept, *new], key=lambda gate: (gate.operator, gate.impl, gate.capability))


def main() -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: nothing to record\n")
        return 3
    tally = Tally()
    pytest.main(["-q", "-p", "no:cacheprovider", "--show-capture=no", *map(str, TESTS.values()), *sys.argv[1:]], plugins=[tally])
    capability = torch.cuda.get_device_capability()
    found = gates(tally, torch.cuda.get_device_name(), capability, datetime.date.today().isoformat())
    record = updated(parse_gates(RECORD.read_text("utf-8")), found, tally, capability)
    RECORD.write_text(json.dumps([asdict(gate) for gate in record], indent=2) + "\n", "utf-8")
    for gate in found:
        sys.stdout.write(f"gate: {gate.operator} {gate.impl}: {gate}\n")
    for (operator, impl), number in sorted(tally.failed.items()):
        sys.stdout.write(f"no gate: {operator} {impl}: {number} tests failed\n")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
