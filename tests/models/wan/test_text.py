"""Which rows of a text are padding, and attention to the rest of them: that over all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.kernels.api import text_attention
from strobe.models.wan.transformer import TextKV, distinct_rows

CONFIG = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=40, latent_channels=4, num_heads=2, num_layers=2)


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


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-3)])
@pytest.mark.parametrize("lengths", [(5,), (40, 1), (0, 39, 17)])
def test_attention_to_distinct_rows_is_that_to_all(lengths: tuple[int, ...], dtype: torch.dtype, limit: float) -> None:
    """Against torch's attention over the whole text, with rows that must not be read; one row less would lose the padding."""
    torch.manual_seed(1)
    dit = CausalWan(CONFIG).to(dtype).requires_grad_(False)
    text = dit.text_kv(texts(*lengths))
    q = 4 * torch.randn(len(lengths), 33, 2, 24, generator=torch.Generator().manual_seed(2)).to(dtype)
    for k, v in text.layers:
        expected = F.scaled_dot_product_attention(*(each.transpose(1, 2).float() for each in (q, k, v))).transpose(1, 2)
        for sample, distinct in enumerate(text.distinct):
            k[sample, distinct:], v[sample, distinct:] = float("nan"), float("nan")
        found = text_attention(q, k, v, text.distinct, impl="reference")
        torch.testing.assert_close(found.float(), expected, atol=limit, rtol=limit)
        fewer = text_attention(q, k, v, (text.distinct - 1).clamp(min=1), impl="reference")
        assert (fewer.float() - expected).abs().max() > 10 * limit


def test_a_fused_pass_is_the_plain_one_under_prompts_of_any_length() -> None:
    dit = CausalWan(replace(CONFIG, text_len=64)).requires_grad_(False)
    latents, rope = torch.randn(2, 1, 4, 4, 6), dit.rope((0,), dit.grid(torch.zeros(2, 1, 4, 4, 6)))
    modulation = dit.modulation(torch.full((1, 1), 500.0))
    for lengths in ((3, 60), (64, 0)):
        text = dit.text_kv(texts(*lengths, rows=64))
        dit.kernels = None
        plain = dit(latents, modulation, text, rope, None)
        dit.use_kernels("reference")
        torch.testing.assert_close(
            dit(latents, modulation, text, rope, None),
            plain,
            atol=tolerance("pass", "float32"),
            rtol=tolerance("pass", "float32"),
        )


def test_it_can_be_taken_apart() -> None:
    found = CausalWan(CONFIG).requires_grad_(False).text_kv(texts(10))
    again = TextKV.made_of(found.tensors)
    assert len(found.tensors) == 5 and again.layers == found.layers and again.distinct is found.distinct
