"""Options of sparse layers, and the facts of a forward pass, which are in the rotary embedding that every layer receives."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

import torch
from diffusers import DiffusionPipeline, ModularPipeline
from torch import Tensor, nn

from strobe.attention.sparse.coarse import Forced, budget, forced_blocks
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.types import traced
from strobe.core.errors import ConfigError, ShapeError

Rope = tuple[Tensor, Tensor]
Triple = tuple[int, int, int]
TileName = tuple[int, ...] | int | Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseOptions:
    """Options of the layers' sparse attention.

    Args:
        sparsity: share of the key tiles that a sparse layer skips.
        tile: as in `video_sparse_attention`.
        impl: of the fine stage, as in `video_sparse_attention`.
        forced: key tiles that are selected whatever they score.
        dense_steps: denoise steps in which every layer is dense, counted from 0.
        dense_layers: layers that are dense in every step, counted from 0.
        dense_frames: frames of tokens whose queries attend to every token, counted from 0, or backward from -1.
        pool_skipped: as in `video_sparse_attention`.
        kept: of a calibration, the key tiles of each head by step and layer; `sparsity` is what they skip, in the mean; None
            without.
        tiles: key tiles that there were then.
        thread: the one whose calls are calibrated, while the processors that were replaced compute those of others; None without.
    """

    sparsity: float
    tile: TileName
    impl: str
    forced: Forced
    dense_steps: frozenset[int]
    dense_layers: frozenset[int]
    dense_frames: frozenset[int] = frozenset()
    pool_skipped: bool = False
    kept: Mapping[int, Mapping[str, tuple[int, ...]]] | None = None
    tiles: int = 0
    thread: int | None = None

    def check_grid(self, grid: Triple) -> None:
        """Check a grid against what was asked for, before any step of it.

        Raises:
            ShapeError: the tile is larger than the grid.
            ConfigError: more key tiles are forced than the sparsity selects.
        """
        layout = tile_layout(grid, self.tile)
        if self.tile != "auto" and any(side > size for side, size in zip(layout.tile, grid, strict=True)):
            raise ShapeError(
                f"tile: {layout.tile} is larger than the video's grid of {grid} tokens in (time, height, width); "
                "give a smaller tile, or tile='auto'"
            )
        if self.sparsity and self.kept is None and not traced():
            forced_blocks(self.forced, layout, layout, budget(None, self.sparsity, 1, layout.num_tiles))

    def dense_rows(self, grid: Triple) -> tuple[tuple[int, int], ...]:
        """Return the runs of tokens, from and to, of a grid in raster order that the dense frames are."""
        frames, of_one = grid[0], grid[1] * grid[2]
        if missing := sorted(each for each in self.dense_frames if not -frames <= each < frames):
            given = ", ".join(map(str, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ConfigError(f"dense_frames: got {given}, and the video has {frames} frames of tokens, 0 to {frames - 1}")
        chosen = sorted({each % frames for each in self.dense_frames})
        begins = [each for each in chosen if each - 1 not in chosen]
        ends = [each + 1 for each in chosen if each + 1 not in chosen]
        return tuple((begin * of_one, end * of_one) for begin, end in zip(begins, ends, strict=True))


def numbers_of(name: str, given: int | Iterable[int], most: int | None = None, *, backward: bool = False) -> frozenset[int]:
    """Return the numbers that an option names: the first `given`, or those listed.

    Args:
        most: numbers from 0 to below this are allowed; None for any.
        backward: -1 and below may be listed too, which count from the last.
    """
    wanted = "a number of them, counted from the first, or their numbers, counted from 0"
    wanted += ", or backward from -1" * backward
    if isinstance(given, bool) or not isinstance(given, (int, Iterable)) or isinstance(given, str):
        raise ConfigError(f"{name}: got {given!r}, expected {wanted}")
    numbers = frozenset(range(given)) if isinstance(given, int) else frozenset(given)
    allowed = all(isinstance(each, int) and (backward or each >= 0) for each in numbers)
    if not allowed or (isinstance(given, int) and given < 0):
        raise ConfigError(f"{name}: got {given!r}, expected {wanted}")
    if most is not None and numbers and max(numbers) >= most:
        raise ConfigError(f"{name}: got {max(numbers)}, expected numbers below {most}: there are {most} of them")
    return numbers


def grid_of(given: Any) -> Triple:
    """Return a grid of tokens as it was given."""
    sizes = tuple(given) if isinstance(given, Iterable) else ()
    if len(sizes) != 3 or not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(f"grid: got {given!r}, expected three positive integers (time, height, width)")
    t, h, w = sizes
    return t, h, w


@dataclass(eq=False)
class Seen:
    """Facts of the forward passes so far, for reports; no layer computes with them.

    The attributes are plain, and written rather than read: a compiler guards on what is read.
    """

    grid: Triple | None = None
    device: torch.device | None = None


class Pass:
    """Facts of one forward pass, in the place of the rotary embedding that a transformer gives to each of its blocks.

    So they are arguments of every layer, and stay right whatever runs meanwhile: calls in other threads, another call before the
    gradients of this one, a block that is computed again in backward. For diffusers' own processors it is the pair (cos, sin).
    It is no dataclass: FSDP would make a copy of one for every block, with dictionaries of its own.

    Args:
        grid: tokens in time, height and width.
        text_lengths: text tokens of each sample, padding left out; of joint attention alone.
        dense: every layer is, in this step.
        queries: of every head, that a recall is measured with; 0 measures none.
        recalls: where recalls go, by layer.
        selected: key tiles of each head, by layer; None if all skip one share.
        held: where a calibration adds up its measurements, by layer; None without.
        dense_rows: runs of tokens, from and to, whose queries attend to every token.
    """

    def __init__(
        self,
        grid: Triple,
        text_lengths: tuple[int, ...],
        *,
        dense: bool,
        queries: int,
        recalls: dict[str, list[Tensor]],
        selected: Mapping[str, tuple[int, ...]] | None = None,
        held: dict[str, Tensor] | None = None,
        dense_rows: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.selected, self.held, self.dense_rows = selected, held, dense_rows
        self.grid, self.text_lengths, self.dense, self.queries, self.recalls = grid, text_lengths, dense, queries, recalls
        self.pair: tuple[Any, ...] = ()  # as diffusers made it
        self.rope: tuple[Any, ...] = ()  # as the sparse layers take it

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pair)

    def to(self, device: Any, **options: Any) -> Pass:
        """Return it on a device: what moves the arguments of offloaded blocks asks for it."""
        pair = tuple(each.to(device, **options) for each in self.pair)
        if all(new is old for new, old in zip(pair, self.pair, strict=True)):
            return self
        moved = copy.copy(self)
        moved.pair, moved.rope = pair, tuple(each.to(device, **options) for each in self.rope)
        return moved


_SLOT: Final = threading.local()
"""Of a thread: the pass that begins, from the transformer's pre-hook to its rotary embedding, the first module it calls."""


