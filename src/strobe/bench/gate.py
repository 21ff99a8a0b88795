"""The gate: a candidate is checked against its reference before any number is taken. A red gate has no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strobe.attention.impls import GATES, Choice, short
from strobe.core.device import card_of
from strobe.core.tolerances import tolerance
from strobe.perf.records.record import Gate


class GateResult(NamedTuple):
    """Result of a gate: passed or not, by which rule, with details.

    Args:
        exact: it asks for the values of the reference, within rounding.
    """

    passed: bool
    rule: str
    detail: str
    exact: bool = False

    def line(self, variant: str, reference: str) -> Gate:
        return Gate(
            variant=variant, reference=reference, rule=self.rule, passed=self.passed, detail=self.detail, exact=self.exact
        )


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Compute RMS of the difference / RMS of the expected values, in float64; infinite if anything is not finite.

    Args:
        found, expected: tensors of one shape on any devices.
    """
    found, expected = (tensor.detach().cpu().double() for tensor in (found, expected))
    error = ((found - expected).square().mean().sqrt() / expected.square().mean().sqrt()).item()
    return error if error == error else float("inf")


def same_latents(found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> GateResult:
    """Check that a candidate of the same computation gives the same latents, frame block by frame block."""
    errors = [relative_error(*pair) for pair in zip(found, expected, strict=True)]
    limit = tolerance("latents", dtype)
    worst = max(range(len(errors)), key=errors.__getitem__)
    rule = f"latents of the first {len(errors)} frame blocks: relative error <= {limit:g} ({short(dtype)})"
    return GateResult(errors[worst] <= limit, rule, f"largest {errors[worst]:.3g}, at frame block {worst}", exact=True)


def same_output(found: Tensor, expected: Tensor, dtype: torch.dtype, what: str) -> GateResult:
    """Check the output of one call against the reference in float64."""
    error, limit = relative_error(found, expected), tolerance("call", dtype)
    rule = f"{what}: relative error to the reference in float64 <= {limit:g} ({short(dtype)})"
    return GateResult(error <= limit, rule, f"{error:.3g}", exact=True)


def recorded(choice: Choice[Any], device: torch.device) -> GateResult:
    """Check that the chosen attention impl has a recorded pass of its gate on such a card, if it has a gate."""
    doubt = choice.impl.untested(card_of(device), GATES)
    return GateResult(not doubt, f"{choice.impl.name} passed its gate on this card", doubt or "it did, or needs none")


def passed_over(choice: Choice[Any]) -> str:
    """Return the reasons against the other impls in one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in choice.passed_over)


def finite(latents: Sequence[Tensor]) -> GateResult:
    """Check that all latents are finite."""
    bad = [index for index, block in enumerate(latents) if not block.isfinite().all()]
    rule = f"latents of the first {len(latents)} frame blocks are finite"
    return GateResult(not bad, rule, f"not finite in frame block {bad[0]}" if bad else "all finite")
