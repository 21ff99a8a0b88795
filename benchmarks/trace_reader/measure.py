"""Measures CPU seconds and peak memory of reading a large trace and of a full `strobe trace` report on it.

    python benchmarks/trace_reader/measure.py [--sizes 1e9 4e9] [--folder SCRATCH]

Each measurement is one process, its start and imports included: user plus system time and the highest resident size, as the
system counts them. Writes results.json and README.md beside this file; the generated traces are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from generate import SOURCE

HERE: Final = Path(__file__).parent
READ: Final = """
import sys
from strobe.perf.trace import read_trace
trace = read_trace(sys.argv[1], ops=False)
print(trace.counts.events, len(trace.device_events))
"""
TEXT: Final = """# Reading large traces

A capture of our own ([{source}](../{folder}/{source})) over and over, shifted in time ([generate.py](generate.py)):
{events:,} events and {device:,} device events per GB. Every figure is one process from its start to its end, written by

    {command}

on {machine}, {versions}.

| what | trace | CPU s | MB/s of CPU | peak MB |
|---|---|---:|---:|---:|
{rows}

MB are 10^6 bytes, of the unpacked trace in the speed. `read_trace` is called without host operators, as `strobe trace` does.
{growth}
"""


def spent(command: list[str]) -> tuple[float, float, str]:
    """CPU seconds, peak MB and output of a process. This one stays small: the system counts its size as the new one's at first.

    Raises:
        ChildProcessError: it failed.
    """
    with tempfile.TemporaryFile() as out:
        child = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)])
        _, status, usage = os.wait4(child, 0)
        out.seek(0)
        text = out.read().decode()
    if status:
        raise ChildProcessError(f"{' '.join(command)} failed: {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, text


def measure(size: int, packed: bool, folder: Path) -> list[dict[str, Any]]:
    """Generate one trace and measure what is done with it."""
    path = folder / ("trace.json.gz" if packed else "trace.json")
    _, _, text = spent([sys.executable, str(HERE / "generate.py"), str(path), "--bytes", str(size)])
    size = int(text)
    cpu, peak, text = spent([sys.executable, "-c", READ, str(path)])
    events, device = map(int, text.split())
    shared = {"bytes": size, "packed": packed, "events": events, "device_events": device}
    found = [{"what": "read_trace", "cpu_s": cpu, "peak_mb": peak, **shared}]
    strobe = str(Path(sys.executable).with_name("strobe"))
    cpu, peak, _ = spent([strobe, "trace", str(path), "-o", str(folder / "report"), "--quiet"])
    found.append({"what": "strobe trace", "cpu_s": cpu, "peak_mb": peak, **shared})
    path.unlink()
    return found


def row(one: dict[str, Any]) -> str:
    """One line of the table."""
    trace = f"{one['bytes'] / 1e9:.1f} GB{', packed' if one['packed'] else ''}"
    speed = one["bytes"] / 1e6 / one["cpu_s"]
    return f"| `{one['what']}` | {trace} | {one['cpu_s']:.1f} | {speed:.0f} | {one['peak_mb']:.0f} |"


def growth(results: list[dict[str, Any]]) -> str:
    """What each further device event costs at the peak, from the smallest to the largest trace that is not packed."""
    said = []
    for what in ("read_trace", "strobe trace"):
        own = sorted((one["device_events"], one["peak_mb"]) for one in results if one["what"] == what and not one["packed"])
        (few, small), (many, large) = own[0], own[-1]
        if many > few:
            said.append(f"{(large - small) * 1e6 / (many - few):.0f} bytes in `{what}`")
    return f"From the smallest to the largest trace the peak grows, per device event, by {' and '.join(said)}." if said else ""


def versions() -> str:
    """The versions that matter."""
    found = [f"Python {platform.python_version()}"]
    for name in ("numpy", "msgspec", "isal"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def machine() -> str:
    """The processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} CPUs"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e9, 4e9])
    parser.add_argument("--folder", type=Path, help="where the generated traces lie while they are measured")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for size in given.sizes:
            results += measure(int(size), False, Path(name))
        results += measure(int(given.sizes[0]), True, Path(name))
    facts = {
        "command": "python benchmarks/trace_reader/measure.py --sizes " + " ".join(f"{size:g}" for size in given.sizes),
        "machine": machine(),
        "versions": versions(),
    }
    (HERE / "results.json").write_text(json.dumps(facts | {"results": results}, indent=2) + "\n", encoding="utf-8")
    per_gb = results[0]["bytes"] / 1e9
    text = TEXT.format(
        source=SOURCE.name, folder=SOURCE.parent.relative_to(HERE.parent), rows="\n".join(map(row, results)), **facts,
        growth=growth(results), events=round(results[0]["events"] / per_gb), device=round(results[0]["device_events"] / per_gb),
    )  # fmt: skip
    (HERE / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