def begin(begun: Pass) -> None:
    """Hand a pass to the rotary embedding of the same call."""
    _SLOT.begun = begun


def begun() -> Pass | None:
    """Take the pass that has begun in this thread; None outside of a transformer's forward."""
    found: Pass | None = getattr(_SLOT, "begun", None)
    _SLOT.begun = None
    return found


KEY: Final = "denoise_step"
"""What a caller tells the step by, in `attention_kwargs`."""
TOLD: Final = f"attention_kwargs={{{KEY!r}: scheduler}}"


def step_of(transformer: nn.Module, attention_kwargs: Any, *, kind: str, option: str) -> tuple[int, int | None]:
    """Return the denoise step of a call, from 0, and how many there are, None if a number was told. No tensor is read.

    A step of a scheduler of order 2, such as Heun's, has two evaluations. Steps before the one that a pipeline begins with, as
    video to video does, do not count.

    Args:
        transformer: what is called.
        attention_kwargs: the argument of its forward.
        kind: name of the class of pipelines, beside those of diffusers, whose scheduler counts.
        option: what the step is asked for, for messages.

    Raises:
        ConfigError: nobody tells the step.
    """
    told = (attention_kwargs or {}).get(KEY)
    if type(told) is int and told >= 0:
        return told, None
    scheduler = _scheduler_of_caller(transformer, kind) if told is None else told
    if scheduler is None:
        told_by = f"tell it: attention_kwargs={{{KEY!r}: 0}}, with the number of the step or the scheduler that counts them"
        if "attention_kwargs" not in inspect.signature(type(transformer).forward).parameters:
            told_by = "give your pipeline itself, an object with this transformer and its scheduler"
        raise ConfigError(
            f"{option}: no pipeline of diffusers that holds the transformer is calling it, so the step is not known; {told_by}"
        )
    if not hasattr(scheduler, "step_index"):
        raise ConfigError(
            f"{option}: got {scheduler!r:.60}, expected the number of the step, from 0, or a scheduler with a step_index, in "
            f"attention_kwargs={{{KEY!r}: ...}}"
        )
    begin, order, timesteps = scheduler.begin_index or 0, scheduler.order, getattr(scheduler, "timesteps", None)
    steps = None if timesteps is None else -(-(len(timesteps) - begin) // order)
    return 0 if scheduler.step_index is None else (scheduler.step_index - begin) // order, steps


@torch.compiler.disable(reason="dense_steps: the pipeline that calls is looked for; tell the step in attention_kwargs instead")  # type: ignore[untyped-decorator]
def _scheduler_of_caller(transformer: nn.Module, kind: str) -> Any:
    """Return the scheduler of the pipeline whose call is running in this thread, the innermost that holds the transformer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            caller = frame.f_locals.get("self")
            if isinstance(caller, (DiffusionPipeline, ModularPipeline)) or name_of(caller) == kind:
                held = getattr(caller, "__dict__", {})
                if any(bare(each) is transformer for each in held.values()):
                    return held.get("scheduler")
        frame = frame.f_back
    return None


def name_of(pipe: Any) -> str:
    """Return the full name of an object's class."""
    return f"{type(pipe).__module__}.{type(pipe).__qualname__}"


_AROUND: Final = ("_orig_mod", "module", "_checkpoint_wrapped_module")
"""Attributes that hold a module inside another: of torch.compile, of DistributedDataParallel and its like, of checkpointing."""


def bare(component: Any) -> Any:
    """Return the module inside what torch puts around one."""
    while isinstance(component, nn.Module):
        inner = next((found for name in _AROUND if isinstance(found := getattr(component, name, None), nn.Module)), None)
        if inner is None:
            break
        component = inner
    return component
