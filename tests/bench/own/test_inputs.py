"""What candidates are called with is equal for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from strobe.bench.own.calls import CallArguments, bound, copied, same
from strobe.core.errors import ConfigError


class Pair(NamedTuple):
    one: Any
    two: Any


@dataclass
class Batch:
    frames: torch.Tensor
    names: list[str]


def values() -> dict[str, Any]:
    """One of every kind that is copied."""
    grown = torch.randn(3, requires_grad=True)
    return {
        "tensor": torch.tensor([1.0, float("nan"), 2.0]),
        "leaf": grown,
        "array": np.arange(4.0),
        "pair": Pair(torch.zeros(2), [1, 2]),
        "tuple": (torch.ones(2), "text"),
        "batch": Batch(torch.zeros(3), ["a"]),
        "dictionary": {"x": torch.zeros(1)},
        "set": {1, 2},
        "bytes": bytearray(b"abc"),
        "generator": torch.Generator().manual_seed(3),
    }


@pytest.mark.parametrize("kind", values())
def test_a_copy_is_equal_and_of_its_own(kind: str) -> None:
    value = values()[kind]
    found = copied(value)
    assert type(found) is type(value) and found is not value
    assert same(found, value)


CHANGES = {
    "tensor": lambda value: value.add_(1),
    "array": lambda value: value.__setitem__(0, 9),
    "pair": lambda value: value.two.append(3),
    "tuple": lambda value: value[0].zero_(),
    "batch": lambda value: value.frames.add_(1),
    "dictionary": lambda value: value.__setitem__("y", 1),
    "set": lambda value: value.add(3),
    "bytes": lambda value: value.extend(b"d"),
    "generator": lambda value: torch.randn(1, generator=value),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen_and_does_not_reach_the_original(kind: str) -> None:
    value = values()[kind]
    inputs = CallArguments((value,))
    (own,) = arguments = inputs.one()
    assert inputs.unchanged(arguments)
    CHANGES[kind](own)
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


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("given", [numbers(), (numbers(),), {"x": iter([1])}, ([map(str, [1])],)])
def test_what_can_be_read_once_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="used up by the first call.*give a list or a tuple, or a function"):
        CallArguments(given)


def test_a_tensor_with_a_history_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"x\.detach\(\)"):
        CallArguments((torch.ones(2, requires_grad=True) * 2,))


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
