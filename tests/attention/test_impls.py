"""Choosing an implementation is pure: the first that accepts, or the named one, with a reason for every other."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from strobe.attention.impls import Impl, select
from strobe.attention.types import AttentionOutput, AttentionSpec, check
from strobe.core.device import Card
from strobe.core.errors import ConfigError, ImplUnavailableError

SPEC = check(*[torch.zeros(1, 2, 3, 4)] * 3, softmax_scale=None, return_lse=False)


def never_run(*_: object) -> AttentionOutput:
    raise AssertionError("choosing must not run anything")


def impl(name: str, reason: str | None = None) -> Impl:
    def refuses(spec: AttentionSpec) -> str | None:
        assert spec is SPEC
        return reason

    return Impl(name=name, refuses=refuses, run=never_run)


FAST, NEW, PLAIN = impl("fast", "needs a GPU"), impl("new"), impl("plain")


def test_auto_takes_the_first_that_accepts() -> None:
    choice = select(SPEC, (FAST, NEW, PLAIN))
    assert choice.impl is NEW
    assert choice.passed_over == (("fast", "needs a GPU"), ("plain", "new comes first"))
    assert str(choice) == "runs: new\n  not fast: needs a GPU\n  not plain: new comes first"


def test_a_name_is_obeyed() -> None:
    choice = select(SPEC, (FAST, NEW, PLAIN), "plain")
    assert choice.impl is PLAIN
    assert choice.passed_over == (("fast", "needs a GPU"), ("new", "plain was asked for by name"))


def test_a_named_one_that_refuses_says_why_and_what_would_run() -> None:
    with pytest.raises(ImplUnavailableError) as caught:
        select(SPEC, (FAST, NEW, PLAIN), "fast")
    assert (caught.value.name, caught.value.reason, caught.value.alternatives) == ("fast", "needs a GPU", ("new", "plain"))
    assert str(caught.value) == "impl 'fast' cannot run: needs a GPU; would run here: new, plain"


def test_when_all_refuse_every_reason_is_given() -> None:
    with pytest.raises(ImplUnavailableError, match="fast: needs a GPU; old: retired$"):
        select(SPEC, (FAST, impl("old", "retired")))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown impl 'plian' \(did you mean 'plain'\?\); allowed: auto, fast, new, plain"):
        select(SPEC, (FAST, NEW, PLAIN), "plian")


def test_a_call_is_described_once() -> None:
    q, kv = torch.zeros(2, 5, 6, 16), torch.zeros(2, 7, 3, 16)
    spec = check(q, kv, kv, softmax_scale=None, return_lse=True)
    described = (spec.batch, spec.q_len, spec.kv_len, spec.num_heads, spec.num_kv_heads, spec.head_dim)
    assert described == (2, 5, 7, 6, 3, 16)
    assert (spec.softmax_scale, spec.return_lse, spec.dtype) == (0.25, True, torch.float32)
    assert check(q, kv, kv, softmax_scale=0, return_lse=False).softmax_scale == 0.0


def test_a_compiled_call_chooses_past_an_impl_whose_gate_was_not_run_on_the_card() -> None:
    """As on a card of another kernel than the records': the reason holds the card's name, which torch.compile has to follow."""
    card = Card(vendor="nvidia", architecture="sm_90", capability=(9, 0), name="some card")
    spec = dataclasses.replace(SPEC, card=card)
    ungated, free = (
        Impl(name=name, refuses=lambda _: None, run=never_run, kernel=kernel) for name, kernel in (("new", "k"), ("old", ""))
    )
    eager = select(spec, (ungated, free), gates=())

    def call(x: torch.Tensor) -> torch.Tensor:
        choice = select(spec, (ungated, free), gates=())
        return x + (1 if choice.impl.name == "old" and choice.passed_over == eager.passed_over else 0)

    assert eager.passed_over[0][1].startswith("untested: its gate has not been run on compute capability 9.0")
    assert torch.compile(call, fullgraph=True, backend="eager")(torch.zeros(1)).item() == 1
