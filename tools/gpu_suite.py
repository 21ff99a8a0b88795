"""Run every test that needs a GPU on one card: `make test-gpu`. It ends with a line that says what ran where and what came of it.

    python tools/gpu_suite.py --out build/gpu

Tests run beside each other, `--workers` at a time and one of those marked `large`, or two on a card of 100 GiB; then, one by
one, those marked `alone`, which measure or need several GPUs.
A test that hangs is ended after `--timeout` seconds, and the run after `--budget`; what did not run by then counts as unfinished.
Of the gates of attention those run whole whose sources are not those of the package's records; `--gates all` runs every case.

--out gets row.json (for `gpu_runs.py add`), results.json (each test), slowest.txt, failures.txt and JUnit files.
Exit code: 0 if nothing failed and nothing is unfinished, 1 if something is, 3 without a GPU.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_runs import line_of, outcomes, row_of
from source import ROOT, functions, name_of, parse, python_files

PASSES = ({"together": "gpu and not alone and not large", "large": "gpu and large"}, {"alone": "gpu and alone"})
"""What runs at a time, by name, and the marks of its tests; one pass after the other."""
MARK = re.compile(r"\bmark\.gpu\b")
SHOWN, LINES = 12, 14
"""Failures that are printed, and the last lines of each; failures.txt has all."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How to run: how many tests at a time, how many large ones, the seconds for a test and for all, and where results go."""

    workers: int
    large: int
    timeout: int
    budget: float
    out: Path


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def gpu_files() -> list[Path]:
    """List the test files that mark a test for a GPU: others are not even imported."""
    return [path for path in python_files("tests") if path.name.startswith("test_") and MARK.search(path.read_text("utf-8"))]


def gpu_tests() -> dict[str, set[str]]:
    """List the tests that are marked for a GPU, by file: of a module, or a function, or one of the cases of a function."""
    return {name_of(path): _marked(path) for path in gpu_files()}


def _marked(path: Path) -> set[str]:
    tree = parse(path)
    marks = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    tests = [each for each in functions(tree) if each.name.startswith("test_")]
    whole = any(MARK.search(ast.unparse(node)) for node in marks)
    return {each.name for each in tests if whole or any(MARK.search(ast.unparse(mark)) for mark in each.decorator_list)}


def not_begun(found: Mapping[str, object], files: Sequence[Path]) -> list[str]:
    """List the tests for a GPU in these files of which no case has an outcome: the run ended before pytest had listed them."""
    known = {(name.partition("::")[0], name.partition("[")[0].rpartition("::")[2]) for name in found}
    named = [(name_of(path), test) for path in files if path.is_relative_to(ROOT) for test in sorted(_marked(path))]
    return [f"{name}::{test}" for name, test in named if (name, test) not in known and (name, name) not in known]


def run(files: Sequence[Path], how: How) -> dict[str, dict[str, Any]]:
    """Run the tests of these files that are marked `gpu`; return what became of each."""
    how.out.mkdir(parents=True, exist_ok=True)
    events, ends = how.out / "events.jsonl", time.monotonic() + how.budget
    events.write_text("", "utf-8")
    places = [*(str(ROOT / each) for each in ("src", "tests/support", "tools")), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "PYTHONDONTWRITEBYTECODE": "",
        "STROBE_TEST_EVENTS": str(events.resolve()),
        "TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "2"),  # each of the workers has as many
    }
    for beside in PASSES:
        say(f"-- {', '.join(beside)}: {max(0.0, ends - time.monotonic()):.0f} s left")
        processes = [_start(name, marks, files, how, environment) for name, marks in beside.items()]
        _end(processes, ends)
    found = outcomes(json.loads(line) for line in events.read_text("utf-8").splitlines())
    return found | {name: {"outcome": "unfinished", "seconds": 0.0, "said": ""} for name in not_begun(found, files)}


