"""Models that another package registers."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from strobe.core import libraries as plugins
from strobe.core.errors import ConfigError
from strobe.engine.family import Family, Weights
from strobe.engine.load import load, model_parts, names
from strobe.engine.model import Model, ModelParts
from strobe.engine.session import Session


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install entry points for the length of a test: `register(name=object)`."""

    def install(**found: object) -> None:
        module = types.ModuleType("another_package")
        vars(module).update(found)
        monkeypatch.setitem(__import__("sys").modules, "another_package", module)
        entries = [EntryPoint(name=name, value=f"another_package:{name}", group=plugins.FAMILIES) for name in found]
        monkeypatch.setattr(plugins, "entry_points", lambda group: entries if group == plugins.FAMILIES else [])

    return install


def made(tiny: Model, asked: list[tuple[str, Weights]], *models: str) -> Family:
    def make(name: str, given: Weights) -> Model:
        asked.append((name, given))
        return replace(tiny, name=f"mine: {name}")

    return Family(
        name="mine",
        models=models,
        holds=lambda folder: (folder / "mine.json").is_file(),
        load=make,
        parts=lambda name, size: ModelParts(dit=tiny.dit, vae=tiny.vae, defaults=tiny.defaults),
    )


def test_it_is_found_by_name_and_by_its_checkpoint(tiny: Model, register: Callable[..., None], tmp_path: Path) -> None:
    asked: list[tuple[str, Weights]] = []
    register(mine=made(tiny, asked, "mine-1b", "mine-7b"))
    given = Weights(frame_size=(32, 32))
    with Session("red circle", model=load("mine-1b", given), device="cpu") as session:
        assert session.model.name == "mine: mine-1b" and len([*session.stream(2)]) == 2
    (tmp_path / "mine.json").write_text("{}")
    assert load(tmp_path).name == f"mine: {tmp_path}" and asked == [("mine-1b", given), (str(tmp_path), Weights())]
    assert names()[-2:] == ("mine-1b", "mine-7b") and model_parts("mine-7b").dit is tiny.dit
    with pytest.raises(ConfigError, match=r"did you mean 'mine-7b'\?.*mine-1b, mine-7b"):
        load("mine-7")


def test_ours_are_never_taken(tiny: Model, register: Callable[..., None]) -> None:
    asked: list[tuple[str, Weights]] = []
    register(mine=made(tiny, asked, "shapes"))
    assert load("shapes").name == "shapes" and not asked


def test_what_is_registered_wrongly_is_named(tiny: Model, register: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    register(broken=3)
    with pytest.raises(
        ConfigError, match=r"no model .*; family 'broken' \(another_package:broken of .*\) is broken: it is a int"
    ):
        load("broken-1b")
    register(mine=made(tiny, [], "mine-1b"), yours=made(tiny, [], "mine-1b"))
    with pytest.raises(ConfigError, match=r"family 'yours' .* is broken: it has a model 'mine-1b', as 'mine' .* has; unins"):
        load("yours-1b")
    assert load("mine-1b").name == "mine: mine-1b" and load("shapes").name == "shapes"
    entries = [EntryPoint(name="gone", value="no_such_package:FAMILY", group=plugins.FAMILIES)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)
    with pytest.raises(ConfigError, match=r"family 'gone' .* cannot be imported: ModuleNotFoundError: No module named 'no_s"):
        load("mine-1b")
