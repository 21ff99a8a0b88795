"""Numbers of devices that may share a session, the grid they form, and the distribution of tokens, heads and keys over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from strobe.attention.tree.placement import Span, split
from strobe.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Degrees:
    """A grid of ranks, `tree x ulysses`.

    Args:
        ulysses: ranks that share the heads; divides their number.
        tree: ranks that share the keys of a head.
    """

    ulysses: int
    tree: int

    @property
    def num_ranks(self) -> int:
        """Number of devices of the session."""
        return self.ulysses * self.tree


def legal(
    num_ranks: int, *, num_heads: int, tokens_per_frame: int, sparse: bool = False, ulysses: int | None = None
) -> Degrees | str:
    """Return the degrees in which a number of ranks would share a session, or the reason why it cannot.

    Args:
        num_ranks: one device each.
        num_heads: of the transformer.
        tokens_per_frame: of a latent frame; every rank works on as many of each frame, up to one.
        sparse: the past is attended in tiles (`EngineConfig.sparsity`), which must not be cut.
        ulysses: ranks that share the heads; None: as many as can, `gcd(num_heads, num_ranks)`.
    """
    most = gcd(num_heads, num_ranks)
    share = most if ulysses is None else ulysses
    refusal = ""
    if num_ranks < 1:
        refusal = "there is no session without a rank"
    elif num_ranks > tokens_per_frame:
        refusal = f"a latent frame has {tokens_per_frame} tokens, so some ranks would have none"
    elif share < 1 or num_ranks % share or num_heads % share:
        refusal = f"ulysses {share} divides not both the {num_heads} heads and the {num_ranks} ranks; the most is {most}"
    elif sparse and share < num_ranks:
        rule = f"ulysses must be {num_ranks}" if most == num_ranks else f"the ranks must divide the {num_heads} heads"
        refusal = f"sparse attention needs all keys of a head on one rank, so {rule}"
    return refusal or Degrees(ulysses=share, tree=num_ranks // share)


def legal_degrees(
    num_heads: int, tokens_per_frame: int, max_ranks: int = 16, *, sparse: bool = False
) -> dict[int, Degrees | str]:
    """Return the degrees, or the reason why there are none, of every number of ranks from 1 to `max_ranks`."""
    sizes = {"num_heads": num_heads, "tokens_per_frame": tokens_per_frame}
    return {number: legal(number, sparse=sparse, **sizes) for number in range(1, max_ranks + 1)}


def degrees(
    num_ranks: int, *, num_heads: int, tokens_per_frame: int, sparse: bool = False, ulysses: int | None = None
) -> Degrees:
    """Return the degrees in which a number of ranks shares a session.

    Args: see `legal`.

    Raises:
        ConfigError: it cannot; says why, and names the nearest numbers that can.
    """
    found = legal(num_ranks, num_heads=num_heads, tokens_per_frame=tokens_per_frame, sparse=sparse, ulysses=ulysses)
    if isinstance(found, Degrees):
        return found
    around = legal_degrees(num_heads, tokens_per_frame, 2 * max(num_ranks, 1), sparse=sparse)
    others = [number for number, each in around.items() if isinstance(each, Degrees)]
    below = max((number for number in others if number < num_ranks), default=0)
    above = min((number for number in others if number > num_ranks), default=0)
    near = " or ".join(str(number) for number in (below, above) if number)
    alone = ulysses is not None and num_ranks in others
    hint = f"leave ulysses to gcd({num_heads}, {num_ranks})" if alone else f"use {near}"
    raise ConfigError(f"{num_ranks} ranks cannot share this session: {found}; {hint}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The tokens, heads and keys of one rank.

    Every latent frame is cut alike: rank r works on the tokens `tokens(r)` of each, and the ranks of one row of the grid keep the
    keys and values of their tokens, each for the heads of its column. So a key is made in the row that keeps it, and has one
    owner, sink and ring are balanced at any time, and nothing is kept twice.

    Args:
        degrees: the grid; rank = row * ulysses + column.
        rank: this one.
        num_heads: of the transformer.
        tokens_per_frame: of a latent frame.
    """

    degrees: Degrees
    rank: int
    num_heads: int
    tokens_per_frame: int

    @property
    def tokens(self) -> tuple[Span, ...]:
        """Range of tokens `[start, stop)` of a frame, for every rank."""
        return split(self.tokens_per_frame, self.degrees.num_ranks)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tokens of a frame, for every rank."""
        return tuple(stop - start for start, stop in self.tokens)

    @property
    def mine(self) -> Span:
        """Range of tokens of a frame of this rank."""
        return self.tokens[self.rank]

    @property
    def row(self) -> range:
        """Ranks that keep the same tokens as this one, for other heads."""
        first = self.rank - self.rank % self.degrees.ulysses
        return range(first, first + self.degrees.ulysses)

    def kept(self, rank: int | None = None) -> Span:
        """Return the range of tokens of a frame whose keys a rank's row keeps."""
        row, width = (self.rank if rank is None else rank) // self.degrees.ulysses, self.degrees.ulysses
        return self.tokens[row * width][0], self.tokens[(row + 1) * width - 1][1]

    def heads(self, rank: int | None = None) -> Span:
        """Return the range of heads of a rank's column."""
        column = (self.rank if rank is None else rank) % self.degrees.ulysses
        return split(self.num_heads, self.degrees.ulysses)[column]


def cut(latents: Tensor, patch: tuple[int, int], span: Span) -> Tensor:
    """Cut the patches `span` out of every frame of latents `[B, F, C, Y, X]`, laid side by side: `[B, F, C, ph, n * pw]`.

    A transformer makes the same tokens of them as of the whole, for it knows places by their rotations alone.
    """
    cells = latents.unflatten(3, (-1, patch[0])).unflatten(5, (-1, patch[1]))  # [B, F, C, h, ph, w, pw]
    line = cells.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5)  # [B, F, C, ph, h * w, pw]
    mine: Tensor = line[:, :, :, :, span[0] : span[1]].flatten(4)
    return mine


def join(parts: Sequence[Tensor], patch: tuple[int, int], height: int) -> Tensor:
    """Join every rank's `[B, F, C, ph, n * pw]` of `cut`, in order, to `[B, F, C, Y, X]`, `height` patches high."""
    line = torch.cat([part.unflatten(4, (-1, patch[1])) for part in parts], dim=4)  # [B, F, C, ph, h * w, pw]
    latents: Tensor = line.unflatten(4, (height, -1)).transpose(3, 4).flatten(5, 6).flatten(3, 4)
    return latents


def rows(rotations: Tensor, frames: int, span: Span) -> Tensor:
    """Select from rotations `[F * N, ...]` those of the tokens `span` of every frame."""
    mine: Tensor = rotations.unflatten(0, (frames, -1))[:, span[0] : span[1]].flatten(0, 1)
    return mine
