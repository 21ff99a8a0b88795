"""Viewers that load a server of live streams: they come, watch, steer and leave, and each is written down.

Nothing ticks: no viewer waits for another.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec
import torch
from prometheus_client.parser import text_string_to_metric_families

from strobe.bench.case import Progress
from strobe.bench.cases.visits import Load, Visit, plan
from strobe.bench.runner import end_line
from strobe.core.errors import SessionError, StrobeError
from strobe.perf.measure.machine import describe_run
from strobe.perf.records.record import Served, Server
from strobe.perf.records.record import Viewer as ViewerLine
from strobe.perf.records.store import RunWriter, create_run
from strobe.serve import protocol
from strobe.serve.client import Playback, RefusedError, watch

WARM_UP_S: Final = 600.0
"""A server that is not ready by then is given up."""


def run_load(
    load: Load,
    *,
    url: str,
    own: bool,
    device: str,
    root: Path,
    progress: Progress,
    open_run: Callable[[Path, str], RunWriter] = create_run,
) -> Path:
    """Load a server level by level, and write a line for each viewer as it leaves.

    Args:
        url: of the server, http or https.
        own: it was started for this run, on this machine.
        device: what the server runs on; empty if it is not known.

    Returns:
        the run folder.

    Raises:
        SessionError: the server is not there, wants a token or refuses even the first viewer.
    """
    socket = url.replace("http", "ws", 1).rstrip("/")
    welcome = asyncio.run(_look(load, socket))
    here = torch.device(device) if own and device else torch.device("cpu")
    with open_run(root, f"serve-{welcome.preset}") as writer:
        writer.append(describe_run(writer.folder, here, (welcome.preset,), len(load.levels), "serve"))
        writer.append(
            Server(
                url=url, own=own, model=welcome.model, device=device, width=welcome.width, height=welcome.height,
                fps=welcome.fps, block_frames=welcome.block_frames, start_buffer_ns=round(1e6 * welcome.start_buffer_ms),
            )
        )  # fmt: skip
        with end_line(writer):
            asyncio.run(_levels(load, socket, welcome, writer, progress))
    return writer.folder


async def _look(load: Load, url: str) -> protocol.Welcome:
    """Open a stream and close it: what the server says of itself, before anything is measured."""
    try:
        async with watch(url, preset=load.preset, codec=load.codec, token=load.token) as viewer:
            await viewer.send(protocol.Close())
            return viewer.welcome
    except OSError as error:
        raise SessionError(str(error)) from error


async def _levels(load: Load, url: str, welcome: protocol.Welcome, writer: RunWriter, progress: Progress) -> None:
    total = round(len(load.levels) * load.seconds)
    for number, level in enumerate(load.levels):

        def tell(seconds: float, watching: int, level: float = level, before: int = round(number * load.seconds)) -> None:
            progress(before + round(seconds), total, f"s, load {level:g}, {watching} viewers")

        began, at_first = time.monotonic_ns(), await asyncio.to_thread(_server_metrics, url, load.token)
        await _level(load, level, plan(load, level, welcome.examples), url, writer, tell)
        at_last = await asyncio.to_thread(_server_metrics, url, load.token)
        if at_first is not None and at_last is not None:
            writer.append(_served(level, time.monotonic_ns() - began, at_first, at_last))
        writer.sync()


async def _level(
    load: Load, level: float, visits: Sequence[Visit], url: str, writer: RunWriter, tell: Callable[[float, int], None]
) -> None:
    began, watching = time.monotonic(), 0

    async def come(number: int, visit: Visit) -> None:
        nonlocal watching
        await asyncio.sleep(max(0.0, began + visit.at_s - time.monotonic()))
        watching += 1
        line = await _visit(load, url, visit)
        watching -= 1
        writer.append(msgspec.structs.replace(line, load=level, viewer=number, arrived_ns=_ns(visit.at_s)))

    async def report() -> None:
        while True:
            tell(min(load.seconds, time.monotonic() - began), watching)
            await asyncio.sleep(1.0)

    reporting = asyncio.create_task(report())
    try:
        await asyncio.gather(*(come(number, visit) for number, visit in enumerate(visits)))
    finally:
        reporting.cancel()


def _server_metrics(url: str, token: str) -> dict[str, float] | None:
    """Read the server's counters by name; None if it does not show them."""
    request = urllib.request.Request(f"{url.replace('ws', 'http', 1)}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
    except (OSError, ValueError):
        return None


def _served(level: float, wall_ns: int, first: Mapping[str, float], last: Mapping[str, float]) -> Served:

    def rise(name: str) -> float:
        return last.get(name, 0.0) - first.get(name, 0.0)

    def mean_ns(name: str) -> int | None:
        count = last.get(f"{name}_count", 0.0)
        return _ns(last[f"{name}_sum"] / count) if count else None

    return Served(
        load=level,
        wall_ns=wall_ns,
        blocks=round(rise("strobe_block_seconds_count")),
        busy_ns=_ns(rise("strobe_device_busy_seconds_total")),
        pictures=round(rise("strobe_encode_seconds_count")),
        encode_ns=_ns(rise("strobe_encode_seconds_sum")),
        stream_bytes=round(last.get("strobe_stream_bytes", 0.0)) or None,
        suspend_ns=mean_ns("strobe_suspend_seconds"),
        wake_ns=mean_ns("strobe_wake_seconds"),
    )


class _Seen:
    """Notes of a viewer beside its playback."""

    def __init__(self) -> None:
        self.sent = 0
        self.asked: list[float] = []
        self.asked_of: dict[int, float] = {}
        self.blocks: list[float] = []
        self.effective: dict[int, tuple[protocol.Effective, float]] = {}
        self.pictures: dict[int, float] = {}
        self.last: tuple[int, int, int] | None = None
        self.lost = 0

    def __call__(self, message: protocol.FromServer | protocol.Picture | protocol.Prompt, now: float) -> None:
        if isinstance(message, protocol.Prompt):
            self.sent += 1
            self.asked.append(now)
        elif isinstance(message, protocol.Prompted | protocol.Error) and self.asked:
            asked = self.asked.pop(0)
            if isinstance(message, protocol.Prompted):
                self.asked_of[message.epoch] = asked
        elif isinstance(message, protocol.Made):
            self.blocks.append(now)
        elif isinstance(message, protocol.Effective):
            self.effective[message.epoch] = message, now
        elif isinstance(message, protocol.Picture):
            self.pictures.setdefault(message.epoch, now)
            here = (message.generation, message.epoch, message.frame)
            if self.last is not None and self.last[:2] == here[:2]:
                self.lost += max(0, here[2] - self.last[2] - 1)
            self.last = here

    def parts(self, epoch: int, painted: float) -> dict[str, int]:
        """Return where the time from a prompt to its first painted picture went, by what is measured apart, in ns."""
        (told, told_s), picture_s = self.effective[epoch], self.pictures[epoch]
        found = {name: round(1e6 * getattr(told, f"{name}_ms")) for name in ("wait", "text", "block")}
        return found | {"picture": _ns(picture_s - told_s), "paint": _ns(painted - picture_s)}


async def _visit(load: Load, url: str, visit: Visit) -> ViewerLine:
    """Watch as planned; load, number and arrival are for the caller to fill in."""
    came, seen = time.monotonic(), _Seen()
    line = ViewerLine(load=0, arrivals=load.arrivals, viewer=0, preset=load.preset, codec=load.codec, arrived_ns=0, watched_ns=0)
    (_, first), *later = visit.prompts
    playback: Playback | None = None
    try:
        async with watch(url, prompt=first, seed=visit.seed, preset=load.preset, codec=load.codec, token=load.token) as viewer:
            line = msgspec.structs.replace(line, preset=viewer.welcome.preset)
            await viewer.send(protocol.Play())
            playback = await viewer.play(max(0.0, visit.stay_s - (time.monotonic() - came)), later, seen)
            await viewer.send(protocol.Close())
    except RefusedError as error:
        line = msgspec.structs.replace(line, refusal="refused", cause=error.answer.reason)
    except (OSError, StrobeError) as error:
        line = msgspec.structs.replace(line, refusal="failed", cause=f"{type(error).__name__}: {error}")
    watched = _ns(time.monotonic() - came)
    if playback is None:
        return msgspec.structs.replace(line, watched_ns=watched)
    painted = playback.first_painted
    asked = {epoch: at for epoch, at in seen.asked_of.items() if epoch in painted and epoch in seen.effective}
    parts = [seen.parts(epoch, painted[epoch]) for epoch in asked]
    return msgspec.structs.replace(
        line,
        watched_ns=watched,
        first_picture_ns=_ns(min(painted.values()) - came) if painted else None,
        painted=playback.painted,
        late_ns=tuple(_ns(each / 1e3) for each in playback.late_ms),
        block_gaps_ns=tuple(_ns(after - before) for before, after in zip(seen.blocks, seen.blocks[1:], strict=False)),
        prompt_to_pixel_ns=tuple(_ns(painted[epoch] - at) for epoch, at in asked.items()),
        prompt_parts_ns={name: tuple(each[name] for each in parts) for name in (parts[0] if parts else ())},
        unanswered=seen.sent - len(asked),
        stalls=playback.stalls,
        stall_ns=_ns(playback.stall_s),
        lost=seen.lost,
    )


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Start `strobe serve` with these arguments in a process of its own and wait until it is ready; yield its address and device.

    Raises:
        StrobeError: it ends, or is not ready after `WARM_UP_S`; says what it printed.
    """
    command = [sys.executable, "-m", "strobe", "serve", "--port", "0", "--json", *arguments]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            said = "".join(takewhile(lambda line: line.rstrip() != "}", process.stdout)) + "}"
            ends = time.monotonic() + WARM_UP_S
            while process.poll() is None and time.monotonic() < ends:
                if said != "}" and _is_ready(json.loads(said)["url"]):
                    yield json.loads(said)["url"], json.loads(said)["device"]
                    return
                time.sleep(0.1)
            errors.seek(0)
            raise StrobeError(f"the server did not get ready: {errors.read().strip()[-600:] or f'{WARM_UP_S:g} s are over'}")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:  # 503 while it warms up is one too
        return False
