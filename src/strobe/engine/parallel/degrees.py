"""Numbers of devices that may share a session, and the grid they form. Plain ints, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Legal:
    """A number of ranks with the grid in which they share a session, or the reason why they cannot.

    Args:
        num_ranks: how many.
        degrees: how they would; None: they cannot.
        reason: why so, or why not.
    """

    num_ranks: int
    degrees: Degrees | None
    reason: str


def legal(num_ranks: int, *, num_heads: int, tokens_per_frame: int, sparse: bool = False, ulysses: int | None = None) -> Legal:
    """Say how a number of ranks would share a session, or why it cannot.

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
    if refusal:
        return Legal(num_ranks=num_ranks, degrees=None, reason=refusal)
    chosen = Degrees(ulysses=share, tree=num_ranks // share)
    return Legal(num_ranks=num_ranks, degrees=chosen, reason=_because(chosen, num_heads))


def legal_degrees(num_heads: int, tokens_per_frame: int, max_ranks: int = 16, *, sparse: bool = False) -> tuple[Legal, ...]:
    """List every number of ranks from 1 to `max_ranks`, with its degrees or the reason why there are none."""
    sizes = {"num_heads": num_heads, "tokens_per_frame": tokens_per_frame}
    return tuple(legal(number, sparse=sparse, **sizes) for number in range(1, max_ranks + 1))


def degrees(
    num_ranks: int, *, num_heads: int, tokens_per_frame: int, sparse: bool = False, ulysses: int | None = None
) -> Degrees:
    """Return the degrees in which a number of ranks shares a session.

    Args: see `legal`.

    Raises:
        ConfigError: it cannot; says why, and names the nearest numbers that can.
    """
    found = legal(num_ranks, num_heads=num_heads, tokens_per_frame=tokens_per_frame, sparse=sparse, ulysses=ulysses)
    if found.degrees is not None:
        return found.degrees
    around = legal_degrees(num_heads, tokens_per_frame, 2 * max(num_ranks, 1), sparse=sparse)
    others = [each.num_ranks for each in around if each.degrees is not None]
    below = max((number for number in others if number < num_ranks), default=0)
    above = min((number for number in others if number > num_ranks), default=0)
    near = " or ".join(str(number) for number in (below, above) if number)
    alone = ulysses is not None and num_ranks in others
    hint = f"leave ulysses to gcd({num_heads}, {num_ranks})" if alone else f"use {near}"
    raise ConfigError(f"{num_ranks} ranks cannot share this session: {found.reason}; {hint}")


def _because(chosen: Degrees, num_heads: int) -> str:
    if chosen.num_ranks == 1:
        return "one device has everything"
    heads = f"each has {num_heads // chosen.ulysses} of {num_heads} heads" if chosen.ulysses > 1 else ""
    keys = f"each has 1/{chosen.tree} of the keys of its heads" if chosen.tree > 1 else ""
    return ", ".join(filter(None, (heads, keys)))
