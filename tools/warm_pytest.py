"""pytest in forks of one process that has the libraries loaded, so that a run begins at once.

The process reads requests from standard input, one JSON object per line, `{"arguments": [...], "only": [...], "limit_s": 60.0}`,
and answers each with a line: `code` (of pytest; none if the run took over `limit_s` and was killed, below 0 for a signal),
`failed` (names of tests, or of files that could not be imported, in the order of failing), `passed` (their number) and `said`
(the end of what was written). If `only` names tests, these run, in its order; those that are not there are no error. The process
has loaded nothing of the project itself: each fork imports the sources as they are then.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch", "torch.nn.functional", "torch.distributed", "torch.fx", "torch.library", "numpy", "hypothesis",
    "hypothesis.stateful", "hypothesis.extra.numpy", "msgspec", "cyclopts", "rich.console", "rich.table", "rich.progress",
    "markdown_it", "safetensors.torch", "av", "xml.etree.ElementTree", "concurrent.futures", "multiprocessing", "asyncio", "gzip",
    "fractions", "statistics",
)  # fmt: skip
"""Loaded before the first fork, as far as they are there."""
MEMORY_BYTES = 8 << 30
"""Of its own that a run may take: a wrong size is an error soon."""
FILE_BYTES = 1 << 30
PR_SET_PDEATHSIG = 1
Answer = dict[str, Any]


class Warm:
    """A process of this kind that serves one checkout.

    Args:
        root: of the checkout; `src` in it is what tests import.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
        paths = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
        alone = {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, *LIBRARIES],
            cwd=root,
            env={**os.environ, **one_thread, **alone},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: list[str], limit_s: float | None = None, *, only: Sequence[str] = ()) -> Answer:
        """Run pytest; see the module for what comes back."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"arguments": arguments, "only": list(only), "limit_s": limit_s}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that runs pytest ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Noted:
    """A plugin of pytest that writes what became of each test to a file, at once."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("w", encoding="utf-8", buffering=1)

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self._file.write(f"failed {report.nodeid}\n")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a test that failed, or passed."""
        if report.failed:
            self._file.write(f"failed {report.nodeid}\n")
        elif report.when == "call" and report.passed:
            self._file.write(f"passed {report.nodeid}\n")


class Chosen:
    """A plugin of pytest that runs some tests alone, in a given order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Deselect all others."""
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._places])
        items[:] = sorted((item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid])


def _child(arguments: list[str], only: Sequence[str], folder: Path) -> None:
    """Run pytest in a fork; it never returns."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not outlive this process
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    code = 70
    try:
        import pytest

        plain = ["-q", "--tb=line", "-p", "no:cacheprovider", "--override-ini=addopts=--import-mode=importlib"]
        files = dict.fromkeys(test.split("::")[0] for test in only)
        pytest.hookimpl(trylast=True)(Chosen.pytest_collection_modifyitems)  # first, cases of a test are counted
        plugins = [Noted(folder / "noted"), *([Chosen(only)] if only else [])]
        code = int(pytest.main([*plain, f"--basetemp={folder / 'tmp'}", *arguments, *files], plugins=plugins))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(arguments: list[str], only: Sequence[str], limit_s: float | None) -> Answer:
    """Run pytest in a fork, and end whatever it leaves."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        child = os.fork()
        if not child:
            _child(arguments, only, folder)
        handle = os.pidfd_open(child)
        ended, _, _ = select.select([handle], [], [], limit_s)
        os.close(handle)
        for end in (os.killpg, os.kill):  # the child may not have its group yet
            with contextlib.suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        noted = (folder / "noted").read_text(encoding="utf-8").splitlines() if (folder / "noted").exists() else []
        said = (folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:] if (folder / "log").exists() else ""
    return {
        "code": os.waitstatus_to_exitcode(status) if ended else None,
        "failed": [line.removeprefix("failed ") for line in noted if line.startswith("failed ")],
        "passed": sum(line.startswith("passed ") for line in noted),
        "said": said,
    }


def main() -> None:
    """Serve until standard input ends."""
    with contextlib.suppress(ImportError):
        sys.path.insert(0, str(Path(__file__).parent))
        importlib.import_module("covered")
    del sys.path[0]  # a checkout has its own
    for library in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        asked = json.loads(line)
        answers.write(json.dumps(run(asked["arguments"], asked["only"], asked["limit_s"])) + "\n")


if __name__ == "__main__":
    main()
