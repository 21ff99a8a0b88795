"""The slot of each latent frame. Plain ints, no torch; frames are counted from the first sink frame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from strobe.core.errors import ConfigError

Past = Literal["kept", "recomputed", "rolling", "shots"]
"""Keys and values of earlier frame blocks are kept, or recomputed from clean latents in every frame block; "rolling": they are
kept, and a pass denoises several frame blocks at different noise levels; "shots": so too, and a shot pins its first frames."""


def check_window(window: int, sink: int, num_frames: int) -> None:
    """Check that a frame block of `num_frames` latent frames fits into a window beside its sink.

    Raises:
        ConfigError: it does not; names the smallest window and the largest sink that would do.
    """
    if num_frames <= window - sink:
        return
    message = (
        f"window {window} with sink {sink} has no room for a frame block of {num_frames} latent frame(s); "
        f"smallest window with sink {sink}: {sink + num_frames}"
    )
    if num_frames <= window:
        message += f"; largest sink with window {window}: {window - num_frames}"
    raise ConfigError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class RingPolicy:
    """A window of latent frames: the first `sink` frames stay, the others take turns in the remaining slots.

    Frame f lives in slot ``f if f < sink else sink + (f - sink) % (window - sink)``. After frames up to `end` are written, the
    sinks and the last ``window - sink`` frames are kept. Slots fill in order, so the kept frames are always the first slots.

    Args:
        window: latent frames attended at most, sink and current frame block included.
        sink: latent frames at the start of the stream that are never evicted.

    Raises:
        ConfigError: the window leaves no slot beside the sink.
    """

    window: int
    sink: int

    def __post_init__(self) -> None:
        if self.sink < 0:
            raise ConfigError(f"sink {self.sink} is negative; smallest sink: 0")
        self.check_block(1)

    @property
    def local(self) -> int:
        """Number of slots behind the sink, which frames reuse in turn."""
        return self.window - self.sink

    def check_block(self, num_frames: int) -> None:
        """Check that a frame block of `num_frames` latent frames fits beside the sink.

        Raises:
            ConfigError: it does not; names the smallest window and the largest sink that would do.
        """
        check_window(self.window, self.sink, num_frames)

    def slot(self, frame: int) -> int:
        """Return the slot of a frame."""
        return frame if frame < self.sink else self.sink + (frame - self.sink) % self.local

    def filled(self, end: int) -> int:
        """Return the number of slots in use once frames ``0 .. end - 1`` were written."""
        return min(end, self.window)

    def frames(self, end: int) -> tuple[int, ...]:
        """Return the frames kept, in slot order, once frames ``0 .. end - 1`` were written."""
        kept = [*range(min(self.sink, end)), *range(max(self.sink, end - self.local), end)]
        return tuple(sorted(kept, key=self.slot))

    def history(self, first: int, end: int) -> range:
        """Return the frames before `first` that are kept behind the sink once frames up to `end` are written."""
        start = max(self.sink, end - self.local)
        return range(start, max(start, first))

    def sink_shift(self, end: int) -> int:
        """Return the number of frames by which sink positions move, to stay next to the window: ``max(0, end - window)``."""
        return max(0, end - self.window)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShotPolicy(RingPolicy):
    """A window of latent frames in shots: beside the sink, the first frames of the present shot stay until the next one begins.

    A new frame takes the slot behind the sink whose frame is the oldest that is not pinned. Positions leap by the sink's length
    with every shot; frames that are kept stand where they stood.

    Args:
        window, sink: see `RingPolicy`.
        held: frame in each slot behind the sink, in order; -1: none yet.
        pinned: first of the frames that the present shot pinned, and how many they are.
        cuts: shots that have begun after the first.

    Source: LongLive 2, `pipeline/causal_diffusion_inference.py` at 134b486 and `wan_5b/modules/causal_model.py` at 153637e, both
    as in yyang181/LongLive (multi_shot_sink, multi_shot_rope_offset: 8 with a sink of 8 in its configs/inference.yaml).
    """

    held: tuple[int, ...] = ()
    pinned: tuple[int, int] = (0, 0)
    cuts: int = 0

    def slot(self, frame: int) -> int:
        """Return the slot of a frame that is kept."""
        return frame if frame < self.sink else self.sink + self.held.index(frame)

    def opened(self, first: int, num_frames: int, *, cut: bool) -> ShotPolicy:
        """Return what is kept once frames `first`, ... are; with `cut` they begin a shot, which pins as many as the sink has."""
        frames = list(self.held or (-1,) * self.local)
        stays = range(self.pinned[0], sum(self.pinned))
        for frame in range(max(first, self.sink), first + num_frames):
            oldest = min((one, slot) for slot, one in enumerate(frames) if one not in stays)
            frames[oldest[1]] = frame
        if not cut:
            return replace(self, held=tuple(frames))
        return replace(self, held=tuple(frames), pinned=(first, min(self.sink, num_frames)), cuts=self.cuts + 1)

    def fault(self, end: int) -> str:
        """Return what cannot be once frames ``0 .. end - 1`` were written, for instance in a damaged file; empty if all can."""
        first, count = self.pinned  # a shot may have kept as many old frames as the sink has
        kept = [frame for frame in self.held if frame != -1]
        stays, newest = range(first, first + count), range(end - self.local + self.sink, end)
        sound = {
            f"{len(self.held)} slots behind the sink": len(self.held) == (self.local if end else 0),
            f"{len(kept)} frames in them": len({*kept}) == len(kept) == min(self.local, max(0, end - self.sink)),
            "a free slot before one in use": (*kept,) == self.held[: len(kept)],
            "frames in them that were not written, or are the sink's": all(self.sink <= frame < end for frame in kept),
            f"{self.cuts} shots begun": 0 <= self.cuts <= end and (self.cuts > 0) == (count > 0),
            f"{count} frames pinned from frame {first} on": 0 <= first <= end - count and 0 <= count <= self.sink,
            "no slot for a frame that stays": all(frame in kept for frame in (*stays, *newest) if frame >= self.sink),
        }
        return next((what for what, right in sound.items() if not right), "")
