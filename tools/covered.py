"""A pytest plugin that records which lines of some packages each test runs, in this process and on any of its threads.

python -m pytest -p covered --covered PACKAGE_FOLDER --covered-to map.json.gz TESTS
"""

from __future__ import annotations

import gzip
import inspect
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

Line = tuple[str, int]
QUIET: Final = 1000
"""Lines in a row that a function runs without a new one among them, before it is left alone until the next test: loops would
take minutes. A line that a test first runs after that is missing from its map, so it may lose a test but never gains one."""


class _Function:
    """The lines of one function that a test has run so far."""

    __slots__ = ("code", "file", "lines", "quiet", "ran")

    def __init__(self, code: CodeType, folder: str) -> None:
        self.code = code  # held, so that no other gets its id
        self.lines: set[int] = set()
        self.quiet = 0
        self.file = code.co_filename
        self.ran: Callable[[FrameType, str, object], Any] | None = self._ran if self.file.startswith(folder) else None

    def _ran(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            number = frame.f_lineno
            if number in self.lines:
                self.quiet += 1
                if self.quiet > QUIET:
                    frame.f_trace_lines = False
            else:
                self.lines.add(number)
                self.quiet = 0
        return self.ran


class Lines:
    """A recorder of the lines that run.

    Args:
        folder: only of files below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._known: dict[int, _Function] = {}
        self._touched: set[_Function] = set()
        self._made: set[Line] = set()
        self.imported: set[Line] = set()  # in bodies of modules and classes

    def start(self) -> None:
        """Start to record."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        function = self._known.get(id(code))
        if function is None:
            function = self._known[id(code)] = _Function(code, self._folder)
        if function.ran is None:
            if function.file == "<string>":  # a method that a dataclass made, of fields in a class body
                file = frame.f_globals.get("__file__") or ""
                if file.startswith(self._folder):
                    self._made.add((file, 0))
            return None
        if function.quiet > QUIET:
            return None
        self._touched.add(function)
        frame.f_trace_lines = True  # of a generator that was left alone in an earlier test
        return function.ran

    def taken(self) -> set[Line]:
        """Return the lines of functions that ran since the last call, and forget them."""
        seen, self._made = self._made, set()
        for function in list(self._touched):
            own = {(function.file, line) for line in function.lines}
            if function.code.co_flags & inspect.CO_OPTIMIZED:
                seen |= own
            else:
                self.imported |= own
            function.lines.clear()
            function.quiet = 0
        self._touched.clear()
        return seen


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
        self._lines.taken()
        began = time.perf_counter()
        self._lines.start()  # a test may have set a tracer of its own
        result = yield
        self._tests[item.nodeid] = round(time.perf_counter() - began, 4)
        self._by_test[item.nodeid] = self._lines.taken()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note failed tests: they would show every mutant as killed."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the map of the tests that passed."""
        self._lines.taken()
        failed = set(self._failed)
        tests = [(test, seconds) for test, seconds in self._tests.items() if test not in failed]
        lines: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for number, (test, _) in enumerate(tests):
            for file, line in self._by_test[test]:
                lines[file][line].add(number)
        for file, line in self._lines.imported:
            lines[file][line] |= {number for tests_of in lines[file].values() for number in tests_of}
        found = {
            str(Path(file).relative_to(self._root)): {line: sorted(numbers) for line, numbers in sorted(held.items())}
            for file, held in sorted(lines.items())
        }
        content = {"failed": self._failed, "tests": tests, "lines": found}
        self._target.write_bytes(gzip.compress(json.dumps(content).encode()))


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
