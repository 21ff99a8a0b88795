"""Words against attention written out in float64; padding is neither seen nor shown."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from strobe.models.text.words import WordEncoder

ELEMENT = tolerance("element", "float32")

WORDS = ("red", "green", "blue", "circle", "square", "moving", "left")


@pytest.fixture(scope="module")
def encoder() -> WordEncoder:
    torch.manual_seed(1)
    model = WordEncoder(WORDS, dim=16, length=6, num_heads=4).requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def by_hand(encoder: WordEncoder, words: list[int]) -> Tensor:
    """One prompt without any padding, head by head, in float64 `[len(words), dim]`."""
    weights = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    x = weights["words.weight"][words] + weights["places"][: len(words)]
    normed = layer_norm(x, (16,), weights["norm.weight"], weights["norm.bias"])
    q, k, v = (normed @ weights["qkv.weight"].T + weights["qkv.bias"]).chunk(3, dim=-1)
    heads = [slice(4 * head, 4 * head + 4) for head in range(4)]
    attended = [torch.softmax(q[:, own] @ k[:, own].T / 2, dim=-1) @ v[:, own] for own in heads]  # head size 4: scale 1 / 2
    x = x + torch.cat(attended, dim=-1) @ weights["out.weight"].T + weights["out.bias"]
    return layer_norm(x, (16,), weights["final.weight"], weights["final.bias"])


PROMPTS = ["red", "blue circle", "red circle moving left", "left left blue square moving red"]


def test_rows_are_those_of_the_prompt_alone(encoder: WordEncoder) -> None:
    encoded = encoder.encode(PROMPTS)
    assert encoded.shape == (4, 6, 16) and encoded.dtype == torch.float32
    for row, prompt in zip(encoded, PROMPTS, strict=True):
        words = [1 + WORDS.index(word) for word in prompt.split()]
        torch.testing.assert_close(row[: len(words)].double(), by_hand(encoder, words), rtol=0, atol=ELEMENT)
        assert (row[len(words) :] == 0).all()


def test_padding_gets_no_gradient(encoder: WordEncoder) -> None:
    model = WordEncoder(WORDS, dim=16, length=6)
    model.encode(["red circle"]).square().sum().backward()
    assert (model.words.weight.grad[0] == 0).all() and (model.places.grad[2:] == 0).all()
    assert (model.words.weight.grad[[1, 4]] != 0).any(dim=1).all()


def test_case_and_punctuation_do_not(encoder: WordEncoder) -> None:
    assert encoder.tokenize("Red, CIRCLE: moving left!") == encoder.tokenize("red circle moving left") == [1, 4, 6, 7]
    assert encoder.batch(["blue", "red circle"]).tolist() == [[3, 0, 0, 0, 0, 0], [1, 4, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("red circel", r"unknown word 'circel' in prompt 'red circel' \(did you mean 'circle'\?\)"),
        ("red xylophone", r"unknown word 'xylophone' in prompt 'red xylophone'; allowed: red, .*, square, moving, left$"),
        ("red red red red red red red", r"prompt 'red red red red red red red' has 7 words; allowed: 1 to 6"),
        ("", r"prompt '' has 0 words; allowed: 1 to 6"),
        ("?!", r"prompt '\?!' has 0 words"),
    ],
)
def test_what_it_cannot_read_is_said(encoder: WordEncoder, prompt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder.encode(["red circle", prompt])
