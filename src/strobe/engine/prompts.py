"""Prompts over time: texts and their weights, switches, and the frame block at which each takes effect."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from strobe.cache.policy import Past
from strobe.core.errors import ConfigError, SessionError, unknown_choice
from strobe.engine.config import ModelDefaults


class TextEncoder(Protocol):
    """An encoder of prompts into the text that cross-attention attends to."""

    def check(self, prompts: Sequence[str]) -> None:
        """Check that the encoder can encode prompts, before a stream depends on them.

        Raises:
            ConfigError: a prompt that it cannot encode.
        """

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts to text `[B, L, text_dim]`; padding rows are zeros. Any thread may call it."""

    def ready(self, prompts: Sequence[str]) -> bool:
        """Return whether `encode` takes almost no time: the texts are known, or the encoder is small."""

    def place(self, device: torch.device) -> None:
        """Tell the encoder which device makes frames, after the stream's allocations there; it may choose its own device now."""


_PART: Final = re.compile(r"(?<!\\)\((?P<prompt>(?:[^()\\]|\\.)*):\s*(?P<weight>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*\)")
WEIGHTS_EXAMPLE: Final = '"(a red circle moving left:0.7) (a yellow circle moving left:0.3)"'


def read_weights(prompt: str) -> tuple[tuple[str, float], ...]:
    r"""Split a prompt into prompts and their shares, which sum to 1; needs no model. One without weights is its own only part.

    ``\(`` and ``\)`` are brackets of the text.

    Raises:
        ConfigError: words inside a prompt have a weight, only one prompt has, a prompt is empty, or a weight is negative or no
            number, or all are 0.
    """
    found = [*_PART.finditer(prompt)]
    if found and (len(found) == 1 or _PART.sub("", prompt).strip(" ,\t\n")):
        raise ConfigError(
            f"the prompt {prompt!r} weighs words or one prompt alone, and weights are the shares of several whole prompts: "
            f"{WEIGHTS_EXAMPLE}; leave the weight out, and write \\( and \\) for brackets that are meant"
        )
    parts = [(part["prompt"].strip(), float(part["weight"])) for part in found] or [(prompt, 1.0)]
    total = sum(weight for _, weight in parts)
    if not 0 < total < float("inf") or not all(text and weight >= 0 for text, weight in (parts if found else ())):
        raise ConfigError(
            f"the prompt {prompt!r} needs words in each part, weights of 0 or more, and one above 0, as {WEIGHTS_EXAMPLE}; "
            "nothing is steered away from, because the models are distilled without guidance"
        )
    return tuple((re.sub(r"\\([()])", r"\1", text), weight / total) for text, weight in parts if weight)


def check_prompts(encoder: TextEncoder, prompts: Sequence[str]) -> None:
    """Check prompts, and each part of those that are several, before a stream depends on them.

    Raises:
        ConfigError: a weight cannot be read, or the encoder cannot encode a prompt.
    """
    encoder.check(parts_of(prompts))


def encode_prompts(encoder: TextEncoder, prompts: Sequence[str]) -> Tensor:
    """Encode prompts to text `[B, L, text_dim]` in the encoder's dtype; blends are summed in float64.

    Row `j` of a blend is `sum_i w_i text_i[j]`: rows of its prompts are not moved, and padding counts as the zeros that it is.
    """
    parts = parts_of(prompts)
    texts = encoder.encode(parts)
    rows = dict(zip(parts, texts.double(), strict=True))
    blends = (reduce(torch.add, (weight * rows[text] for text, weight in read_weights(prompt))) for prompt in prompts)
    return torch.stack([*blends]).to(texts.dtype)


def parts_of(prompts: Sequence[str]) -> list[str]:
    """Return the texts that an encoder has to know, each once."""
    return [*dict.fromkeys(text for prompt in prompts for text, _ in read_weights(prompt))]


