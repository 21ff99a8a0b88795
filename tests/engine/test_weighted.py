"""Prompts that are several, each with a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stand_ins import stands_in_for
from strobe.core.errors import ConfigError
from strobe.engine.load import load
from strobe.engine.model import Model
from strobe.engine.prompts import Switch, TextEncoder, encode_prompts, prompts_ready, read_prompts, read_weights, switches_of
from strobe.engine.session import Session
from strobe.models.shapes import oracle
from strobe.models.shapes.grammar import CHOICES
from strobe.models.text.cache import Embedder, PromptEncoder, PromptMemory

BOTH = "(red circle:3) (blue square:1)"


@stands_in_for(Embedder)
class Rows:
    """An embedder of bfloat16 rows, one for each word; counts what it embeds."""

    identity, dtype, length = "rows", torch.bfloat16, 7

    def __init__(self) -> None:
        self.asked: list[str] = []

    def clean(self, prompt: str) -> str:
        return " ".join(prompt.split())

    def check(self, prompt: str) -> None:
        if not prompt:
            raise ConfigError("the prompt is empty")

    def embed(self, prompts: Sequence[str]) -> list[Tensor]:
        self.asked += prompts
        return [
            torch.randn(len(each.split()), 5, generator=torch.Generator().manual_seed(len(each))).bfloat16() for each in prompts
        ]

    def place(self, device: torch.device) -> None: ...


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("a cat (asleep) on 10:30", (("a cat (asleep) on 10:30", 1.0),)),
        (r"a sign \(open:24\)", (("a sign (open:24)", 1.0),)),
        ("(a:1) (b:3)", (("a", 0.25), ("b", 0.75))),
        (" ( a cat, awake :1.5),\n(b: .5)", (("a cat, awake", 0.75), ("b", 0.25))),
        (r"(a \(b\):2)(c: d:2)", (("a (b)", 0.5), ("c: d", 0.5))),
        ("(a:0) (b:0.2)", (("b", 1.0),)),
        ("(a:1e1) (b:30)", (("a", 0.25), ("b", 0.75))),
    ],
)
def test_weights_are_read_as_shares(prompt: str, parts: tuple[tuple[str, float], ...]) -> None:
    assert read_weights(prompt) == parts


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("a (red:1.4) circle", r"weighs some of its words.*\(a red circle moving left:0.7\).*write \\\( and \\\)"),
        ("((a:2) b:1) (c:1)", "weighs some of its words"),
        ("(a:1.4)", "is one with a weight"),
        ("(a:1) (:2)", "has an empty part"),
        ("(a:1) (blurry:-1)", "gives 'blurry' the weight -1: nothing is steered away from.*without guidance"),
        ("(a:0) (b:0)", "sum to 0"),
        ("(a:1e308) (b:1e308)", "sum to inf"),
    ],
)
def test_weights_that_mean_nothing_are_refused(prompt: str, words: str, make: Callable[..., Session]) -> None:
    with pytest.raises(ConfigError, match=words):
        read_weights(prompt)
    with make() as session, pytest.raises(ConfigError, match=words):
        session.prompt(prompt)
    with pytest.raises(ConfigError, match=f"p.txt, line 2: .*{words}"):
        read_prompts(f"0s: red circle\nblock=2: {prompt}", "p.txt")


def test_a_part_is_checked_like_a_prompt(make: Callable[..., Session]) -> None:
    with pytest.raises(ConfigError, match="unknown word 'rad' in prompt 'rad circle'.*did you mean 'red'"):
        make("(rad circle:1) (blue square:1)")


def test_a_blend_equals_the_sum_in_float64_of_texts_that_are_made_once() -> None:
    """Rows of prompts of different lengths; what is shorter adds zeros behind its end."""
    embedder = Rows()
    encoder = PromptEncoder(embedder, None, PromptMemory())
    assert not prompts_ready(encoder, [BOTH])
    found = encode_prompts(encoder, [BOTH, "red circle", "(green circle moving:0.3) (red circle:0.5)"])
    assert sorted(embedder.asked) == ["blue square", "green circle moving", "red circle"] and found.dtype == torch.bfloat16
    alone = [encoder.encode([text])[0].double() for text in ("red circle", "blue square", "green circle moving")]
    red, blue, green = alone
    expected = torch.stack([(3 * red + blue) / 4, red, (3 * green + 5 * red) / 8])
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=0)  # one rounding to bfloat16
    assert torch.equal(found[2, 2], (0.375 * green[2]).bfloat16()) and not found[:, 3:].any()
    assert prompts_ready(encoder, [BOTH]) and torch.equal(encode_prompts(encoder, ["(a:0) (red circle:2)"])[0].double(), red)


def test_a_stream_follows_the_blend_wherever_it_is_said(make: Callable[..., Session], tiny: Model) -> None:
    """First prompt, prompt, switch and file make the film of a model whose encoder knows the blend as a word of its own."""

    @stands_in_for(TextEncoder)
    class Told:
        """Encodes "blend" as the blend that was worked out by hand."""

        def __getattr__(self, name: str) -> object:
            return getattr(tiny.text, name)

        def check(self, prompts: Sequence[str]) -> None: ...

        def encode(self, prompts: Sequence[str]) -> Tensor:
            red, blue = tiny.text.encode(["red circle", "blue square"]).double()
            blend = ((3 * red + blue) / 4).float()
            return torch.stack([blend if each == "blend" else tiny.text.encode([each])[0] for each in prompts])

    def film(session: Session, switches: Sequence[Switch] = ()) -> Tensor:
        with session:
            return torch.cat([block.latents for block in session.stream(4, switches=switches)], dim=1)

    other = replace(tiny, text=Told())
    assert torch.equal(film(make(BOTH)), film(make("blend", model=other)))
    expected = film(make(model=other), [Switch(frame_block=2, prompt="blend")])
    assert not torch.equal(expected, film(make(), [Switch(frame_block=2, prompt="red circle")]))
    assert torch.equal(film(make(), [Switch(frame_block=2, prompt=BOTH)]), expected)
    switches = switches_of(read_prompts(f"block=2: {BOTH}", "p.txt"), "p.txt", tiny.defaults)
    assert torch.equal(film(make(), switches), expected)
    with make() as session:
        stream = session.stream(4)
        first = [next(stream).latents, next(stream).latents]
        session.prompt(BOTH)
        assert torch.equal(torch.cat([*first, *(block.latents for block in stream)], dim=1), expected)


def test_the_bundled_model_shows_a_colour_between_two() -> None:
    """Green of the object: 40 under red, 225 under yellow; under half of each, between them, and the oracle calls it orange."""
    prompt = "(a red circle moving left:{}) (a yellow circle moving left:{})"
    found = {}
    model = load()
    for share in (1, 0.5, 0):
        with Session(prompt.format(share, 1 - share), model=model, preset="quality", seed=0, device="cpu") as session:
            frames = torch.cat([block.frames for block in session.stream(2)])[9:]
        seen = oracle.detect(frames.permute(0, 3, 1, 2).float()[None] / 255)
        assert seen.valid.all() and (seen.labels[..., 1] == CHOICES["shape"].index("circle")).all()
        found[share] = {CHOICES["colour"][number] for number in seen.labels[..., 0].flatten().tolist()}
    assert found == {1: {"red"}, 0.5: {"orange"}, 0: {"yellow"}}
