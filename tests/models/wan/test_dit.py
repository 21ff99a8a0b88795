"""The transformer's passes against each other, and parts of a layer against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.flow import to_x0
from strobe.models.wan.layers import device_table, distinct_rows, rope_table, rotate, rotate_temporal

ELEMENT = tolerance("element", "float32")

HEIGHT, WIDTH = 4, 6  # latent cells: 2 x 3 tokens per frame


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_prompts_per_sample_are_prompts_of_their_frames(dit: CausalWan) -> None:
    """Without self-attention across blocks, a pass with P prompts per sample is P passes with one."""
    x, text = draw(1, 2, 6, 4, HEIGHT, WIDTH), draw(3, 2 * 2, 5, 12)
    mask = torch.zeros(36, 36, dtype=torch.bool)
    mask[:18, :18] = mask[18:, 18:] = True
    modulation = dit.modulation(torch.tensor([[400.0]]))
    together = dit(x, modulation, dit.text_kv(text), dit.rope((0, 1, 2, 0, 1, 2), dit.grid(x)), None, mask)
    for prompt in range(2):
        part = x[:, 3 * prompt : 3 * prompt + 3]
        alone = dit(part, modulation, dit.text_kv(text[prompt::2]), dit.rope((0, 1, 2), dit.grid(part)))
        torch.testing.assert_close(together[:, 3 * prompt : 3 * prompt + 3], alone, rtol=0, atol=ELEMENT)


def test_short_prompts_are_padded_with_zeros_that_are_attended(dit: CausalWan) -> None:
    text = draw(4, 2, 3, 12)
    padded = F.pad(text, (0, 0, 0, 2))
    for (k, v), (padded_k, padded_v) in zip(dit.text_kv(text).layers, dit.text_kv(padded).layers, strict=True):
        assert k.shape == (2, 5, 2, 24)
        assert torch.equal(k, padded_k) and torch.equal(v, padded_v)


def test_what_does_not_fit_is_refused(dit: CausalWan) -> None:
    with pytest.raises(ShapeError, match=r"latents: got shape \(2, 3, 5, 4, 6\), expected \[B, F, 4, Y, X\]"):
        dit.grid(torch.zeros(2, 3, 5, 4, 6))
    with pytest.raises(ShapeError, match="latent size 5x6 is not a multiple of the patch 2x2"):
        dit.grid(torch.zeros(2, 3, 4, 5, 6))
    with pytest.raises(ShapeError, match=r"text: got \(2, 6, 12\), expected \[B, 1..5, 12\]"):
        dit.text_kv(torch.zeros(2, 6, 12))
    with pytest.raises(ShapeError, match=r"text: got \(2, 5, 13\)"):
        dit.text_kv(torch.zeros(2, 5, 13))
    with pytest.raises(ConfigError, match="dim 50 over 4 heads"):
        WanConfig(dim=50, num_heads=4)


LONG = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=40, latent_channels=4, num_heads=2, num_layers=2)


def texts(*lengths: int, rows: int = 40) -> Tensor:
    """Texts of so many rows, and zeros behind them."""
    text = torch.randn(len(lengths), rows, 12, generator=torch.Generator().manual_seed(sum(lengths)))
    return text * (torch.arange(rows) < torch.tensor(lengths)[:, None])[..., None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [0, 1, 7, 38, 39, 40])
def test_rows_are_counted_up_to_the_first_of_the_padding(length: int, dtype: torch.dtype) -> None:
    assert distinct_rows(texts(length, 3, 40).to(dtype)).tolist() == [min(length + 1, 40), 4, 40]


def test_only_equal_rows_behind_everything_else_are_padding() -> None:
    text = texts(9)
    text[:, 4] = 0.0  # amid the prompt
    assert (text[:, 9:] == 0).all() and text[:, 9:].signbit().any()
    assert distinct_rows(text).item() == 10
    text[:, 20, 7] = 1e-38
    assert distinct_rows(text).item() == 22
    text[:, 30:] = float("nan")
    assert distinct_rows(text).item() == 40
    text[:] = 7.0
    assert distinct_rows(text).item() == 1


CONFIG = WanConfig(dim=88, num_heads=2)  # head_dim 44: 22 pairs = 8 for time, 7 for height, 7 for width
ROWS_OF_FRAME, COLUMNS = 3, 5


def clip(frames: int, *between: int) -> Tensor:
    return torch.randn(2, frames * ROWS_OF_FRAME * COLUMNS, *between, 44, generator=torch.Generator().manual_seed(frames))


def by_hand(x: Tensor, positions: tuple[int, ...]) -> Tensor:
    """Token (t, y, x) of a head: complex pair i of an axis with n pairs is turned by `index * 10000 ** (-i / n)`, in float64."""
    values = x.double().numpy()
    pairs = values[..., 0::2] + 1j * values[..., 1::2]
    token = 0
    for t in positions:
        for y in range(ROWS_OF_FRAME):
            for column in range(COLUMNS):
                turns = [index * 10_000.0 ** (-i / n) for index, n in ((t, 8), (y, 7), (column, 7)) for i in range(n)]
                pairs[:, token] *= np.exp(1j * np.array(turns))
                token += 1
    return torch.from_numpy(np.stack((pairs.real, pairs.imag), axis=-1).reshape(values.shape))


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the length of the vector it belongs to."""
    expected = expected.double()
    return ((found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


@pytest.mark.parametrize("positions", [(0,), (0, 1, 2), (7, 8, 9), (5, 0, 3), (999_998, 999_999, 1_000_000)])
def test_rotations_are_the_complex_numbers_of_the_definition(positions: tuple[int, ...]) -> None:
    x, turns = clip(len(positions), 2), rope_table(CONFIG, positions, ROWS_OF_FRAME, COLUMNS)
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
    x, turns = clip(3, 2).bfloat16(), rope_table(CONFIG, (7, 8, 9), ROWS_OF_FRAME, COLUMNS)
    found = rotate(x, device_table(turns, torch.bfloat16, torch.device("cpu")))
    assert torch.equal(found, by_hand(x, (7, 8, 9)).to(torch.bfloat16))


@pytest.mark.parametrize(("first", "frames"), [(0, 0), (0, 1), (0, 9), (3, 1000), (12, -5), (0, 1_000_000)])
def test_moving_keys_in_time_is_drawing_them_there(first: int, frames: int) -> None:
    x = clip(3, 2)
    here, there = tuple(range(first, first + 3)), tuple(range(first + frames, first + frames + 3))
    moved = rotate(x, rope_table(CONFIG, here, ROWS_OF_FRAME, COLUMNS))
    rotate_temporal(CONFIG, moved, frames, moved)
    assert moved.dtype == torch.float32 and moved.isfinite().all()
    assert relative(moved, by_hand(x, there)) < tolerance("rotation", "float32")


def test_bfloat16_predictions_are_taken_in_float64() -> None:
    x, flow = torch.randn(2, 5, generator=torch.Generator().manual_seed(2)).unbind(0)
    found = to_x0(x, flow.bfloat16(), 0.7)
    assert found.dtype == torch.float32
    assert torch.equal(found, (x.double() - 0.7 * flow.bfloat16().double()).float())
