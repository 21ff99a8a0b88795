"""The only reader of `os.environ`."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the environment may set.

    Args:
        launch_blocking: `CUDA_LAUNCH_BLOCKING` is on; timings are then serialised and labelled so.
        no_color: `NO_COLOR` is set.
    """

    launch_blocking: bool
    no_color: bool


def read_settings() -> Settings:
    """Read the environment once, now."""
    return Settings(
        launch_blocking=os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        no_color="NO_COLOR" in os.environ,
    )
