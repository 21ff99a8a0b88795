"""Which implementation runs, and why the others were passed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from strobe.attention.types import AttentionOutput, AttentionSpec
from strobe.core.errors import ImplUnavailableError, unknown_choice

Spec = TypeVar("Spec", bound=AttentionSpec)


def _needs_no_gate(_: torch.device) -> str:
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Impl(Generic[Spec]):
    """One implementation of an operator.

    Args:
        name: what a user writes as `impl=`.
        refuses: why it cannot run this call on this machine, or None if it can. Pure and cheap: imports nothing optional.
        run: the implementation, called with the operator's tensors and the spec.
        untested: why `auto` must not choose it on a device although it could run: it never passed its gate on such hardware.
            Empty if it did, or needs none.
    """

    name: str
    refuses: Callable[[Spec], str | None]
    run: Callable[..., AttentionOutput]
    untested: Callable[[torch.device], str] = _needs_no_gate


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Generic[Spec]):
    """The implementation that would run and the reason each other one was passed over."""

    impl: Impl[Spec]
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"runs: {self.impl.name}"]
        lines += [f"  not {name}: {reason}" for name, reason in self.passed_over]
        return "\n".join(lines)


def select(spec: Spec, impls: Sequence[Impl[Spec]], name: str = "auto") -> Choice[Spec]:
    """Choose an implementation: the first of `impls` (best first) that accepts the call, or the named one.

    Raises:
        ConfigError: no implementation has that name.
        ImplUnavailableError: the named one cannot run this call.
    """
    if name != "auto" and name not in [impl.name for impl in impls]:
        raise unknown_choice("impl", name, ["auto", *(impl.name for impl in impls)])
    passed: list[tuple[str, str]] = []
    chosen: Impl[Spec] | None = None
    for impl in impls:
        reason = impl.refuses(spec)
        if reason is None and name == "auto" and (doubt := impl.untested(spec.device)):
            passed.append((impl.name, f"untested: {doubt}"))
        elif reason is None and chosen is None and name in ("auto", impl.name):
            chosen = impl
        elif reason is None:
            passed.append((impl.name, f"{name} was asked for by name" if chosen is None else f"{chosen.name} comes first"))
        else:
            passed.append((impl.name, reason))
    if chosen is None:
        reasons = dict(passed)
        able = [impl.name for impl in impls if impl.refuses(spec) is None]
        reason = reasons.get(name) or "; ".join(f"{other}: {why}" for other, why in passed)
        raise ImplUnavailableError(name, reason, able)
    return Choice(impl=chosen, passed_over=tuple(passed))
