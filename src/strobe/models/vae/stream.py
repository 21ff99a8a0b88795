"""Piecewise decoding of a stream of latents, with any video autoencoder that follows the protocol."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn

from strobe.core.errors import ShapeError
from strobe.core.shapes import VaeStride

Memories = tuple[Tensor | None, ...]
"""What a decoder keeps of the frames before, in an order of its own; None is a memory of nothing. Never written in place."""


class VideoDecoder(Protocol):
    """The decoder of a video autoencoder, causal in time: its memories hold all that it knows of the past."""

    @property
    def stride(self) -> VaeStride:
        """Pixels and frames per latent."""

    @property
    def latent_channels(self) -> int:
        """Channels of a latent frame."""

    def empty_memories(self) -> Memories:
        """Return the memories before a stream's first latent frame."""

    def decode_piece(self, latents: Tensor, memories: Memories, *, first: bool) -> tuple[Tensor, Memories]:
        """Decode latents `[B, F, C, Y, X]`, the `first` of a stream or not, to frames in [0, 1] and the next memories.

        Latents are cast to the dtype of the weights. Frames are `[B, F', 3, Y', X']`: `stride.time` per latent frame, one for
        the stream's first.
        """


class StreamingDecoder:
    """A decoder of a stream of latents piece by piece, with the result of one call over all of it.

    Weights are shared, memories are not: two decoders over one autoencoder are two streams.

    Args:
        vae: what decodes.
    """

    def __init__(self, vae: VideoDecoder) -> None:
        self.vae = vae
        self.reset()

    def reset(self) -> None:
        """Forget the stream: the next latent frame is the first of another one."""
        self.started = False
        self.memories = self.vae.empty_memories()

    def push(self, latents: Tensor) -> Tensor:
        """Decode latents `[B, F, C, Y, X]` to frames `[B, F', 3, Y', X']` in [0, 1]: `stride.time` per latent frame, first 1.

        Raises:
            ShapeError: the latents are not those of this autoencoder, or have not the batch and size of the stream so far.
        """
        check_latents(latents, self.vae.latent_channels)
        frames, memories = self.vae.decode_piece(latents, self.memories, first=not self.started)
        self.started, self.memories = True, memories
        return frames

    def state(self) -> tuple[bool, Memories]:
        """Return the state from which a copy of this decoder goes on; tensors are never written in place and may be shared."""
        return self.started, self.memories

    def load_state(self, state: tuple[bool, Memories]) -> None:
        """Go on from the state of a decoder with the same weights."""
        self.started, self.memories = state

    @property
    def state_bytes(self) -> int:
        """Size of the memories at present, bytes."""
        return sum(memory.untyped_storage().nbytes() for memory in self.memories if memory is not None)


def check_latents(latents: Tensor, channels: int) -> None:
    """Check that latents are `[B, F, channels, Y, X]` with at least one frame.

    Raises:
        ShapeError: they are not.
    """
    if latents.dim() != 5 or latents.shape[2] != channels or not latents.shape[1]:
        raise ShapeError(f"latents: got shape {tuple(latents.shape)}, expected [B, F, {channels}, Y, X] with F >= 1")


def check_frames(frames: Tensor, stride: VaeStride, *, first: bool) -> None:
    """Check that frames are `[B, F, 3, Y, X]`, F a multiple of `stride.time`, plus one at the start of a video.

    Raises:
        ShapeError: they are not, or Y or X is no multiple of `stride.space`.
    """
    lead = 1 if first else 0
    if frames.dim() != 5 or frames.shape[2] != 3 or (frames.shape[1] - lead) % stride.time or not frames.shape[1]:
        count = f"1 + {stride.time} n" if first else f"{stride.time} n"
        raise ShapeError(f"frames: got shape {tuple(frames.shape)}, expected [B, {count}, 3, Y, X]")
    stride.latent_size(frames.shape[3], frames.shape[4])


def check_stream(x: Tensor, memory: Tensor) -> None:
    """Check that a piece `[B, ..., Y, X]` has the batch and size of its memory `[B, ..., Y, X]`.

    Raises:
        ShapeError: another batch or size.
    """
    given, before = (x.shape[0], *x.shape[-2:]), (memory.shape[0], *memory.shape[-2:])
    if given != before:
        raise ShapeError(
            f"this piece has batch, height, width {given} and the stream so far {before} (at the first convolution); "
            "open another stream for another size"
        )


@lru_cache
def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values as float32 [1, 1, C, 1, 1], cached; not a module's buffer, which a cast to bfloat16 would round."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device).view(1, 1, -1, 1, 1)


def predict_state_bytes(vae: VideoDecoder, batch: int, latent_size: tuple[int, int]) -> int:
    """Return the bytes of a stream's memories in the steady state, from those of a frame of one latent cell.

    Args:
        vae: an autoencoder on the meta device, in its dtype. It moves to the CPU, with whatever is there as weights:
            arithmetic on the meta device would import torch's compiler, which takes longer.
        batch: streams in lockstep.
        latent_size: height and width of a latent frame.
    """
    assert isinstance(vae, nn.Module)
    vae.load_state_dict({name: torch.empty(t.shape, dtype=t.dtype) for name, t in vae.state_dict().items()}, assign=True)
    decoder = StreamingDecoder(vae)
    with torch.inference_mode():
        for _ in range(2):
            decoder.push(torch.zeros(1, 1, vae.latent_channels, 1, 1))
    return decoder.state_bytes * batch * latent_size[0] * latent_size[1]
