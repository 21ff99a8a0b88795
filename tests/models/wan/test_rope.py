"""Rotations against complex numbers in float64, at any position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WanConfig
from strobe.models.wan.layers import device_table, rope_table, rotate, rotate_temporal

CONFIG = WanConfig(dim=88, num_heads=2)  # head_dim 44: 22 pairs = 8 for time, 7 for height, 7 for width
HEIGHT, WIDTH = 3, 5


def draw(frames: int, *between: int) -> Tensor:
    return torch.randn(2, frames * HEIGHT * WIDTH, *between, 44, generator=torch.Generator().manual_seed(frames))


def by_hand(x: Tensor, positions: tuple[int, ...]) -> Tensor:
    """Token (t, y, x) of a head: complex pair i of an axis with n pairs is turned by `index * 10000 ** (-i / n)`, in float64."""
    values = x.double().numpy()
    pairs = values[..., 0::2] + 1j * values[..., 1::2]
    token = 0
    for t in positions:
        for y in range(HEIGHT):
            for column in range(WIDTH):
                turns = [index * 10_000.0 ** (-i / n) for index, n in ((t, 8), (y, 7), (column, 7)) for i in range(n)]
                pairs[:, token] *= np.exp(1j * np.array(turns))
                token += 1
    return torch.from_numpy(np.stack((pairs.real, pairs.imag), axis=-1).reshape(values.shape))


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the length of the vector it belongs to."""
    expected = expected.double()
    return ((found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def test_the_axes_share_the_head() -> None:
    assert CONFIG.rope_pairs == (8, 7, 7)
    assert WanConfig().rope_pairs == (22, 21, 21)


@pytest.mark.parametrize("positions", [(0,), (0, 1, 2), (7, 8, 9), (5, 0, 3), (999_998, 999_999, 1_000_000)])
def test_rotations_are_the_complex_numbers_of_the_definition(positions: tuple[int, ...]) -> None:
    x, turns = draw(len(positions), 2), rope_table(CONFIG, positions, HEIGHT, WIDTH)
    expected = by_hand(x, positions)
    assert turns.dtype == torch.complex128
    assert relative(rotate(x.double(), turns), expected) < tolerance("rotation", "float64")
    complex64 = device_table(turns, torch.float32, torch.device("cpu"))
    pairs = device_table(turns, torch.bfloat16, torch.device("cpu"))
    assert (complex64.dtype, pairs.dtype) == (torch.complex64, torch.float32)
    for form in (turns, complex64, pairs):
        found = rotate(x, form)
        assert found.dtype == torch.float32 and found.isfinite().all()
        assert relative(found, expected) < tolerance("rotation", "float32")


def test_bfloat16_is_rotated_in_float32() -> None:
    x, turns = draw(3, 2).bfloat16(), rope_table(CONFIG, (7, 8, 9), HEIGHT, WIDTH)
    found = rotate(x, device_table(turns, torch.bfloat16, torch.device("cpu")))
    assert torch.equal(found, by_hand(x, (7, 8, 9)).to(torch.bfloat16))


def test_queries_and_keys_may_be_rotated_together() -> None:
    both, turns = draw(3, 2, 2), rope_table(CONFIG, (4, 5, 6), HEIGHT, WIDTH).to(torch.complex64)
    q, k = rotate(both, turns).unbind(2)
    assert torch.equal(q, rotate(both[:, :, 0], turns)) and torch.equal(k, rotate(both[:, :, 1], turns))


@pytest.mark.parametrize(("first", "frames"), [(0, 0), (0, 1), (0, 9), (3, 1000), (12, -5), (0, 1_000_000)])
def test_moving_keys_in_time_is_drawing_them_there(first: int, frames: int) -> None:
    x = draw(3, 2)
    here, there = tuple(range(first, first + 3)), tuple(range(first + frames, first + frames + 3))
    moved = rotate(x, rope_table(CONFIG, here, HEIGHT, WIDTH))
    rotate_temporal(CONFIG, moved, frames, moved)
    assert moved.dtype == torch.float32 and moved.isfinite().all()
    assert relative(moved, by_hand(x, there)) < tolerance("rotation", "float32")


def test_scores_depend_on_the_distance_in_time_only() -> None:
    q, k = draw(1, 2), draw(2, 2)[:, : HEIGHT * WIDTH]

    def scores(query_frame: int, key_frame: int) -> Tensor:
        turned = [rotate(x.double(), rope_table(CONFIG, (at,), HEIGHT, WIDTH)) for x, at in ((q, query_frame), (k, key_frame))]
        return torch.einsum("bshd,bthd->bhst", *turned)

    torch.testing.assert_close(scores(9, 4), scores(1005, 1000))
    assert (scores(9, 4) - scores(9, 5)).abs().max() > 0.1
