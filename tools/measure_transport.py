"""Measure how pictures travel from a server to a real browser: prints the table of docs/live.md, `make transport`.

A synthetic source of 480x832 at 16 pictures a second stands in for the model; everything behind it is the server's own: encoder,
WebSocket, page, decoder, canvas. Needs chromium.

Usage: python tools/measure_transport.py [--seconds 60] [--paced 600] [--delay-ms 20] [--mbit 20]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch

import live_server
from live_server import serving
from strobe.engine.load import load
from strobe.engine.model import Model
from strobe.perf.measure.stats import percentile
from strobe.serve.protocol import PromptEntry
from strobe.serve.scheduler import StreamCost
from strobe.serve.streams import Block, LiveStream
from strobe.serve.worker import Worker

HEIGHT, WIDTH, FPS = 480, 832, 16
AT_ONCE: Final = 12
"""Pictures of a frame block, where the source runs ahead of the viewer."""

DIRECT: Final = """async (seconds) => {
  const { Player } = await import("/player.js");
  const found = [];
  let bytes = 0;
  class Direct extends Player {
    take(buffer) {
      bytes += buffer.byteLength;
      super.take(buffer);
    }
    arrive(meta, image) {
      this.context.drawImage(image, 0, 0);
      this.context.getImageData(WIDTH - 1, HEIGHT - 1, 1, 1);
      found.push(performance.timeOrigin + performance.now() - meta.madeMs);
      image.close();
      meta.decodeMs = 0;
      this.seen(meta, 0);
    }
  }
  const canvas = document.createElement("canvas");
  const player = new Direct(canvas, {});
  await player.open({ prompt: "a red circle moving left", seed: 1, codec: CODEC });
  await new Promise((done) => setTimeout(done, 1000 * seconds));
  player.close();
  return { ms: found, bytes: bytes / found.length };
}"""

PACED: Final = """async (plan) => {
  const player = globalThis.strobe.player;
  const found = { late: [], lost: 0, stale: 0, stalls: 0, painted: 0 };
  const before = player.on.paint;
  let last = null;
  player.on.paint = (meta, late) => {
    found.painted += 1;
    found.late.push(late);
    if (last) {
      const [generation, epoch, frame] = last;
      if (meta.generation < generation || (meta.generation === generation && meta.epoch < epoch)) found.stale += 1;
      if (meta.generation === generation && meta.epoch === epoch) found.lost += Math.max(0, meta.frame - frame - 1);
    }
    last = [meta.generation, meta.epoch, meta.frame];
    before?.(meta, late);
  };
  const ends = performance.now() + 1000 * plan.seconds;
  let number = 0;
  while (performance.now() < ends) {
    await new Promise((done) => setTimeout(done, 7000));
    number += 1;
    if (number % 5 === 0) player.say({ type: "reset", seed: number });
    else player.say({ type: "prompt", text: "a blue square moving up", mode: "recache", over: 4, typed_ms: 0 });
  }
  found.stalls = player.stalls;
  return found;
}"""


@dataclass
class Pictures:
    """A moving picture that is no trouble to make: waves that drift under a disc."""

    frames: list[np.ndarray[Any, np.dtype[np.uint8]]]

    @classmethod
    def drawn(cls) -> Pictures:
        """Draw three seconds."""
        y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
        frames = []
        for number in range(48):
            at = number / 48 * 2 * np.pi
            waves = [
                np.sin(x / (31 + 9 * c) + at) * np.cos(y / (23 + 7 * c) - at) + np.sin((x + y) / 5 + 2 * at) / 8 for c in range(3)
            ]
            frame = np.uint8(120 + 70 * np.stack(waves, axis=-1))
            frame[(y - HEIGHT / 2) ** 2 + (x - WIDTH / 2 - 200 * np.sin(at)) ** 2 < 90**2] = (230, 40, 40)
            frames.append(frame)
        return cls(frames)


def stand_in(pictures: Pictures) -> dict[str, Any]:
    """Methods of `LiveStream` that need no session: frame blocks come from the pictures."""

    def start(self: LiveStream) -> None:
        self.log = [PromptEntry(epoch=0, frame_block=0, text=self.origin.prompt, mode="recache", over=4)]
        self.frames_made = self.blocks_made = 0
        self._next_epoch = 1

    def make(self: LiveStream) -> Block:
        live = self.origin.seed == 1
        if live:  # one picture at a time, when its time has come
            time.sleep(max(0.0, 1 / FPS - time.monotonic() % (1 / FPS)))
        index, count = self.blocks_made, 1 if live else AT_ONCE
        frames = np.stack([pictures.frames[(self.frames_made + n) % len(pictures.frames)] for n in range(count)])
        made = Block(
            frames=frames, index=index, first_frame=self.frames_made, generation=self.generation,
            epoch=max(entry.epoch for entry in self.log if entry.frame_block <= index),
            entered=next((entry for entry in self.log if entry.frame_block == index), None),
            block_ms=1.0, phases={}, made_s=time.monotonic(), cache={},
        )  # fmt: skip
        self.frames_made, self.blocks_made = self.frames_made + count, index + 1
        return made

    def prompt(self: LiveStream, text: str, mode: Any, over: int) -> tuple[int, int | None]:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self.log.append(PromptEntry(epoch=epoch, frame_block=self.blocks_made, text=text, mode=mode, over=over))
        return epoch, self.blocks_made

    def reset(self: LiveStream, origin: Any, config: Any) -> None:
        self.origin, self.config, self.generation = origin, config, self.generation + 1
        start(self)

    return {"open": start, "make": make, "prompt": prompt, "reset": reset}


def warm_up(self: Worker, prompt: str, tell: Any) -> None:
    """Costs of a source that takes no time."""
    cost = StreamCost(block_s=0.01, longest_s=0.01, content_s=AT_ONCE / FPS, stream_bytes=0)
    self.costs = dict.fromkeys(self.configs, cost)


@contextlib.contextmanager
def synthetic() -> Iterator[live_server.Running]:
    """A server whose streams are the pictures."""
    model = load("shapes")
    large: Model = replace(model, defaults=replace(model.defaults, frame_size=(HEIGHT, WIDTH)))
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(live_server, "load", lambda name: large))
        stack.enter_context(patch.object(Worker, "warm_up", warm_up))
        for name, method in stand_in(Pictures.drawn()).items():
            stack.enter_context(patch.object(LiveStream, name, method))
        yield stack.enter_context(serving())


def link(server: int, delay_s: float, bytes_s: float, told: Connection) -> None:
    """Serve a TCP proxy with the delay (one way) and the rate of a distant machine, both ways; tell its port. Never returns."""
    asyncio.run(_link(server, delay_s, bytes_s, told))


async def _link(port: int, delay_s: float, bytes_s: float, told: Connection) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, free = asyncio.get_running_loop(), 0.0
        while data := await reader.read(1500):
            free = max(free, loop.time()) + len(data) / bytes_s
            loop.call_at(free + delay_s, writer.write, data)
            if free - loop.time() > 0.005:  # the wire holds no more
                await asyncio.sleep(free - loop.time() - 0.005)
        loop.call_later(2 * delay_s, writer.close)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, back), carry(there, writer), return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def row(name: str, values: list[float]) -> str:
    """One row of the table, without those of the first second."""
    ordered = sorted(values[FPS:])
    return (
        f"| {name} | {len(ordered)} | {percentile(ordered, 0.5):.1f} | {percentile(ordered, 0.95):.1f} | {max(ordered):.1f} |\n"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement of the transport alone")
    parser.add_argument("--paced", type=float, default=600.0, help="seconds of the page itself")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="one way, of the distant machine")
    parser.add_argument("--mbit", type=float, default=20.0, help="per second, of its line")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.stderr.write("no chromium on this machine: apt-get install chromium\n")
        return 2
    from playwright.sync_api import sync_playwright

    torch.set_num_threads(1)
    with synthetic() as here, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])

        def direct(name: str, address: str, codec: str) -> str:
            page = browser.new_page()
            page.goto(f"{address}/style.css")  # a page of the server's that opens no stream
            script = DIRECT.replace("WIDTH", str(WIDTH)).replace("HEIGHT", str(HEIGHT)).replace("CODEC", f'"{codec}"')
            found = page.evaluate(script, options.seconds)
            page.close()
            return row(f"{name}, {found['bytes'] / 1e3:.1f} kB each", found["ms"])

        write = sys.stdout.write
        write("| picture handed to the encoder until its pixels can be read | pictures | p50, ms | p95, ms | max, ms |\n")
        write("|---|---:|---:|---:|---:|\n")
        write(direct("H.264, loopback", here.http, "h264"))
        write(direct("JPEG, loopback", here.http, "jpeg"))
        answer, told = multiprocessing.Pipe(duplex=False)
        given = (here.port, options.delay_ms / 1e3, options.mbit * 1e6 / 8, told)
        proxy = multiprocessing.get_context("spawn").Process(target=link, args=given, daemon=True)
        proxy.start()
        far = f"http://127.0.0.1:{answer.recv()}"
        write(direct(f"H.264, {options.delay_ms:g} ms away, {options.mbit:g} Mbit/s", far, "h264"))
        sys.stdout.flush()
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(here.http)
        page.locator("body[data-first='1']").wait_for(timeout=60_000)
        page.set_default_timeout(1e3 * options.paced + 60_000)
        found = page.evaluate(PACED, {"seconds": options.paced})
        write("\n| the page, paced | pictures | p50, ms | p95, ms | max, ms |\n|---|---:|---:|---:|---:|\n")
        write(row("painted after it was due", found["late"]))
        write(f"\n{found['painted']} painted, {found['lost']} lost, {found['stale']} stale, {found['stalls']} stalls\n")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
