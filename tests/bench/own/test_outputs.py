"""Whether two outputs are the same, and where they are not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from strobe.bench.own.calls import agree, leaves
from strobe.core.errors import ConfigError


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


def test_a_tolerance_of_the_callers_counts_for_integers_in_tensors_too() -> None:
    found, expected = torch.tensor([100, 200]), torch.tensor([101, 200])
    assert not held(found, expected).passed
    assert held(found, expected, 0.01).passed and not held(found, expected, 0.001).passed
    assert "as asked for" in held(found, expected, 0.01).rule


def test_nothing_returned_is_said_to_be_nothing_compared() -> None:
    result = held(None, None)
    assert result.passed and not result.exact and "nothing to compare" in result.rule


def test_an_output_is_kept_from_what_the_next_call_overwrites() -> None:
    buffer = torch.zeros(2)
    kept = leaves(buffer)
    buffer.fill_(7)
    assert kept[0].value.tolist() == [0, 0]


def lazily() -> Iterator[int]:
    yield 1


async def later() -> int:
    return 1


def test_a_call_that_has_not_run_is_refused() -> None:
    coroutine = later()
    for output in (lazily(), coroutine):
        with pytest.raises(ConfigError, match="nothing has run when it is returned"):
            leaves(output)
    coroutine.close()


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"out\['model'\] is a Linear, which cannot be compared; .*math\.inf"):
        leaves({"model": torch.nn.Linear(1, 1)})
