"""What every test shares: the number of CPU threads, so that values do not depend on the machine's cores, the GPU marker, and the
examples of the property tests: the same in every run, so that a change is what turns a test red. `make hunt` looks for new ones.
Nothing of a test depends on how fast the machine is: examples have no deadline, nor has the drawing of them.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

SLOW = (HealthCheck.too_slow,)
settings.register_profile("same", max_examples=200, derandomize=True, deadline=None, suppress_health_check=SLOW)
settings.register_profile("hunt", max_examples=5_000, deadline=None, suppress_health_check=SLOW)
os.environ["STROBE_CONFIG"] = os.devnull  # no test depends on a strobe.toml of who runs it
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure(config: pytest.Config) -> None:
    """Fix the number of threads once, before any test draws a tensor."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _what_is_loaded_is_no_garbage() -> None:
    """Collections skip what earlier modules left: each measured clip begins with one, which took longer than a small clip."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU on a machine without one."""
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
