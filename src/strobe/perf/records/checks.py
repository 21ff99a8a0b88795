"""Line of a run that accepts a model: one check of the model, with the bounds that it is held to and where they come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from strobe.perf.records.base import Line, Prose

CheckGroup = Literal["weights", "latents", "frames", "prompt", "stream", "presets"]
"""Subject of a check."""


class Check(Line, frozen=True, kw_only=True):
    """One check of a model that needs no official code: a value and, where a fact bounds it, a verdict."""

    group: Annotated[CheckGroup, Meta(description="subject of the check")]
    name: Annotated[str, Meta(description="name of the check, unique in the run, e.g. `neighbour_correlation`")]
    value: Annotated[float | None, Meta(description="measured value; null: not a finite number, or not measured")]
    unit: Annotated[str, Meta(description="unit of the value; empty: none")] = ""
    low: Annotated[float | None, Meta(description="least value that passes; null: no lower bound")] = None
    high: Annotated[float | None, Meta(description="largest value that passes; null: no upper bound")] = None
    passed: Annotated[bool | None, Meta(description="true: within the bounds; null: reported, not judged")] = None
    meaning: Annotated[Prose, Meta(description="definition of the value in words")] = ""
    basis: Annotated[Prose, Meta(description="source of the bounds; of a value that is not judged: why no bound is known")] = ""
    detail: Annotated[Prose, Meta(description="further facts, e.g. the tensor or frame block where the value was found")] = ""
