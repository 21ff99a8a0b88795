"""Commands of a case: read, run in a folder of their own, and what they took."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strobe.bench.executor import Cell, LocalExecutor
from strobe.bench.own import launcher
from strobe.perf.records.history import EnvironmentKind

_LAUNCH: Final = 'exec "$0" -I -S "$1" <request.json >result.json'
_NOT_PASSED: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "GIT_DIR", "GIT_WORK_TREE")
"""What would show commands the code of another checkout than their own."""
OUT: Final = "STROBE_TRACK_OUT"
"""Variable that names a folder for what a command leaves: run folders and traces."""
_TOLD_LINES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """Result of a command.

    Args:
        code: of the process, negative: the signal; None: it ran out of time, or never began.
        why: what went wrong, in words; empty if nothing did.
        stdout: all that it printed.
        wall_ns: from the start of its process to its end.
        cpu_ns: user and system.
        peak_bytes: largest resident set; None: no more than starting it takes.
    """

    code: int | None
    why: str
    stdout: str
    wall_ns: int = 0
    cpu_ns: int = 0
    peak_bytes: int | None = None


def run_command(executor: LocalExecutor, argv: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float) -> Ran:
    """Run a command in a folder and wait for its end; what it leaves running is ended.

    Args:
        executor: that has nothing else under way.
        argv: its words.
        env: set in addition to the environment of this process.
        timeout_s: it is ended when it has run that long.
    """
    request = {"argv": list(argv), "folder": str(folder), "stdout": "stdout", "stderr": "stderr"}
    unset = [word for name in _NOT_PASSED if name not in env for word in ("-u", name)]
    cell = Cell(
        argv=("env", *unset, "sh", "-c", _LAUNCH, sys.executable, str(Path(launcher.__file__))),
        env=env,
        files={"request.json": json.dumps(request).encode()},
        timeout_s=timeout_s,
    )
    done = executor.wait(executor.submit(cell))
    stdout, stderr = (done.files.get(name, b"").decode(errors="replace") for name in ("stdout", "stderr"))
    stderr = stderr.replace(f"{folder}/", "")
    if done.status == "timeout":
        return Ran(code=None, why=f"took more than {timeout_s:g} s{_last_words(stderr)}", stdout=stdout)
    try:
        told = json.loads(done.files.get("result.json", b""))
    except ValueError:
        return Ran(code=None, why=f"its launcher ended with {done.code}{_last_words(done.stderr)}", stdout=stdout)
    if "not_started" in told:
        return Ran(code=None, why=f"cannot start {argv[0]}: {told['not_started']}", stdout="")
    code = told["exit_status"]
    how = "" if code == 0 else f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return Ran(
        code=code,
        why=f"{how}{_last_words(stderr or stdout)}" if how else "",
        stdout=stdout,
        wall_ns=told["wall_ns"],
        cpu_ns=told["user_ns"] + told["system_ns"],
        peak_bytes=told["peak_bytes"],
    )


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_TOLD_LINES:]
    return f": {' / '.join(lines)[-1000:]}" if lines else ""


def make_environment(executor: LocalExecutor, kind: EnvironmentKind, place: Path, path: str) -> tuple[dict[str, str], str]:
    """Make what the commands of a commit run in.

    Args:
        kind: none, a virtual environment, or one that sees the packages beside strobe too.
        place: where it is made.
        path: `PATH` of this process.

    Returns:
        variables for the commands, and why it could not be made; empty if it was.
    """
    if kind == "none":
        return {}, ""
    made = run_command(executor, (sys.executable, "-m", "venv", str(place)), place.parent, {}, 600.0)
    if made.why:
        return {}, f"no virtual environment: {made.why}"
    if kind == "shared":
        (site,) = place.glob("lib/python*/site-packages")
        beside = [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
        (site / "zz_beside_strobe.pth").write_text("".join(f"{each}\n" for each in beside), encoding="utf-8")
    return {"PATH": f"{place / 'bin'}:{path}", "VIRTUAL_ENV": str(place)}, ""
