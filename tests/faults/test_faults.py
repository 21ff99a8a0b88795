"""A few of the faults that `make faults` tries, and the page that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import DAMAGES, HOSTILE, KINDS, Kind, sound
from testing_page import section

SEEDS = {
    "kill -9": (0, 1, 6, 9),
    "full disk, 20 sizes": (0, 10),
    "damaged records": range(20),
    "hostile files in a run folder": range(len(HOSTILE)),
}
TRIES = [(kind, seed) for kind in KINDS for seed in SEEDS.get(kind.name, range(3))]


@pytest.mark.rest
@pytest.mark.parametrize(("kind", "seed"), TRIES, ids=[f"{kind.name} {seed}" for kind, seed in TRIES])
def test_a_fault_is_survived(kind: Kind, seed: int, tmp_path: Path) -> None:
    kind.attempt(seed, tmp_path)


def test_every_damage_changes_something() -> None:
    import random

    for damage in DAMAGES:
        lines = list(sound(sealed=True)[0])
        damage(lines, 5, random.Random(1))
        assert tuple(lines) != sound(sealed=True)[0], damage


def test_the_page_has_every_kind_and_all_were_survived() -> None:
    page = section("Faults")
    for kind in KINDS:
        assert f"| {kind.name} | {kind.tries} | {kind.tries} | {kind.survived} |" in page, "run `make faults`"
    assert page.count("\n|") - 2 == len(KINDS)
