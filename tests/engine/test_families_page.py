"""docs/models.md says what the code does: defaults, predicted bytes and presets of every family."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from source import ROOT
from strobe.core.errors import StrobeError
from strobe.engine.load import SHORT, model_parts
from strobe.engine.memory import predict
from strobe.engine.presets import PRESETS, preset
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.models.wan.recipes import RECIPES

GPU = torch.device("cuda")
"""Named, never used."""
parts = cache(model_parts)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that attends in eight bits; which ones do is test_attention_format.py's."""
    monkeypatch.setattr("strobe.engine.resolve.without_kernel", lambda *_: "")


def rows(title: str) -> dict[str, list[str]]:
    """The cells of each family in the table whose first row holds a title, without that of its name."""
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (table,) = (part for part in text.split("\n\n") if part.startswith("| family |") and title in part.splitlines()[0])
    found: dict[str, list[str]] = {}
    for line in table.splitlines()[2:]:
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found |= {name: cells for name in re.findall(r"`([\w.-]+)`", first) if name in SHORT}
    return found


def resolved(family: str, name: str, **changes: Any) -> ResolvedConfig:
    config = replace(preset(name), simulate=True, dtype="bfloat16", **changes)
    return resolve(config, parts(family).defaults, GPU)


def runs(family: str, name: str, **changes: Any) -> bool:
    try:
        resolved(family, name, **changes)
    except StrobeError:
        return False
    return True


def gib(family: str, name: str) -> float:
    """As predicted where the decoder is compiled, as it is on a GPU with Triton."""
    config = resolved(family, name)
    compiled = replace(config, knobs=replace(config.knobs, compile=True))
    return sum(predict(parts(family), compiled).values()) / 2**30


def test_every_family_has_its_rows() -> None:
    assert rows("files it is read from").keys() == rows("presets that run").keys() == {*SHORT}


@pytest.mark.parametrize("family", SHORT)
def test_defaults(family: str) -> None:
    recipe, told = RECIPES[family], rows("files it is read from")[family][1]
    window, sink = map(int, re.match(r"(\d+), (\d+)", told).groups())  # type: ignore[union-attr]
    steps = ", ".join(f"{round(each, 1):.1f}".removesuffix(".0") for each in recipe.timesteps)
    assert (window, sink) == (recipe.window, recipe.sink)
    assert steps in told or ("the same" in told and recipe.timesteps == RECIPES["self-forcing"].timesteps)
    assert ("unshifted" in told) == (recipe.shift == 1) and told.split(";")[2].split(",")[0].split()[-1] == recipe.past
    assert recipe.positions in told or recipe.past in ("rolling", "recomputed")


@pytest.mark.few(2)
@pytest.mark.parametrize("family", SHORT)
def test_predicted_bytes(family: str) -> None:
    balanced, low = rows("files it is read from")[family][-1].split(", ", 1)
    assert balanced == f"{gib(family, 'balanced'):.1f} GiB"
    assert low == f"{gib(family, 'low_memory'):.1f} GiB" if runs(family, "low_memory") else low.startswith("refused")
    again = rows("presets that run")[family][1]
    assert again in (f"{gib(family, 'balanced'):.2f} GiB", f"{gib(family, 'balanced'):.1f} GiB")


@pytest.mark.parametrize("family", SHORT)
def test_presets(family: str) -> None:
    told, _, more = rows("presets that run")[family][-1].partition("; with ")
    own = {name for name in PRESETS if runs(family, name)}
    assert own == ({*PRESETS} if told == "all" else {*re.findall(r"`(\w+)`", told)})
    if more:
        window, sink = map(int, re.search(r"--window (\d+) --sink (\d+)", more).groups())  # type: ignore[union-attr]
        assert {*re.findall(r"`(\w+)`", more)} == {name for name in PRESETS if runs(family, name, window=window, sink=sink)} - own
