"""Measures CPU seconds and peak memory of reading large traces and of a full `strobe trace` report on them.

    python benchmarks/trace_reader/measure.py [--cases dense:1e9 host:1e9 dense:1e9:gz] [--repeats 3] [--folder SCRATCH]

Each measurement is one process, its start and imports included: user plus system time and the highest resident size, as the
system counts them. Writes results.json and README.md beside this file; the generated traces are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from generate import KINDS

HERE: Final = Path(__file__).parent
READ: Final = """
import sys
from strobe.perf.trace import read_trace
trace = read_trace(sys.argv[1], ops=False)
print(trace.counts.events, len(trace.device_events))
"""
TEXT: Final = """# Reading large traces

Captures of our own over and over in the layout of kineto, shifted in time ([generate.py](generate.py)): `dense` is almost nothing
but kernels, their launch calls and the arrows between them; `marked` is the same with the marks inside its steps; `host` is of a
model that its host holds up, most of it operators.

{traces}

Every figure is one process from its start to its end: the median of {repeats}, and the least and the most. Written by

    {command}

on {machine}, {versions}. Others used the machine: its load, this work included, was {load}.

| what | trace | CPU s | least and most | MB/s of CPU | peak MB | least and most |
|---|---|---:|---:|---:|---:|---:|
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


def measure(case: str, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Generate one trace and measure what is done with it.

    Args:
        case: kind of trace and bytes, such as `dense:1e9`; with `:gz` it is packed.
    """
    kind, size, *packed = case.split(":")
    path = folder / ("trace.json.gz" if packed else "trace.json")
    _, _, text = spent([sys.executable, str(HERE / "generate.py"), str(path), "--kind", kind, "--bytes", size])
    shared: dict[str, Any] = {"kind": kind, "bytes": int(text), "packed": bool(packed)}
    reading = [sys.executable, "-c", READ, str(path)]
    reporting = [sys.executable, "-m", "strobe", "trace", str(path), "-o", str(folder / "report"), "--quiet"]
    found: dict[str, dict[str, list[float]]] = {name: {"cpu_s": [], "peak_mb": []} for name in ("read_trace", "strobe trace")}
    loads = []
    for _ in range(repeats):
        for name, command in zip(found, (reading, reporting), strict=True):
            loads.append(os.getloadavg()[0])
            cpu, peak, text = spent(command)
            found[name]["cpu_s"].append(cpu)
            found[name]["peak_mb"].append(peak)
            if name == "read_trace":
                shared["events"], shared["device_events"] = map(int, text.split())
    path.unlink()
    return [{"what": name, **spread, **shared, "loads": loads} for name, spread in found.items()]


def size_of(one: dict[str, Any]) -> str:
    """The trace in words."""
    return f"{one['kind']}, {one['bytes'] / 1e9:.1f} GB{', packed' if one['packed'] else ''}"


def row(one: dict[str, Any]) -> str:
    """One line of the table."""
    cpu, peak = one["cpu_s"], one["peak_mb"]
    middle = statistics.median(cpu)
    speed = one["bytes"] / 1e6 / middle
    return (
        f"| `{one['what']}` | {size_of(one)} | {middle:.1f} | {min(cpu):.1f} to {max(cpu):.1f} | {speed:.0f} "
        f"| {statistics.median(peak):.0f} | {min(peak):.0f} to {max(peak):.0f} |"
    )


def growth(results: list[dict[str, Any]]) -> str:
    """What each further device event costs at the peak, from the smallest to the largest dense trace that is not packed."""
    said = []
    for what in ("read_trace", "strobe trace"):
        dense = (one for one in results if one["what"] == what and one["kind"] == "dense" and not one["packed"])
        own = sorted((one["device_events"], statistics.median(one["peak_mb"])) for one in dense)
        if len(own) > 1:
            (few, small), (many, large) = own[0], own[-1]
            said.append(f"{(large - small) * 1e6 / (many - few):.0f} bytes in `{what}`")
    return (
        f"From the smallest to the largest dense trace the peak grows, per device event, by {' and '.join(said)}." if said else ""
    )


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
    cases = ["dense:1e9", "dense:2e9", "marked:1e9", "host:1e9", "dense:1e9:gz"]
    parser.add_argument("--cases", nargs="+", default=cases, help=f"kind ({', '.join(KINDS)}), bytes and, if packed, gz")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the generated traces lie while they are measured")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for case in given.cases:
            results += measure(case, given.repeats, Path(name))
    command = f"python benchmarks/trace_reader/measure.py --cases {' '.join(given.cases)} --repeats {given.repeats}"
    facts = {"command": command, "machine": machine(), "versions": versions()}
    (HERE / "results.json").write_text(json.dumps(facts | {"results": results}, indent=2) + "\n", encoding="utf-8")
    loads = [load for one in results for load in one["loads"]]
    traces = "\n".join(
        f"* {size_of(one)}: {one['events']:,} events, {one['device_events']:,} of them on the device."
        for one in results
        if one["what"] == "read_trace"
    )
    text = TEXT.format(
        **facts, repeats=given.repeats, traces=traces, rows="\n".join(map(row, results)), growth=growth(results),
        load=f"{min(loads):.1f} to {max(loads):.1f}",
    )  # fmt: skip
    (HERE / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
