"""Decoding of latents to pixel frames, at once or in parallel to other work."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Final, NamedTuple

import torch
from torch import Tensor

from strobe.core.errors import SessionError
from strobe.core.spans import DECODE_WAIT, VAE_DECODE, span
from strobe.engine.resolve import ResolvedConfig
from strobe.models.vae.kernels.api import unavailable
from strobe.models.vae.stream import Memories, StreamingDecoder
from strobe.models.vae.taew import Taew
from strobe.models.vae.tiny import TinyVAE
from strobe.models.vae.wan.autoencoder import WanVAE

_GRAPHS: Final = 1024
"""Compiled graphs that a process may keep of a decoder: two for each size, batch and dtype that a session had."""

VideoVAE = TinyVAE | WanVAE | Taew
DecoderState = tuple[bool, Memories]


class Decoded(NamedTuple):
    """Decoded frames uint8 [B, F', Y, X, 3] on the CPU, the number of their latent frames, and the decoder state after them.

    `ends`: the last frame of each latent frame, float32 [B, F, 3, Y, X] in [0, 1] where they were decoded; None if unwanted.
    """

    frames: Tensor
    num_latents: int
    state: DecoderState
    ends: Tensor | None


def levels(frames: Tensor) -> Tensor:
    """Convert frames [B, F, 3, Y, X] in [0, 1] to uint8 [B, F, Y, X, 3] on the same device."""
    return (frames.float() * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).contiguous()


def decode_stream(device: torch.device) -> torch.cuda.Stream:
    """Create a stream for a decoder, before others: frames are there sooner, and the passes beside them end at the same time."""
    return torch.cuda.Stream(device, priority=-1)


class FrameDecoder:
    """A decoder of frame blocks of latents. It holds no stream state: that goes in and comes out as a value.

    With knob `overlap_decode` the work runs beside the caller's: in a worker thread on a CPU, on a side stream on a GPU.

    Args:
        vae: weights; left as they are.
        config: device, dtype and knobs.
    """

    def __init__(self, vae: VideoVAE, config: ResolvedConfig) -> None:
        self._device = config.device
        self._vae = copy.deepcopy(vae).to(device=self._device, dtype=config.dtype).requires_grad_(False).eval()
        if isinstance(self._vae, WanVAE) and self._device.type == "cuda":
            self._vae.channels_last()
        self._compiled, self._levels = False, levels
        if config.knobs.compile and isinstance(self._vae, WanVAE):
            if not unavailable("triton", self._device, config.dtype):
                self._vae.fuse_decoder()
            else:
                self._vae.compile_decoder()
                self._levels = torch.compile(levels, dynamic=False, fullgraph=True)
                self._compiled = True
        self._config = config
        self._open()

    def _open(self) -> None:
        device, overlap = self._device, self._config.knobs.overlap_decode
        self._worker = ThreadPoolExecutor(1, "strobe-decode") if overlap and device.type == "cpu" else None
        self._side = decode_stream(device) if overlap and device.type == "cuda" else None

    @torch.inference_mode()  # as in a stream: another kind of tensor would be compiled for again
    def warm_up(self, pieces: Sequence[tuple[int, ...]]) -> None:
        """Decode zeros, so that compiling and tuning happen before the stream; does nothing where nothing is compiled.

        Args:
            pieces: shapes [B, F, C, Y, X] of the latents of a stream's first frame blocks, in order.
        """
        state = self.state()
        fused = isinstance(self._vae, WanVAE) and self._vae.fused is not None
        for shape in pieces if self._compiled or fused else ():
            for decoded in self.start(torch.zeros(shape, device=self._device), state):
                state = decoded.state

    def start(self, latents: Tensor, state: DecoderState) -> Iterator[Decoded]:
        """Start to decode latents [B, F, C, Y, X] in parallel to other work, or, where that is off, at the time of the wait.

        Args:
            latents: float32, on the device of the configuration; kept until the last piece is there.
            state: after the frame block before, or `state()` at the start of a stream.

        Returns:
            pieces to wait for. Beside other work it is one; else one per decoder call, so that whoever lets go of each state for
            the next holds it only twice while it is made.
        """
        if self._worker is not None:
            return _waited(self._worker.submit(self._decode, latents, state).result)
        if self._side is not None:
            return _waited(self._start_beside(latents, state, self._side))
        return self._one_by_one(latents, state)

    def _one_by_one(self, latents: Tensor, state: DecoderState) -> Iterator[Decoded]:
        with span(VAE_DECODE):
            for piece in self._calls(latents):
                decoded = self._push(piece, state)
                state = decoded.state
                yield decoded

    def _calls(self, latents: Tensor) -> Sequence[Tensor]:
        return [latents] if self._config.knobs.block_decode else torch.split(latents, 1, dim=1)

    def state(self) -> DecoderState:
        """Return the decoder state at the start of a stream."""
        return StreamingDecoder(self._vae).state()

    @torch.inference_mode()
    def copied(self, state: DecoderState) -> DecoderState:
        """Copy a state."""
        started, memories = state
        return started, tuple(memory if memory is None else memory.clone() for memory in memories)

    @torch.inference_mode()
    def adopt(self, state: DecoderState) -> DecoderState:
        """Convert a state from another device or dtype, or from a file, for this decoder.

        Memories get the layout that this decoder leaves them in, so that nothing is compiled again.

        Raises:
            SessionError: it has no memories, for it is that of a device that does not decode.
        """
        started, memories = state
        if len(memories) != len(self.state()[1]):
            raise SessionError("this snapshot has no memory of its frames: another device decoded them; take that of rank 0")
        layout = self._vae.memory_format if isinstance(self._vae, WanVAE) else torch.contiguous_format
        return started, tuple(None if memory is None else self._own(memory, layout) for memory in memories)

    def _own(self, memory: Tensor, layout: torch.memory_format) -> Tensor:
        memory = memory.to(self._device, self._config.dtype).contiguous(memory_format=layout)
        return memory if memory.is_inference() else memory.clone()

    def share(self) -> FrameDecoder:
        """Return a decoder with the same weights and a worker of its own."""
        other = copy.copy(self)
        other._open()
        return other

    def close(self) -> None:
        """Shut down the worker thread."""
        if self._worker is not None:
            self._worker.shutdown()

    def _decode(self, latents: Tensor, state: DecoderState) -> Decoded:
        with span(VAE_DECODE):
            return self._push(latents, state)

    def _start_beside(self, latents: Tensor, state: DecoderState, side: torch.cuda.Stream) -> Callable[[], Decoded]:
        side.wait_stream(torch.cuda.current_stream(latents.device))
        with torch.cuda.stream(side), span(VAE_DECODE):
            decoded = self._push(latents, state)
            copied = torch.cuda.Event()
            copied.record(side)

        def finish() -> Decoded:
            copied.synchronize()
            return decoded

        return finish

    @torch.inference_mode()
    def _push(self, latents: Tensor, state: DecoderState) -> Decoded:
        decoder = StreamingDecoder(self._vae)
        decoder.load_state(state)
        limit = torch._dynamo.config.patch(recompile_limit=_GRAPHS) if self._compiled else nullcontext()  # of this thread
        with limit:
            dense = [each.clone(memory_format=torch.contiguous_format) for each in self._calls(latents)]  # or compiled for again
            frames = torch.cat([decoder.push(piece) for piece in dense], dim=1)
            made, beside = self._levels(frames), self._side is not None
            with torch.inference_mode(False):  # so that its owner may draw on it
                pixels = torch.empty(made.shape, dtype=made.dtype, pin_memory=beside)
            pixels.copy_(made, non_blocking=beside)
        ends = None
        if self._config.num_recomputed:
            step = self._vae.stride.time
            ends = frames[:, (frames.shape[1] - 1) % step :: step].float().clone()
        return Decoded(pixels, latents.shape[1], decoder.state(), ends)

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode single frames [B, 3, Y, X] in [0, 1], each a video of its own, to latents [B, 1, C, Y', X'], float32."""
        assert not isinstance(self._vae, Taew), "it was checked that the autoencoder encodes"
        own = frames.to(self._device, self._config.dtype).unsqueeze(1)
        return self._vae.encode(own).float()


def _waited(finish: Callable[[], Decoded]) -> Iterator[Decoded]:
    with span(DECODE_WAIT):
        decoded = finish()
    yield decoded
