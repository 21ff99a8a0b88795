"""A plug-in of pytest that writes what becomes of each test to a file at once, so that it is known however the run ends.

Each line of the file that `STROBE_TEST_EVENTS` names is a test and its phase: `collected`, `start`, or `passed`, `failed` or
`skipped` with the seconds that it took and what it said. The process that hands out tests writes; those that run them do not.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence

import pytest

_SAID = 6_000
_OPTIONAL = re.compile(r"ModuleNotFoundError: (No module named '(?:diffusers|transformers|accelerate|peft)\b.*')")
"""What a file says that cannot even be imported without a library that strobe can do without."""


class Events:
    """Writes one line for each event."""

    def __init__(self, place: str) -> None:
        self._out, self._collected = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT), False

    def _write(self, test: str, phase: str, seconds: float = 0.0, said: str = "") -> None:
        line = {"test": test, "phase": phase, "seconds": round(seconds, 3), "said": said[-_SAID:]}
        os.write(self._out, f"{json.dumps(line)}\n".encode())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        for test in () if self._collected else ids:  # each process collects the same
            self._write(test, "collected")
        self._collected = True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "start")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", report.duration, report.longreprtext)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else report.longreprtext
            self._write(report.nodeid, "skipped", report.duration, str(reason).removeprefix("Skipped: "))
        else:
            self._write(report.nodeid, "passed" if report.when == "call" else "", report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lacks = _OPTIONAL.search(report.longreprtext)
            self._write(report.nodeid, "skipped" if lacks else "failed", 0.0, lacks[1] if lacks else report.longreprtext)


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    """Torch keeps what a test had on the card; beside other processes that is what they lack."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def pytest_configure(config: pytest.Config) -> None:
    place = os.environ.get("STROBE_TEST_EVENTS")
    if place and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Events(place))
