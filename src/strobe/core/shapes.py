"""Conversions between pixels, latents and tokens, and between latent frames and frames."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.core.errors import ShapeError


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenGrid:
    """Tokens of one or more latent frames: `frames` x `height` x `width`."""

    frames: int
    height: int
    width: int

    @property
    def tokens_per_frame(self) -> int:
        return self.height * self.width

    @property
    def num_tokens(self) -> int:
        return self.frames * self.height * self.width


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentShape:
    """Latents `[F, C, Y, X]`."""

    frames: int
    channels: int
    height: int
    width: int

    def token_grid(self, patch: tuple[int, int]) -> TokenGrid:
        """Return the token grid, in which each token covers `patch` latent cells of one latent frame."""
        if self.height % patch[0] or self.width % patch[1]:
            raise ShapeError(
                f"latent size {self.height}x{self.width} is not a multiple of the patch {patch[0]}x{patch[1]}; "
                f"choose a frame size that is"
            )
        return TokenGrid(frames=self.frames, height=self.height // patch[0], width=self.width // patch[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class VaeStride:
    """Pixels per latent cell and frames per latent frame. The first latent frame of a video is one frame."""

    time: int = 4
    space: int = 8

    def frames(self, first_latent: int, num_latents: int) -> int:
        """Return the number of frames decoded from latent frames `first_latent .. first_latent + num_latents - 1`."""
        return num_latents * self.time - (self.time - 1 if first_latent == 0 and num_latents > 0 else 0)

    def latents_for(self, frames: int) -> int:
        """Return the fewest latent frames that decode to at least `frames` frames."""
        return 1 + max(0, -(-(frames - 1) // self.time))

    def latent_size(self, height: int, width: int) -> tuple[int, int]:
        """Return latent height and width of a frame of `height` x `width` pixels."""
        if height % self.space or width % self.space or height <= 0 or width <= 0:
            raise ShapeError(f"frame size {height}x{width} is not a positive multiple of {self.space} pixels")
        return height // self.space, width // self.space
