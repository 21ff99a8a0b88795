"""What candidates are called with is equal for all of them; whether two outputs are the same, and where they are not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from strobe.bench.own.calls import CallArguments, agree, bound, copied, leaves
from strobe.core.errors import ConfigError


class Pair(NamedTuple):
    one: Any
    two: Any


@dataclass
class Batch:
    frames: torch.Tensor
    names: list[str]


KINDS = {
    "tensor": (torch.tensor([1.0, float("nan"), 2.0]), lambda value: value.add_(1)),
    "array": (np.arange(4.0), lambda value: value.__setitem__(0, 9)),
    "pair": (Pair(torch.zeros(2), [1, 2]), lambda value: value.two.append(3)),
    "tuple": ((torch.ones(2), "text"), lambda value: value[0].zero_()),
    "batch": (Batch(torch.zeros(3), ["a"]), lambda value: value.frames.add_(1)),
    "dictionary": ({"x": torch.zeros(1)}, lambda value: value.__setitem__("y", 1)),
    "set": ({1, 2}, lambda value: value.add(3)),
    "bytes": (bytearray(b"abc"), lambda value: value.extend(b"d")),
    "generator": (torch.Generator().manual_seed(3), lambda value: torch.randn(1, generator=value)),
}
"""Of every kind that is copied one value, and a change."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen_and_does_not_reach_the_original(kind: str) -> None:
    value, change = KINDS[kind]
    inputs = CallArguments((value,))
    (own,) = arguments = inputs.one()
    assert inputs.unchanged(arguments)
    change(own)
    assert not inputs.unchanged(arguments)
    assert inputs.unchanged(inputs.one()), "what is kept is as it was"


def test_what_is_no_data_is_handed_over_as_it_is() -> None:
    model, marker = torch.nn.Linear(2, 2), object()
    found = copied((model, marker))
    assert found[0] is model and found[1] is marker


def test_strides_storage_and_aliases_are_kept() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    wide, same_one, turned = copied((x.expand(2, 3, 4), x, x.t()))
    assert wide.stride() == (0, 4, 1) and turned.stride() == (1, 4)
    assert same_one.data_ptr() == turned.data_ptr() == wide.data_ptr() != x.data_ptr()


def lazily() -> Iterator[int]:
    yield 1


ONCE = "used up by the first call.*give a list or a tuple, or a function"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *((given, ONCE) for given in (lazily(), (lazily(),), {"x": iter([1])}, ([map(str, [1])],))),
        ((torch.ones(2, requires_grad=True) * 2,), r"x\.detach\(\)"),
    ],
)
def test_what_cannot_be_copied_is_refused(given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CallArguments(given)


def test_a_function_makes_them_anew() -> None:
    made: list[int] = []

    def make() -> tuple[list[int]]:
        made.append(len(made))
        return (made[-1:],)

    inputs = CallArguments(make)
    assert inputs.fresh and [inputs.one()[0] for _ in range(3)] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("arguments", "expected"), [((1, 2), ((1, 2), {})), ({"x": 1}, ((), {"x": 1})), ((), ((), {})), ([1], (([1],), {}))]
)
def test_arguments_are_a_tuple_a_dictionary_or_one(arguments: Any, expected: object) -> None:
    assert bound(lambda *args, **kwargs: (args, kwargs), arguments)() == expected


def test_copies_made_ahead_are_bounded_by_their_bytes() -> None:
    inputs = CallArguments((torch.zeros(1 << 20),))  # 4 MiB
    inputs.fresh = True
    assert inputs.most() == 64


def held(found: object, expected: object, tolerance: float | None = None) -> Any:
    return agree(leaves(found), leaves(expected), tolerance)


@dataclass
class Frames:
    video: torch.Tensor
    fps: int


X = torch.linspace(1, 2, 100)
ALIKE = [
    (X, X * (1 + 2e-6)),
    (X.bfloat16(), (X * 1.005).bfloat16()),
    (X, X.bfloat16()),  # the coarser dtype decides
    (X.to(torch.complex64), X.to(torch.complex64) * (1 + 2e-6)),
    (1.0, 1.0 + 1e-9),
    (1, 1),
    ("a", "a"),
    (True, True),
    (np.arange(3), np.arange(3)),
    (np.array(["a"]), np.array(["a"])),
    (np.arange(3, dtype=">f4"), np.arange(3, dtype="<f4")),
    ({"a": [X, (1, "b")]}, {"a": [X, (1, "b")]}),
    (Frames(X, 16), Frames(X, 16)),
    (torch.tensor([1.0, math.nan, math.inf]), torch.tensor([1.0, math.nan, math.inf])),
    (torch.zeros(0), torch.zeros(0)),
    (torch.zeros(3), torch.zeros(3)),
]


@pytest.mark.parametrize(("found", "expected"), ALIKE)
def test_equal_outputs_pass(found: object, expected: object) -> None:
    result = held(found, expected)
    assert result.passed and result.exact


UNLIKE = [
    (X * 1.001, X, "out: relative error 0.001, at most 1e-05 allowed"),
    (X[:-1], X, r"out: shape \(99,\), expected \(100,\)"),
    ({"a": X, "b": X + 1}, {"a": X, "b": X}, r"out\['b'\]: relative error"),
    ([X], [X, X], r"not built alike: only one has out\[1\]"),
    ({"a": 1}, {"b": 1}, r"only one has out\['a'\]"),
    (Frames(X, 24), Frames(X, 16), r"out\.fps: 24, expected 16"),
    ("a", "b", "out: 'a', expected 'b'"),
    (True, 1, "out: True, expected 1"),
    (None, X, "out: None, expected tensor"),
    (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), "1 of 3 integers differ"),
    (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]), "not finite in the same places"),
    (torch.tensor([math.inf]), torch.tensor([-math.inf]), "not finite in the same places"),
    (torch.full((3,), 1e-3), torch.zeros(3), "relative error 0.001"),
]


@pytest.mark.parametrize(("found", "expected", "said"), UNLIKE)
def test_unequal_outputs_fail_and_say_where(found: object, expected: object, said: str) -> None:
    result = held(found, expected)
    assert not result.passed
    assert re.search(said, result.detail), result.detail


def test_nothing_returned_is_said_to_be_nothing_compared() -> None:
    result = held(None, None)
    assert result.passed and not result.exact and "nothing to compare" in result.rule


def test_an_output_is_kept_from_what_the_next_call_overwrites() -> None:
    buffer = torch.zeros(2)
    kept = leaves(buffer)
    buffer.fill_(7)
    assert kept[0][1].tolist() == [0, 0]


async def later() -> int:
    return 1


def test_what_has_not_run_or_cannot_be_compared_is_refused() -> None:
    coroutine = later()
    for output in (lazily(), coroutine):
        with pytest.raises(ConfigError, match="nothing has run when it is returned"):
            leaves(output)
    coroutine.close()
    with pytest.raises(ConfigError, match=r"out\['model'\] is a Linear, which cannot be compared; .*math\.inf"):
        leaves({"model": torch.nn.Linear(1, 1)})
