"""Where each implementation passed its tests on a GPU: a record that ships with the package.

An implementation that has a gate is chosen by `auto` only on the compute capabilities that the record names. Other versions of
torch or a library than those it ran with do not take it away, but `drift` says so, and `strobe doctor` shows it.
`python tests/attention/record_gate.py` runs the tests on a GPU and updates it.
"""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import torch

from strobe.attention.libraries import capability

FILE: Final = "gates.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """One green run of the tests of one implementation.

    Args:
        operator: `dense` or `sparse`.
        impl: its name.
        device: name of the GPU.
        capability: its compute capability.
        versions: of torch, triton and the library, by distribution.
        date: of the run, `2026-01-31`.
        tests: how many passed; none failed.
    """

    operator: str
    impl: str
    device: str
    capability: tuple[int, int]
    versions: dict[str, str]
    date: str
    tests: int

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.tests} tests on {self.device}, {self.date}, {versions}"

    def drift(self) -> str:
        """What is installed here in another version than the tests ran with, such as `torch 2.12.0`; empty if nothing is."""
        found = ((name, version, _installed(name)) for name, version in self.versions.items())
        return ", ".join(f"{name} {here}" for name, version, here in found if here != version)


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def parse_gates(text: str) -> tuple[Gate, ...]:
    """Read a record: a list of gates, one per operator, implementation and compute capability."""
    return tuple(Gate(**entry | {"capability": tuple(entry["capability"])}) for entry in json.loads(text))


GATES: Final = parse_gates(files("strobe.attention").joinpath(FILE).read_text("utf-8"))
"""The record that ships with the package; read once, because a compiler cannot trace a file."""


def gate_of(operator: str, impl: str, device: torch.device) -> Gate | None:
    """The gate an implementation passed on devices like this one, or None."""
    here = capability(device)
    return next((gate for gate in GATES if (gate.operator, gate.impl, gate.capability) == (operator, impl, here)), None)


def untested(operator: str, impl: str, device: torch.device) -> str:
    """Say why `auto` must not choose an implementation on a device; empty if it may. Other devices than CUDA have no gate."""
    if device.type != "cuda" or gate_of(operator, impl, device) is not None:
        return ""
    major, minor = capability(device)
    return f"no recorded green gate on compute capability {major}.{minor}"
