"""One attention call that is measured by itself: its sizes, and how often it is called."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.tolerances import TOLERANCES


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """The call that every implementation computes.

    Args:
        q_tokens: tokens of the queries.
        kv_tokens: tokens of the keys and values; as many as of the queries by default.
        num_heads: heads of the queries.
        num_kv_heads: heads of the keys and values; as many as of the queries by default.
        head_dim: channels of a head.
        batch: samples.
        dtype: auto, bfloat16, float16, float32 or float64; auto is bfloat16 on a GPU and float32 on a CPU.
        grid: tokens in time, height and width, which sparse attention needs.
        sparsity: share of the key tiles that sparse attention skips.
        seed: of q, k and v.
    """

    q_tokens: int = 1024
    kv_tokens: int | None = None
    num_heads: int = 12
    num_kv_heads: int | None = None
    head_dim: int = 128
    batch: int = 1
    dtype: str = "auto"
    grid: tuple[int, int, int] | None = None
    sparsity: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        for size in ("q_tokens", "kv_tokens", "num_heads", "head_dim", "batch", "num_kv_heads"):
            if (number := getattr(self, size)) is not None and number < 1:
                raise ConfigError(f"{size} of an attention call: got {number}; give 1 or more")
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"sparsity: got {self.sparsity}; give a share from 0 (dense) to below 1")
        if self.dtype != "auto" and self.dtype not in TOLERANCES["call"]:
            raise unknown_choice("dtype", self.dtype, ["auto", *TOLERANCES["call"]])
        if self.grid is not None and not prod(self.grid) == self.q_tokens == self.num_keys:
            raise ConfigError(
                f"a grid of {'x'.join(map(str, self.grid))} has {prod(self.grid)} tokens; got {self.q_tokens} of q and "
                f"{self.num_keys} of k; give as many of each"
            )

    @property
    def num_keys(self) -> int:
        return self.kv_tokens or self.q_tokens

    @property
    def num_key_heads(self) -> int:
        return self.num_kv_heads or self.num_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionPlan:
    """How often it is called, timed and traced.

    Args:
        rounds: palindromes of laps, A B B A; an interval needs two.
        calls: timed calls of an implementation in a lap.
        cold: overwrite a GPU's cache before each call; without it, it holds what the call before left.
        traced_calls: calls of each implementation in its trace, a run of its own; 0: no trace.
    """

    rounds: int = 4
    calls: int = 60
    cold: bool = False
    traced_calls: int = 10

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.calls < 1 or self.traced_calls < 0:
            raise ConfigError(f"give 1 round and 1 call or more, got {self.rounds} and {self.calls}")