Mode = Literal["recache", "soft", "interpolate", "shot"]
MODES: dict[Mode, str] = {
    "recache": "what the stream remembers is computed again for the new prompt, in one pass; in a model with shots as soft",
    "soft": "the next frame block follows the new prompt and still remembers the old pictures; this costs nothing",
    "interpolate": "over a few frame blocks more and more denoising steps follow the new prompt, the last steps first",
    "shot": "the next frame block begins a shot, whose first frames are remembered to its end; only in a model with shots",
}
_SWITCH = re.compile(r"\s*(?:(?P<seconds>\d+(?:\.\d*)?|\.\d+)\s*s|block\s*=\s*(?P<block>\d+))\s*:(?P<prompt>.*)", re.DOTALL)
EXAMPLE = '4.5s:"a blue square moving up" or block=12:"a blue square moving up"'


def offered_modes(past: Past) -> dict[str, str]:
    """Return the switch modes that do something of their own in a model with such a past, and what each does."""
    return {str(mode): told for mode, told in MODES.items() if mode != ("recache" if past == "shots" else "shot")}


def check_mode(mode: str, over: int, past: Past | None = None) -> None:
    """Check a switch mode, the number of frame blocks that "interpolate" takes and, where it is known, the past of the model.

    Raises:
        ConfigError: there is no such mode (names the nearest), it is not one of this model, or fewer than one frame block.
    """
    if mode not in MODES:
        raise unknown_choice("switch mode", mode, MODES)
    if mode == "shot" and past not in ("shots", None):
        raise ConfigError(
            "this model has no shots (models of the recipe longlive-2 have them); switch by recache, soft or interpolate"
        )
    if over < 1 or over % 1:
        raise ConfigError(f"a prompt cannot change over {over} frame blocks; give a whole number, at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """New prompts, one per sample, and how they replace the old ones. See `Switch`."""

    prompts: tuple[str, ...]
    mode: Mode
    over: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """A prompt switch at a frame block.

    Args:
        frame_block: number of the first frame block with the new prompt.
        prompt: the new prompt.
        mode: see `MODES`.
        over: frame blocks that "interpolate" takes.

    Raises:
        ConfigError: a value is not allowed.
    """

    frame_block: int
    prompt: str
    mode: Mode = "recache"
    over: int = 4

    def __post_init__(self) -> None:
        check_mode(self.mode, self.over)
        if self.frame_block < 1:
            raise ConfigError(
                f"a switch at frame block {self.frame_block} is too early: block 0 has the first prompt; smallest: 1"
            )


def blocks_for(seconds: float, defaults: ModelDefaults, *, first: int = 0, first_block: int | None = None) -> int:
    """Return how many frame blocks from number `first` on last at least `seconds`.

    Args:
        seconds: of video.
        defaults: frame block, frame rate and stride.
        first: number of the first frame block that counts.
        first_block: latent frames of frame block 0; None: as many as every other.

    Raises:
        ConfigError: `seconds` is not a finite number.
    """
    if not math.isfinite(seconds):
        raise ConfigError(f"{seconds} seconds cannot be counted in frame blocks; leave the length out for an endless stream")
    size, frames = defaults.frame_block, seconds * defaults.fps
    start = size if first_block is None else first_block

    def latents(number: int) -> int:
        return start + (number - 1) * size if number else 0

    count = max(0, int(frames) // (size * defaults.stride.time))
    while defaults.stride.frames(latents(first), latents(first + count) - latents(first)) < frames - 1e-6:
        count += 1
    return count


def blocks_from(
    first: int, num_blocks: int | None, seconds: float | None, defaults: ModelDefaults, first_block: int
) -> Iterable[int]:
    """Return the numbers of `num_blocks` frame blocks, or of as many as last `seconds`, from `first` on; endless without both.

    Raises:
        ConfigError: both are given, or a length that is not positive.
    """
    if num_blocks is not None and seconds is not None:
        raise ConfigError("give num_blocks or seconds, not both")
    if seconds is not None:
        num_blocks = blocks_for(seconds, defaults, first=first, first_block=first_block)
    if num_blocks is None:
        return itertools.count(first)
    if num_blocks < 1:
        raise ConfigError("a stream without a frame block; give num_blocks >= 1 or seconds > 0")
    return range(first, first + num_blocks)


def read_switch(text: str) -> re.Match[str]:
    """Split a switch into `seconds` or `block`, and `prompt`; needs no model.

    Raises:
        ConfigError: it does not read like one.
    """
    found = _SWITCH.fullmatch(text)
    if found is None or not found["prompt"].strip():
        raise ConfigError(f"cannot read the prompt switch {text!r}; write for example {EXAMPLE}")
    return found


def parse_switch(text: str, defaults: ModelDefaults, *, mode: Mode = "recache", first_block: int | None = None) -> Switch:
    """Read a switch such as ``4.5s:a blue square`` or ``block=12:a blue square``; the prompt is the rest of the string.

    A time takes effect at the next frame block; `first_block` is that of `blocks_for`.

    Raises:
        ConfigError: it does not read like that, or the time is before the second frame block.
    """
    found = read_switch(text)
    number = (
        blocks_for(float(found["seconds"]), defaults, first_block=first_block) if found["block"] is None else int(found["block"])
    )
    return Switch(frame_block=number, prompt=found["prompt"].strip(), mode=mode)


def check_switches(switches: Sequence[Switch], past: Past | None = None) -> tuple[Switch, ...]:
    """Sort switches by frame block; `past` is that of the model, if known.

    Raises:
        ConfigError: two of them want the same frame block, or one has a mode that the model has not.
    """
    for switch in switches:
        check_mode(switch.mode, switch.over, past)
    ordered = tuple(sorted(switches, key=lambda switch: switch.frame_block))
    for first, second in pairwise(ordered):
        if first.frame_block == second.frame_block:
            raise ConfigError(
                f"two prompt switches take effect at frame block {first.frame_block}: {first.prompt!r} and {second.prompt!r}; "
                f"keep one, or move one to block={first.frame_block + 1}"
            )
    return ordered


def check_reached(switches: Iterable[Switch], made: int, blocks: Iterable[int]) -> None:
    """Check that a stream reaches the frame block of every switch.

    Args:
        switches: at their frame blocks.
        made: number of the first frame block that is not made yet.
        blocks: numbers of the frame blocks that the stream hands out; endless if no range.

    Raises:
        ConfigError: one would never take effect.
    """
    for switch in switches:
        if isinstance(blocks, range) and switch.frame_block not in range(made, blocks.stop):
            to_make = f"frame blocks {made}..{blocks.stop - 1}" if made < blocks.stop else "no further frame block"
            raise ConfigError(
                f"the switch to {switch.prompt!r} at frame block {switch.frame_block} would never take effect: "
                f"this stream makes {to_make}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """A change from one prompt's text to another's: after `done` of `total` frame blocks. No text between the two is made.

    Args:
        start: text encoder's output for the old prompts [B, L, text_dim].
        target: for the new ones.
    """

    start: Tensor
    target: Tensor
    done: int
    total: int

    @property
    def finished(self) -> bool:
        return self.done == self.total

    @property
    def nearer_to_target(self) -> bool:
        """Whether half of the way is done."""
        return 2 * self.done >= self.total

    @property
    def text(self) -> Tensor:
        """The nearer of both texts."""
        return self.target if self.nearer_to_target else self.start

    def steps(self, num_steps: int) -> int:
        """Return how many of a frame block's denoise steps, from the last on, follow the new prompt: at least one.

        ``max(1, round(num_steps * done / total))``, halves rounded up.
        """
        return max(1, (2 * num_steps * self.done + self.total) // (2 * self.total))

    def to(self, device: torch.device) -> Blend:
        """Copy the blend to another device."""
        return replace(self, start=self.start.to(device), target=self.target.to(device))

    def advance(self) -> Blend:
        """Return the blend one frame block further."""
        return replace(self, done=min(self.done + 1, self.total))


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptAck:
    """Answer to a prompt.

    Args:
        prompts: one per sample.
        mode: how they take over.
        found: number of the first frame block that follows them, once it is known.
    """

    prompts: tuple[str, ...]
    mode: Mode
    found: Future[int] = field(compare=False, repr=False)

    @property
    def frame_block(self) -> int | None:
        """Number of the first frame block that follows the prompt; None while its text is encoded. Raises: see `wait`."""
        return self.found.result() if self.found.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the text is encoded; returns the number of the first frame block that follows it.

        Args:
            timeout: in seconds; None: as long as it takes.

        Raises:
            SessionError: another prompt took its place before it was encoded, or the session was closed.
            StrobeError: the text encoder failed; the old prompt stays.
            TimeoutError: it takes longer.
        """
        return self.found.result(timeout)


Told = tuple[Change, Tensor | None]
"""A change that waits for its frame block, with its text if that is encoded already."""


class Prompting:
    """The prompts of one session; the last one asked for counts.

    Args:
        encoder: of the model.
        open_block: number of the frame block that is made next.
    """

    def __init__(self, encoder: TextEncoder, open_block: int) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()
        self._open_block = open_block
        self._told: Told | None = None
        self._number = 0
        self._coming: Future[int] | None = None
        self._workers: ThreadPoolExecutor | None = None

    @property
    def pending(self) -> Change | None:
        """Change that waits for its frame block; None: there is none."""
        with self._lock:
            return None if self._told is None else self._told[0]

    def ask(self, change: Change, *, wait: bool) -> PromptAck:
        """Accept a change: at once if its text needs no time, else when it is encoded.

        Args:
            change: the prompts were checked.
            wait: encode them now, in this thread.
        """
        ready = self._encoder.ready(parts_of(change.prompts))
        found: Future[int] = Future()
        with self._lock:
            self._number += 1
            number, self._coming = self._number, None
            if not ready and not wait:
                found = self._coming = self._worker().submit(self._encode, number, change)
        if ready or wait:
            found.set_result(self._tell(number, (change, None)) if ready else self._encode(number, change))
        return PromptAck(prompts=change.prompts, mode=change.mode, found=found)

    def encode_ahead(self, prompts: Sequence[str]) -> None:
        """Encode texts that will be asked for later, in parallel to the stream."""
        with self._lock:
            for prompt in prompts:
                if not self._encoder.ready(parts_of([prompt])):
                    self._worker().submit(self._ahead, prompt)

    def settle(self) -> None:
        """Wait until nothing is being encoded. Raises: see `PromptAck.wait`."""
        while (coming := self._coming) is not None:
            try:
                coming.result()
            finally:
                with self._lock:
                    self._coming = None if self._coming is coming else self._coming

    def open(self, frame_block: int, *, first: bool) -> Told | None:
        """Return the change that a frame block about to be made has to follow.

        Args:
            frame_block: its number.
            first: there is no prompt yet; then wait for what is being encoded.
        """
        if first and self.pending is None:
            self.settle()
        with self._lock:
            self._open_block = frame_block + 1
            return self._told

    def made(self, told: Told | None, next_block: int, frame_block: int) -> None:
        """Note how far the stream is; a change that a finished frame block followed no longer waits."""
        with self._lock:
            self._open_block = next_block
            if next_block > frame_block and self._told is told:
                self._told = None

    def reset(self, change: Change | None, open_block: int) -> None:
        """Start anew with a change that waits; texts still being encoded are dropped."""
        with self._lock:
            self._number += 1
            self._told = None if change is None else (change, None)
            self._open_block, self._coming = open_block, None

    def close(self) -> None:
        """Let the worker thread end after its present text."""
        with self._lock:
            self._number += 1
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.shutdown(wait=False)

    def _worker(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prompts")
        return self._workers

    def _ahead(self, prompt: str) -> None:
        if self._workers is not None:  # else the session ended meanwhile
            encode_prompts(self._encoder, [prompt])

    def _encode(self, number: int, change: Change) -> int:
        text = encode_prompts(self._encoder, change.prompts) if number == self._number else None  # nobody would follow it
        return self._tell(number, (change, text))

    def _tell(self, number: int, told: Told) -> int:
        with self._lock:
            if number != self._number:
                raise SessionError(
                    f"the prompt {told[0].prompts[0]!r} takes no effect: another one came, or the session ended, before its "
                    "text was encoded"
                )
            self._told = told
            return self._open_block
