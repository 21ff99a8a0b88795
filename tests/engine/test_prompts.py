"""Prompts over time: what they mean, their weights, and the frame block at which each takes effect."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from strobe.core.errors import ConfigError, SessionError, WeightsError
from strobe.core.shapes import VaeStride
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults
from strobe.engine.model import Model
from strobe.engine.prompts import (
    Blend,
    Switch,
    TextEncoder,
    blocks_for,
    check_switches,
    encode_prompts,
    parse_switch,
    parts_of,
    read_weights,
)
from strobe.engine.session import Session
from strobe.models.text.cache import PromptEncoder
from tiny_model import Make

DEFAULTS = ModelDefaults(frame_size=(32, 32), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0,), shift=5.0)


@pytest.mark.parametrize(
    ("text", "frame_block", "prompt"),
    [
        ("block=12:a blue square", 12, "a blue square"),
        (" block = 1 : x:y, z ", 1, "x:y, z"),
        ("0.5s:go", 1, "go"),  # frame block 1 begins with frame 9, at 0.5625 s
        ("0.5625s:go", 1, "go"),
        ("0.57s:go", 2, "go"),
        ("4.5s:a blue square moving up", 7, "a blue square moving up"),  # frame 72; frame block 7 begins with frame 81
        (".1s:go", 1, "go"),
    ],
)
def test_switches_read_time_and_prompt(text: str, frame_block: int, prompt: str) -> None:
    assert parse_switch(text, DEFAULTS) == Switch(frame_block=frame_block, prompt=prompt)


@pytest.mark.parametrize(
    "text", ["", "a red circle", "4.5:a", "block:a", "block=x:a", "4s:", "block=3:  ", "-1s:a", "4 blocks:a"]
)
def test_what_cannot_be_read_gets_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="write for example"):
        parse_switch(text, DEFAULTS)


@pytest.mark.parametrize("text", ["0s:a", "block=0:a"])
def test_the_first_block_has_the_first_prompt(text: str) -> None:
    with pytest.raises(ConfigError, match="smallest: 1"):
        parse_switch(text, DEFAULTS)


def test_modes_are_checked() -> None:
    assert parse_switch("block=2:a", DEFAULTS, mode="interpolate").mode == "interpolate"
    with pytest.raises(ConfigError, match="did you mean 'recache'"):
        Switch(frame_block=1, prompt="a", mode="recach")  # type: ignore[arg-type]
    for over in (0, 2.5):
        with pytest.raises(ConfigError, match=f"over {over} frame blocks; give a whole number, at least 1"):
            Switch(frame_block=1, prompt="a", mode="interpolate", over=over)  # type: ignore[arg-type]


def test_switches_are_ordered_and_never_two_at_once() -> None:
    late, early = Switch(frame_block=9, prompt="b"), Switch(frame_block=2, prompt="a")
    assert check_switches([late, early]) == (early, late)
    with pytest.raises(ConfigError, match="block=10"):
        check_switches([late, early, Switch(frame_block=9, prompt="c")])


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("seconds", [0.01, 0.5625, 0.57, 1.0, 10.0, 63.9])
def test_blocks_for_is_the_smallest_that_lasts(seconds: float, first: int) -> None:
    def lasts(count: int) -> float:
        return (12 * count - (3 if first == 0 and count else 0)) / 16

    count = blocks_for(seconds, DEFAULTS, first=first)
    assert lasts(count) >= seconds - 1e-9 and lasts(count - 1) < seconds


@pytest.mark.parametrize(
    ("total", "num_steps", "steps"),
    [
        (4, 4, [1, 2, 3, 4]), (4, 2, [1, 1, 2, 2]), (8, 4, [1, 1, 2, 2, 3, 3, 4, 4]), (2, 4, [2, 4]), (3, 1, [1, 1, 1]),
        (1, 4, [4]),
    ],
)  # fmt: skip
def test_a_blend_gives_ever_more_denoise_steps_to_the_target(total: int, num_steps: int, steps: list[int]) -> None:
    start, target = torch.zeros(1, 2, 3), torch.rand(1, 2, 3)
    blend, found, nearer = Blend(start=start, target=target, done=1, total=total), [], []
    for _ in range(total):
        found.append(blend.steps(num_steps))
        nearer.append(blend.text is target)
        assert blend.text is (target if blend.nearer_to_target else start)
        last, blend = blend, blend.advance()
    assert found == steps and nearer == [2 * done >= total for done in range(1, total + 1)]
    assert last.finished and blend == last


BOTH = "(red circle:3) (blue square:1)"


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
        ("a (red:1.4) circle", r"weighs words or one.*\(a red circle moving left:0.7\).*write \\\( and \\\)"),
        ("((a:2) b:1) (c:1)", "weighs words"),
        ("(a:1.4)", "weighs words or one prompt alone"),
        ("(a:1) (:2)", "needs words in each part"),
        ("(a:1) (blurry:-1)", "weights of 0 or more.* nothing is steered away from.*without guidance"),
        ("(a:0) (b:0)", "one above 0"),
        ("(a:1e308) (b:1e308)", "needs words in each part"),
    ],
)
def test_weights_that_mean_nothing_are_refused(prompt: str, words: str, make: Make) -> None:
    with pytest.raises(ConfigError, match=words):
        read_weights(prompt)
    with make() as session, pytest.raises(ConfigError, match=words):
        session.prompt(prompt)


def test_a_blend_equals_the_sum_in_float64_of_texts_that_are_made_once() -> None:
    """Rows of prompts of different lengths; what is shorter adds zeros behind its end."""
    embedder = Rows()
    encoder = PromptEncoder(embedder)
    assert not encoder.ready(parts_of([BOTH]))
    found = encode_prompts(encoder, [BOTH, "red circle", "(green circle moving:0.3) (red circle:0.5)"])
    assert sorted(embedder.asked) == ["blue square", "green circle moving", "red circle"] and found.dtype == torch.bfloat16
    alone = [encoder.encode([text])[0].double() for text in ("red circle", "blue square", "green circle moving")]
    red, blue, green = alone
    expected = torch.stack([(3 * red + blue) / 4, red, (3 * green + 5 * red) / 8])
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=0)  # one rounding to bfloat16
    assert torch.equal(found[2, 2], (0.375 * green[2]).bfloat16()) and not found[:, 3:].any()
    assert encoder.ready(parts_of([BOTH])) and torch.equal(encode_prompts(encoder, ["(a:0) (red circle:2)"])[0].double(), red)


LONG_S = 60.0
"""More than anything here takes; a test that waits so long has failed."""


class SlowEncoder(TextEncoder):
    """An encoder that takes until it is let go, once for each prompt."""

    def __init__(self, inner: TextEncoder) -> None:
        self.inner = inner
        self.known: dict[str, Tensor] = {}
        self.begun: dict[str, threading.Event] = {}
        self.go: dict[str, threading.Event] = {}
        self.threads: list[str] = []
        self.fails: set[str] = set()

    def check(self, prompts: Sequence[str]) -> None:
        self.inner.check(prompts)

    def ready(self, prompts: Sequence[str]) -> bool:
        return all(prompt in self.known for prompt in prompts)

    def place(self, device: torch.device) -> None:
        pass

    def event(self, events: dict[str, threading.Event], prompt: str) -> threading.Event:
        return events.setdefault(prompt, threading.Event())

    def encode(self, prompts: Sequence[str]) -> Tensor:
        for prompt in prompts:
            if prompt not in self.known:
                self.threads.append(threading.current_thread().name)
                self.event(self.begun, prompt).set()
                assert self.event(self.go, prompt).wait(LONG_S)
                if prompt in self.fails:
                    raise WeightsError(f"no text for {prompt}")
                self.known[prompt] = self.inner.encode([prompt])
        return torch.cat([self.known[prompt] for prompt in prompts])

    def let(self, *prompts: str) -> None:
        for prompt in prompts:
            self.event(self.go, prompt).set()


@pytest.fixture
def slow(tiny: Model) -> SlowEncoder:
    encoder = SlowEncoder(tiny.text)
    encoder.let("red circle")
    return encoder


@pytest.fixture
def session(make: Make, tiny: Model, slow: SlowEncoder) -> Iterator[Session]:
    opened = make(model=replace(tiny, text=slow))
    yield opened
    opened.close()
    for go in (*slow.go.values(),):
        go.set()


def told(make: Make, frame_block: int, prompt: str, blocks: int, **options: object) -> Tensor:
    """Latents of a stream that follows a prompt from a frame block on, by an encoder that takes no time."""
    switches = [Switch(frame_block=frame_block, prompt=prompt)]
    return torch.cat([block.latents for block in make(**options).stream(blocks, switches=switches)], dim=1)


def test_the_stream_goes_on_and_the_answer_says_from_where(make: Make, session: Session, slow: SlowEncoder) -> None:
    stream = session.stream(8)
    blocks = [next(stream), next(stream)]
    ack = session.prompt("blue square")
    assert slow.event(slow.begun, "blue square").wait(LONG_S) and ack.frame_block is None
    blocks += [next(stream), next(stream), next(stream)]  # under the old prompt
    assert {block.prompt for block in blocks} == {"red circle"} and ack.frame_block is None
    slow.let("blue square")
    assert ack.wait(LONG_S) == ack.frame_block == 5
    blocks += [*stream]
    assert [block.prompt for block in blocks] == ["red circle"] * 5 + ["blue square"] * 3
    assert torch.equal(torch.cat([block.latents for block in blocks], dim=1), told(make, 5, "blue square", 8))
    assert slow.threads[-1].startswith("prompts")


@pytest.mark.parametrize("knobs", [Knobs(), Knobs(late_frames=True)], ids=["at once", "late"])
def test_scheduled_switches_are_exact(make: Make, tiny: Model, slow: SlowEncoder, knobs: Knobs) -> None:
    """Their texts are encoded beside the stream from the start, and their frame block waits for them."""
    config = EngineConfig(knobs=knobs)
    with make(model=replace(tiny, text=slow), preset=config) as session:
        stream = session.stream(6, switches=[Switch(frame_block=3, prompt="blue square")])
        assert slow.event(slow.begun, "blue square").wait(LONG_S)  # before the first frame block is asked for
        first = next(stream)
        slow.let("blue square")
        found = torch.cat([first.latents, *(block.latents for block in stream)], dim=1)
    assert torch.equal(found, told(make, 3, "blue square", 6, preset=config))
    elsewhere = [name for name in slow.threads if not name.startswith("prompts")]
    assert len(elsewhere) <= 1  # the first prompt's, which may begin before the other one or after it


def test_the_first_prompt_is_waited_for(make: Make, tiny: Model, slow: SlowEncoder) -> None:
    slow.go.clear()
    with make(model=replace(tiny, text=slow)) as session:
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(next(session.stream(1)).prompt))
        thread.start()
        assert slow.event(slow.begun, "red circle").wait(LONG_S) and not found
        slow.let("red circle")
        thread.join(LONG_S)
        assert found == ["red circle"]


def test_the_last_prompt_counts(session: Session, slow: SlowEncoder) -> None:
    stream = session.stream(4)
    next(stream)
    first = session.prompt("blue square")
    assert slow.event(slow.begun, "blue square").wait(LONG_S)
    second = session.prompt("green circle")
    slow.let("green circle", "blue square")
    assert second.wait(LONG_S) == 1
    with pytest.raises(SessionError, match="'blue square' takes no effect: another one came"):
        first.wait(LONG_S)
    with pytest.raises(SessionError, match="takes no effect"):
        _ = first.frame_block
    assert [block.prompt for block in stream] == ["green circle"] * 3


def test_an_encoder_that_fails_leaves_the_old_prompt(session: Session, slow: SlowEncoder) -> None:
    slow.fails = {"blue square"}
    stream = session.stream(3)
    next(stream)
    ack = session.prompt("blue square")
    slow.let("blue square")
    with pytest.raises(WeightsError, match="no text for blue square"):
        ack.wait(LONG_S)
    assert [block.prompt for block in stream] == ["red circle"] * 2


def test_closing_lets_a_text_that_is_encoded_go(session: Session, slow: SlowEncoder) -> None:
    next(session.stream(1))
    acks = [session.prompt("blue square")]
    assert slow.event(slow.begun, "blue square").wait(LONG_S)
    acks.append(session.prompt("green circle"))  # waits for its turn
    session.close()
    slow.let("blue square")
    for ack in acks:
        with pytest.raises(SessionError, match="takes no effect"):
            ack.wait(LONG_S)
    assert slow.threads[1:] == ["prompts_0"], "nobody waits for the other text"
