"""Messages of the tree benchmark: the task of a cell, and the result that each of its ranks writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from strobe.core.errors import ConfigError, unknown_choice
from strobe.perf.records.record import Header, Links, Mode, Prediction, RankCall

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
OURS: Final = ("allgather", "allreduce3", "alltoall", "ring", "ulysses")
PEER: Final = "peer:ring-attention-pytorch"
BY_NAME: Final = "auto"
"""The contestant that runs only if named: it repeats another."""
CONTESTANTS: Final = (*OURS, PEER)
MIN_ROUNDS: Final = 3
MAX_ROUNDS: Final = 8
TASK: Final = "task.json"


class RankedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call on some ranks.

    Args:
        seq_len: keys of all ranks together; each holds a run of them, in rank order.
        placement: queries and result `replicated`, or a run of rows on each rank: `sequence`.
    """

    world_size: int
    seq_len: int
    q_len: int = 1
    heads: int = 8
    kv_heads: int = 8
    dim: int = 64
    batch: int = 1
    dtype: str = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    placement: Literal["replicated", "sequence"] = "replicated"

    def __post_init__(self) -> None:
        for name in ("world_size", "seq_len", "q_len", "heads", "kv_heads", "dim", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.heads % self.kv_heads:
            raise ConfigError(f"kv_heads: got {self.kv_heads}, expected a divisor of heads {self.heads}")
        if self.dtype not in DTYPES:
            raise unknown_choice("dtype", self.dtype, DTYPES)

    @property
    def name(self) -> str:
        groups = "" if self.kv_heads == self.heads else f"kv{self.kv_heads}"
        rows = "" if self.placement == "replicated" else "_rows"
        return (
            f"ws{self.world_size}_n{self.seq_len}_q{self.q_len}_h{self.heads}{groups}x{self.dim}_b{self.batch}"
            f"_{self.dtype}_{self.device}{rows}"
        )


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """How to measure a cell. All cells of a folder share it.

    Args:
        contestants: allgather, allreduce3, alltoall, ring, ulysses, peer:ring-attention-pytorch; all by default;
            auto (with the links measured here) by name. Ratios are against the first that can run.
        profile: also take calls apart, free-running and serialised, and time the guide's blocks.
        iterations: timed calls of each strategy; three palindromes at least, whatever it says.
        seed: of all tensors.
        delay: RANK MS: hold a rank back before each call, to see what a straggler looks like.

    Raises:
        ConfigError: an unknown strategy, none, no iteration, or a delay below 0.
    """

    contestants: tuple[str, ...] = CONTESTANTS
    profile: bool = False
    iterations: int = 20
    seed: int = 0
    delay: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        for name in self.contestants:
            if name not in (*CONTESTANTS, BY_NAME):
                raise unknown_choice("strategy", name, (*CONTESTANTS, BY_NAME))
        held_ms = self.delay[1] if self.delay else 0.0
        if not self.contestants or self.iterations < 1 or held_ms < 0:
            raise ConfigError(
                f"give at least one strategy, one iteration and a delay of 0 or more, got {len(self.contestants)}, "
                f"{self.iterations}, {held_ms:g}"
            )

    @property
    def rounds(self) -> int:
        return max(MIN_ROUNDS, min(MAX_ROUNDS, self.iterations // 4))

    @property
    def calls(self) -> int:
        """Calls of a contestant in each of its two places of a palindrome."""
        return max(1, math.ceil(self.iterations / (2 * self.rounds)))


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a rank, in `task.json` of its folder; `timeout_s`: of a wait for another rank."""

    shape: RankedCall
    how: TreeSettings
    timeout_s: float = 30.0


class RankErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a contestant on one rank against float64.

    Args:
        refused: why it takes no part; empty if it ran.
        impossible: it cannot run here, and said so; False if it tried.
        error, limit: largest absolute error, and what is allowed.
        lse_error, lse_limit: the same for the lse, where it has one.
        bits: checksum of the result, the same on ranks whose results are equal.
    """

    refused: str = ""
    impossible: bool = False
    error: float = 0.0
    limit: float = 0.0
    lse_error: float | None = None
    lse_limit: float = 0.0
    bits: int = 0

    @property
    def passed(self) -> bool:
        """Whether it ran and its errors are within their limits; NaN is not."""
        return not self.refused and self.error <= self.limit and (self.lse_error is None or self.lse_error <= self.lse_limit)


class RankResult(msgspec.Struct, kw_only=True):
    """Result of a rank, in `rankN.json`.

    Args:
        error: why it ended early; empty if it did not.
        header: header of the records, from rank 0.
        laps: by contestant, in palindromes: ns of each call.
        apart: calls taken apart, by mode and contestant.
        blocks: times of the guide's `Timer` blocks, by mode and block, ms.
        links: links that `measure_links` found, and the strategy that `auto` takes with them.
        versions: versions of the libraries of contestants that are not ours.
    """

    rank: int
    error: str = ""
    header: Header | None = None
    checks: dict[str, RankErrors] = {}
    laps: dict[str, list[list[int]]] = {}
    apart: dict[Mode, dict[str, list[RankCall]]] = {}
    blocks: dict[Mode, dict[str, list[float]]] = {}
    links: Links | None = None
    predicted: dict[str, Prediction] = {}
    versions: dict[str, str] = {}
