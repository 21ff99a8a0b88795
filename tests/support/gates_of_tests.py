"""Gate cases that pass, are refused, fail, die or hang, in a module that another process can import."""

from __future__ import annotations

import os
import sys
import time

import torch

from strobe.attention.gates.case import CaseRefusedError, GateCase


def fine() -> None:
    sys.stdout.write("a library says something")


def refuse() -> None:
    raise CaseRefusedError("not this one")


def fail() -> None:
    raise RuntimeError("CUDA error:\n  an illegal memory access")


def die() -> None:
    os._exit(9)


def hang() -> None:
    time.sleep(3600)


def find(*checks: object) -> list[GateCase]:
    return [GateCase(name=f"case {number}", check=check) for number, check in enumerate(checks)]  # type: ignore[arg-type]


def dying(operator: str, impl: str, device: torch.device) -> list[GateCase]:
    assert (operator, impl, device.type) == ("sparse", "cpu", "cpu")
    return find(fine, refuse, die, fine)


def hanging(*_: object) -> list[GateCase]:
    return find(fine, hang, fine)
