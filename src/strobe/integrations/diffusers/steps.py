"""The denoise step of a call of a transformer: told by the caller, or counted by the scheduler of the pipeline that calls."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any, Final

import torch
from diffusers import DiffusionPipeline, ModularPipeline
from torch import nn

from strobe.core.errors import ConfigError
from strobe.integrations.diffusers.find import bare

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
