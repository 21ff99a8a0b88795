"""A pytest plugin that records which lines of some packages each test runs, in this process and on any of its threads.

python -m pytest -p covered --covered PACKAGE_FOLDER --covered-to map.json TESTS
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Line = tuple[str, int]


class Lines:
    """A recorder of the lines that run.

    Args:
        folder: only of files below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._wanted: dict[CodeType, bool] = {}
        self.seen: set[Line] = set()
        self.imported: set[Line] = set()  # in bodies of modules and classes

    def start(self) -> None:
        """Start to record."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = code.co_filename.startswith(self._folder)
        if code.co_filename == "<string>":  # a method that a dataclass made, of fields in a class body
            file = frame.f_globals.get("__file__") or ""
            if file.startswith(self._folder):
                self.seen.add((file, 0))
        return self._ran if wanted else None

    def _ran(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            lines = self.seen if frame.f_code.co_flags & inspect.CO_OPTIMIZED else self.imported
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._ran


class Map:
    """The tests of each line; lines that run at import count for every test that runs another line of their file.

    Args:
        lines: notes them.
        root: paths are written from there.
        target: where the map goes.
    """

    def __init__(self, lines: Lines, root: Path, target: Path) -> None:
        self._lines, self._root, self._target = lines, root, target
        self._tests: dict[str, float] = {}
        self._by_test: dict[str, set[Line]] = {}
        self._failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record the lines and the time of one test."""
        self._lines.seen, began = set(), time.perf_counter()
        self._lines.start()  # a test may have set a tracer of its own
        result = yield
        self._tests[item.nodeid] = time.perf_counter() - began
        self._by_test[item.nodeid] = self._lines.seen
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note failed tests, because a map of failing tests would show mutants as killed."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the map."""
        numbers = {test: number for number, test in enumerate(self._tests)}
        lines: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for test, seen in self._by_test.items():
            for file, line in seen:
                lines[file][line].add(numbers[test])
        for file, line in self._lines.imported:
            lines[file][line] |= {number for tests in lines[file].values() for number in tests}
        found = {
            str(Path(file).relative_to(self._root)): {line: sorted(tests) for line, tests in sorted(held.items())}
            for file, held in sorted(lines.items())
        }
        content = {"failed": self._failed, "tests": list(self._tests.items()), "lines": found}
        self._target.write_text(json.dumps(content), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--covered` and `--covered-to`."""
    parser.addoption("--covered", type=Path)
    parser.addoption("--covered-to", type=Path)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start to record before the first `conftest.py`, to see what runs at import."""
    options = early_config.known_args_namespace
    lines = Lines(options.covered.resolve())
    early_config.pluginmanager.register(Map(lines, early_config.rootpath, options.covered_to))
    lines.start()
