"""One case of a gate, and the comparisons of its tensors with the reference's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class CaseRefusedError(Exception):
    """The implementation does not take this case, or the card has too little memory; this is neither a pass nor a failure."""


class GateError(AssertionError):
    """The implementation gave a wrong result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateCase:
    """One check that an implementation has to pass.

    Args:
        name: of the case, one line.
        check: raises `CaseRefusedError` if it says nothing of this implementation, and anything else if it does not hold.
        needs_gpu: it looks at streams, graphs or memory of a GPU.
    """

    name: str
    check: Callable[[], None]
    needs_gpu: bool = False

    def run(self) -> None:
        """Run the check after a reset of torch.compile's caches."""
        torch._dynamo.reset()
        self.check()


def hold(condition: object, what: str) -> None:
    """Raise unless something holds; an `assert` would be gone under `python -O`.

    Raises:
        GateError: it does not hold.
    """
    if not condition:
        raise GateError(what)


def near(found: Tensor, expected: Tensor, limit: float, name: str) -> None:
    """Check that a tensor is finite and near the expected one, relative to each element and to the largest element.

    Raises:
        GateError: it is not finite.
        AssertionError: it is not near.
    """
    hold(found.isfinite().all(), f"{name} is not finite")
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(
        found.float(), expected.float(), atol=limit * scale, rtol=limit, msg=lambda text: f"{name}: {text}"
    )


def same_bits(found: Tensor | None, expected: Tensor | None, name: str) -> None:
    """Check that two tensors are equal bit for bit.

    Raises:
        GateError: it is not.
    """
    hold(found is not None and expected is not None and torch.equal(found, expected), f"{name} differs")


def room_for(num_bytes: int, device: torch.device) -> None:
    """Check that a GPU has `num_bytes` of free memory.

    Raises:
        CaseRefusedError: it has not.
    """
    free, _ = torch.cuda.mem_get_info(device)
    if free < num_bytes:
        raise CaseRefusedError(f"it needs {num_bytes >> 30} GiB of free memory, {free >> 30} are")
