"""What every test shares: the number of CPU threads, so that values do not depend on the machine's cores, the GPU marker, the two
tiers, and the examples of the property tests: the same in every run, so that a change is what turns a test red. `make hunt` looks
for new ones. Nothing of a test depends on how fast the machine is: examples have no deadline, nor has the drawing of them.

Tiers: `pytest` and `make test` run the first, which a person runs before each commit; `pytest --tier rest` runs what that left
out, `pytest --tier all` everything, and `make test-all` the first and then the rest. A test leaves the first tier by a marker,
whole (`rest`) or but for some of its cases (`few`); tests/support/tiers.py says how. A property test has 50 examples in the first
tier and 200 in the others, where it runs again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

import tiers

SLOW = (HealthCheck.too_slow,)
for tier, examples in (("first", 50), ("rest", 200), ("all", 200)):
    settings.register_profile(tier, max_examples=examples, derandomize=True, deadline=None, suppress_health_check=SLOW)
settings.register_profile("hunt", max_examples=5_000, deadline=None, suppress_health_check=SLOW)
os.environ["STROBE_CONFIG"] = os.devnull  # no test depends on a strobe.toml of who runs it
os.environ.pop("COLUMNS", None)  # nor on the width of a terminal


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the tier."""
    parser.addoption(
        "--tier", choices=tiers.TIERS, default="first", help="first: what `make test` runs; rest: what it leaves out"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Fix the number of threads once, before any test draws a tensor, and the examples of the tier, before any is drawn.

    Garbage is looked for seldom, which is a tenth of the time of tests that read traces; not on a GPU, whose memory it may hold.
    """
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        gc.set_threshold(20_000, 10, 20)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", config.getoption("--tier")))
    for marker in tiers.MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: all that is made here stays, and looking through it took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_is_loaded_is_no_garbage() -> None:
    """Collections skip what earlier modules left: each measured clip begins with one, which took longer than a small clip."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the other tier, and skip those that need a GPU on a machine without one."""
    import torch

    kept = tiers.chosen(items, config.getoption("--tier"), config.args)
    held = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in held])
    items[:] = kept
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