def _start(name: str, marks: str, files: Sequence[Path], how: How, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    workers = {"together": how.workers, "large": how.large}.get(name, 1)  # one is not this process: it may die of a test
    argv = [
        sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "gpu_events",
        "-p", "no:cacheprovider", "-q", "-rN", "--tb=no", "-m", marks, "-n", str(workers),
        "--dist", "load", "--maxschedchunk", "1",
        "--continue-on-collection-errors", "--timeout", str(how.timeout), "--timeout-method", "thread",
        "-o", "timeout_func_only=false", f"--junitxml={how.out / f'junit-{name}.xml'}", *map(str, files),
    ]  # fmt: skip
    return subprocess.Popen(argv, cwd=ROOT, env=environment, start_new_session=True)


def _end(processes: Sequence[subprocess.Popen[bytes]], ends: float) -> None:
    """Wait for all; at that time end them and all that they started."""
    try:
        for process in processes:
            process.wait(max(1.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        say("\n-- the time is over")
    finally:  # also when whoever waits is interrupted
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def facts(commit: str) -> dict[str, str]:
    """Say which commit was run on what: the checkout's, with a plus if tracked files differ from it, unless it is named."""
    import torch

    from strobe.perf.measure.machine import describe_machine
    from strobe.perf.records.record import git_state

    machine, state = describe_machine(torch.device("cuda", 0)), git_state(Path(__file__))
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit or (state.commit or "unknown")[:10] + ("+" if state.dirty else ""),
        "card": str(machine.device_name),
        "driver": machine.driver or "unknown",
        "torch": machine.torch,
    }


def report(found: Mapping[str, Mapping[str, Any]], row: Mapping[str, Any], out: Path) -> str:
    """Write what became of the tests to a folder; return what is printed."""
    slowest = sorted(found.items(), key=lambda each: -each[1]["seconds"])[:30]
    slow = [f"{test['seconds']:8.1f} s  {test['outcome']:10}  {name}" for name, test in slowest]
    red = {name: test["said"].rstrip() for name, test in found.items() if test["outcome"] == "failed"}
    (out / "results.json").write_text(json.dumps(found, indent=1), "utf-8")
    (out / "row.json").write_text(json.dumps(row, sort_keys=True) + "\n", "utf-8")
    (out / "slowest.txt").write_text("\n".join(slow) + "\n", "utf-8")
    (out / "failures.txt").write_text("".join(f"== {name}\n{said}\n\n" for name, said in red.items()), "utf-8")
    lines = ["", "slowest:", *slow[:10]]
    for name, said in list(red.items())[:SHOWN]:
        lines += ["", f"== {name}", *(line[:200] for line in said.splitlines()[-LINES:])]
    lines += [f"failed: {name}" for name in red]
    lines += [f"unfinished: {name}" for name, test in found.items() if test["outcome"] == "unfinished"][:SHOWN]
    lines += [f"skipped {number}: {reason}" for reason, number in row["skipped"].items()]
    return "\n".join([*lines, "", line_of(row)])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--workers", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--timeout", type=int, default=240, help="seconds for one test")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for all")
    parser.add_argument("--commit", default=os.environ.get("COMMIT", ""), help="its name, where git cannot tell")
    parser.add_argument("--gates", choices=["moved", "all"], default="moved")
    parser.add_argument("files", nargs="*", type=Path, help="test files; by default all with a test for a GPU")
    given = parser.parse_args(words)
    began = time.monotonic()
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: nothing to run\n")
        return 3
    os.environ["STROBE_TEST_GATES"] = given.gates
    files = [path.resolve() for path in given.files] or gpu_files()
    large = 2 if torch.cuda.get_device_properties(0).total_memory > 100 << 30 else 1
    found = run(files, How(workers=given.workers, large=large, timeout=given.timeout, budget=given.budget, out=given.out))
    row = row_of(found, facts(given.commit), time.monotonic() - began)
    say(report(found, row, given.out))
    return 1 if row["failed"] or row["unfinished"] or not row["passed"] else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())
