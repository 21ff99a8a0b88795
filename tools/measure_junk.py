"""Measure a real `strobe serve` among 200 sockets of junk, and over 1,000 sessions: prints the tables of docs/live.md.

Usage: python tools/measure_junk.py [--messages 10000] [--sessions 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from websockets.exceptions import WebSocketException

from junk_viewers import Crowd
from strobe.core.errors import SessionError
from strobe.serve import protocol
from strobe.serve.client import Playback, watch
from strobe.serve.protocol import Picture

SOCKETS: Final = 200
ALONE_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a process holds, from /proc."""

    rss_mib: float
    files: int
    threads: int


def held(pid: int) -> Held:
    """Return what a process holds now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Held(
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
    )


@contextmanager
def server(log: Path) -> Iterator[tuple[str, int]]:
    """Start `strobe serve` on a port of its own; yield its address and process number."""
    argv = [
        sys.executable,
        "-m",
        "strobe",
        "serve",
        "--port",
        "0",
        "--preset",
        "turbo",
        "--json",
        "--suspend",
        "0.5",
        "--resume",
        "2",
    ]
    with log.open("w") as file, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            text += process.stdout.readline()
        url = json.loads(text)["url"].rstrip("/")
        while not ready(url):
            time.sleep(0.2)
        try:
            yield url, process.pid
        finally:
            process.terminate()


def ready(url: str) -> bool:
    """Whether streams can be opened."""
    with suppress(OSError), urllib.request.urlopen(f"{url}/readyz") as answer:
        return bool(json.load(answer)["ready"])
    return False


def metrics(url: str) -> dict[str, float]:
    """Return the server's metrics by name and labels."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


async def play(url: str, seconds: float, done: asyncio.Event | None = None) -> list[Playback]:
    """Play a stream as a browser does: for some seconds, or in turns of so many until `done` is set."""
    found: list[Playback] = []
    async with watch(url.replace("http", "ws"), prompt="a red circle moving left") as viewer:
        while not found or (done is not None and not done.is_set()):
            found.append(await viewer.play(seconds))
        await viewer.send(protocol.Close())
    return found


async def among_junk(url: str, messages: int) -> tuple[list[Playback], Counter[str]]:
    """Play a stream while 200 sockets in another process rage."""
    done = asyncio.Event()
    playing = asyncio.create_task(play(url, 10.0, done))
    await asyncio.sleep(2.0)
    argv = [sys.executable, __file__, "--rage", url.replace("http", "ws"), "--messages", str(messages)]
    crowd = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    answer, _ = await crowd.communicate()
    done.set()
    return await playing, Counter(json.loads(answer))


async def session(url: str, number: int) -> None:
    """Open a stream, see a picture of every fifth, and close it; every tenth vanishes."""
    while True:
        with suppress(SessionError, WebSocketException):
            async with watch(url.replace("http", "ws"), codec="h264" if number % 2 else "jpeg") as viewer:
                while number % 5 == 0 and not isinstance(await viewer.receive(), Picture):
                    pass
                if number % 10 == 3:
                    viewer.socket.transport.abort()
                else:
                    await viewer.send(protocol.Close())
                    await viewer.socket.wait_closed()
            return
        await asyncio.sleep(0.1)


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def told(name: str, pid: int, url: str, playbacks: list[Playback], began: tuple[float, float]) -> str:
    """Say how a stream was played, and what the server's CPU did meanwhile, beside the making of frame blocks."""
    used, busy = cpu_s(pid) - began[0], metrics(url)["strobe_device_busy_seconds_total"] - began[1]
    return f"{name}: {share(playbacks)}; the server used {used:.1f} s of CPU, and made frame blocks for {busy:.1f} s"


def share(playbacks: list[Playback]) -> str:
    """Say how a stream was played."""
    painted, on_time = sum(each.painted for each in playbacks), sum(each.on_time for each in playbacks)
    stalls, stall_s = sum(each.stalls for each in playbacks), sum(each.stall_s for each in playbacks)
    late = sorted(late for each in playbacks for late in each.late_ms)
    p95 = late[int(0.95 * len(late))]
    return f"{painted} pictures, {on_time / painted:.2%} on time, p95 {p95:.1f} ms late, {stalls} stalls of {stall_s:.1f} s"


def row(name: str, pid: int) -> str:
    """Format what a process holds as a row."""
    now = held(pid)
    return f"| {name} | {now.rss_mib:.0f} MiB | {now.files} | {now.threads} |"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def alone(url: str, pid: int) -> None:
    """Play a stream with nobody beside it, and say how."""
    began = cpu_s(pid), metrics(url)["strobe_device_busy_seconds_total"]
    say(told(f"alone, {ALONE_S:.0f} s", pid, url, asyncio.run(play(url, ALONE_S)), began))


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--rage", default="")
    asked = parser.parse_args()
    if asked.rage:
        say(json.dumps(asyncio.run(Crowd(asked.rage, sockets=SOCKETS, messages=asked.messages).rage())))
        return 0
    with tempfile.TemporaryDirectory() as folder, server(log := Path(folder) / "log") as (url, pid):
        say(f"load of this machine: {os.getloadavg()}")
        alone(url, pid)
        say(row("before the junk", pid))
        began = cpu_s(pid), metrics(url)["strobe_device_busy_seconds_total"]
        playbacks, did = asyncio.run(among_junk(url, asked.messages))
        say(told(f"among junk, {10 * len(playbacks)} s", pid, url, playbacks, began))
        say(str(dict(did)))
        alone(url, pid)
        time.sleep(4.0)  # what was left alone is closed by now
        say(row("after the junk", pid))
        for number in range(asked.sessions + 1):
            if number % (asked.sessions // 4) == 0:
                time.sleep(4.0)
                say(row(f"{number} sessions", pid))
            if number < asked.sessions:
                asyncio.run(session(url, number))
        shown = ("strobe_streams", "strobe_viewers", "strobe_queued", "strobe_failed_streams_total", "strobe_refused_total")
        say(str({name: value for name, value in metrics(url).items() if name.startswith(shown)}))
        crashes = [line for line in log.read_text().splitlines() if "Traceback" in line or "failed" in line or "Error" in line]
        say(f"crashes: {len(crashes)} {crashes[:3]}")
        return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
