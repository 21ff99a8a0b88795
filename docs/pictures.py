"""Make the pictures of the README and the tutorials again, from real runs: `make pictures`.

Usage: python docs/pictures.py [NAME ...]

Every picture is what a command printed, what a page shows in Chromium, or frames of the bundled model.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright

import strobe

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs" / "pictures"
MOST_BYTES: Final = 150_000
MOST_BYTES_OF_A_CLIP: Final = 2_500_000
CASE: Final = "examples/vsa_case"
COLOURS: Final = ("#c83232", "#d9a514", "#8a93a6")
INK, PALE, PAPER = "#1b1e24", "#9aa1ad", "#ffffff"


def demo_clip() -> None:
    """Twelve seconds of the bundled model under three prompts, with the frame blocks under them, as they were made."""
    prompts = ("a red circle moving right", "a yellow star moving down", "a white square moving left")
    switches = [strobe.Switch(frame_block=at, prompt=text) for at, text in zip((5, 10), prompts[1:], strict=True)]
    with strobe.Session(prompts[0], preset="balanced", seed=17, device="cpu") as session:
        blocks = list(session.stream(num_blocks=15, switches=switches))
    fps = session.model.defaults.fps
    slides = [_slide(frame, blocks, at, number / len(each.frames), prompts)
              for at, each in enumerate(blocks) for number, frame in enumerate(each.frames) if number % 2 == 0]  # fmt: skip
    palette = _one_above_another(slides[:: len(slides) // 8]).quantize(48, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    first, *rest = (slide.quantize(palette=palette, dither=Image.Dither.NONE) for slide in slides)
    first.save(PICTURES / "demo.gif", save_all=True, append_images=rest, duration=round(2000 / fps), loop=0, optimize=True)


def _slide(frame: torch.Tensor, blocks: list[object], at: int, part: float, prompts: tuple[str, ...]) -> Image.Image:
    """One frame, its prompt, and the strip of frame blocks with those that are made already filled."""
    side, left, wide = 256, 24, 560
    slide = Image.new("RGB", (wide, side + 64), PAPER)
    draw = ImageDraw.Draw(slide)
    slide.paste(Image.fromarray(frame.numpy()).resize((side, side), Image.Resampling.LANCZOS), (left, 16))
    font, small = ImageFont.load_default(17), ImageFont.load_default(13)
    per_prompt = -(-len(blocks) // len(prompts))
    now = at // per_prompt
    for number, prompt in enumerate(prompts):
        y = 60 + 56 * number
        seen = number <= now
        draw.rectangle((left + side + 20, y, left + side + 26, y + 34), fill=COLOURS[number] if seen else "#e4e7ec")
        draw.text((left + side + 36, y), prompt, font=font, fill=INK if number == now else PALE)
        draw.text((left + side + 36, y + 20), f"from frame block {per_prompt * number}", font=small, fill=PALE)
    pitch = (wide - 2 * left) / len(blocks)
    for number in range(len(blocks)):
        x, y = left + pitch * number, side + 32
        done = 1.0 if number < at else part if number == at else 0.0
        draw.rectangle((x, y, x + pitch - 4, y + 16), fill="#e4e7ec")
        if done:
            draw.rectangle((x, y, x + (pitch - 4) * done, y + 16), fill=COLOURS[number // per_prompt])
    return slide


def _one_above_another(slides: list[Image.Image]) -> Image.Image:
    sheet = Image.new("RGB", (slides[0].width, slides[0].height * len(slides)))
    for number, slide in enumerate(slides):
        sheet.paste(slide, (0, slide.height * number))
    return sheet


def speedup() -> None:
    """The answer of the case of the first tutorial."""
    files = [f"{CASE}/{name}.{kind}" for name in ("fa", "vsa") for kind in ("log", "pt.trace.json.gz")]
    with _made("speedup", *files) as folder, _browser(1000, 1000) as page:
        page.goto(f"file://{folder}/report.html")
        _shoot(page, "speedup", (0, 40, 1000, 930))


def trace() -> None:
    """Busy, idle and one step of a capture of a GPU that waits for its host."""
    with _made("trace", "tests/data/h200/eager.json.gz") as folder, _browser(1000, 1000) as page:
        page.goto(f"file://{folder}/report.html")
        _shoot(page, "trace", (0, 250, 1000, 930))


def report() -> None:
    """The answer of a comparison of presets on an H200."""
    with _made("report", "benchmarks/engine-h200/compare") as folder, _browser(1000, 1000) as page:
        page.goto(f"file://{folder}/report.html")
        _shoot(page, "report", (0, 90, 1000, 800))


def live() -> None:
    """The page of `strobe serve`, some seconds after a prompt switch."""
    command = [sys.executable, "-m", "strobe", "serve", "--port", "0", "--device", "cpu", "--preset", "turbo"]
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as server:
        try:
            with _browser(1280, 800) as page:
                address = None
                while address is None and server.poll() is None:
                    page.wait_for_timeout(500)
                    said.seek(0)
                    address = re.search(r"http://127\.0\.0\.1:\d+/", said.read())
                page.goto(address[0])
                page.locator("body[data-first='1']").wait_for(timeout=120_000)
                page.wait_for_timeout(5000)
                page.fill("#prompt", "a blue square moving up")
                page.press("#prompt", "Enter")
                page.wait_for_timeout(6000)
                _shoot(page, "live", (0, 0, 1280, 800))
        finally:
            server.terminate()


def tiles() -> None:
    """Key tiles that one query tile of a video selects, frame by frame, from a real call."""
    frames, grid, tile = _moving_circle(), (8, 32, 32), (2, 4, 4)
    patches = frames.reshape(8, 32, 4, 32, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(1, -1, 1, 48)
    tokens = torch.nn.functional.pad(patches - patches.mean(dim=1, keepdim=True), (0, 16)) * 6
    found = strobe.video_sparse_attention(tokens, tokens, tokens, grid=grid, tile=tile, sparsity=0.875)
    layout = found.q_tiles
    number = torch.arange(layout.num_tokens).reshape(1, -1, 1, 1).float()
    tile_of = torch.full((layout.num_tokens,), -1)
    rows = layout.to_tiles(number)[0, :, 0, 0].long()
    real = layout.sizes().repeat_interleave(len(rows) // layout.num_tiles)
    for row, token in enumerate(rows.tolist()):
        if row % (len(rows) // layout.num_tiles) < int(real[row]):
            tile_of[token] = row // (len(rows) // layout.num_tiles)
    query = _tile_of_the_circle(frames, tile_of)
    chosen = set(found.selection.indices[0, 0, query, : int(found.selection.counts[0, 0, query])].tolist())
    _draw_tiles(frames, tile_of.reshape(grid), query, chosen)


def _moving_circle() -> torch.Tensor:
    """Eight frames of the bundled model, float in [0, 1], [8, 128, 128, 3]."""
    with strobe.Session("a red circle moving right on a navy background", preset="balanced", seed=17, device="cpu") as session:
        frames = torch.cat([block.frames for block in session.stream(num_blocks=4)])
    return frames[-32::4].float() / 255


def _tile_of_the_circle(frames: torch.Tensor, tile_of: torch.Tensor) -> int:
    """The tile of the first frame with most red in it."""
    redness = (frames[0, ..., 0] - frames[0, ..., 1:].mean(dim=-1)).reshape(32, 4, 32, 4).mean(dim=(1, 3)).flatten()
    return int(tile_of[int(redness.argmax())])


def _draw_tiles(frames: torch.Tensor, tile_of: torch.Tensor, query: int, chosen: set[int]) -> None:
    """The frames in a row of four by two: what is selected as it is, the rest faded, the query tile framed."""
    side, gap = 224, 12
    sheet = Image.new("RGB", (4 * side + 5 * gap, 2 * side + 3 * gap), PAPER)
    for at in range(len(frames)):
        seen = torch.isin(tile_of[at], torch.tensor(sorted(chosen))).repeat_interleave(4, 0).repeat_interleave(4, 1)
        shown = torch.where(seen[..., None], frames[at], 0.15 * frames[at] + 0.85 * 0.93)
        picture = Image.fromarray((shown * 255).byte().numpy()).resize((side, side), Image.Resampling.NEAREST)
        inside = (tile_of[at] == query).nonzero()
        if len(inside):
            (top, left), (bottom, right) = inside.min(dim=0).values.tolist(), (inside.max(dim=0).values + 1).tolist()
            box = tuple(edge * side // 32 for edge in (left, top, right, bottom))
            ImageDraw.Draw(picture).rectangle(box, outline="#ffffff", width=3)
        sheet.paste(picture, (gap + at % 4 * (side + gap), gap + at // 4 * (side + gap)))
    _save(sheet, "tiles")


@contextmanager
def _made(verb: str, *arguments: str) -> Iterator[Path]:
    """A folder with the pages that a verb of `strobe` wrote."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "strobe", verb, *arguments, "--out", name, "--quiet"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        yield Path(name)


@contextmanager
def _browser(width: int, height: int) -> Iterator[Page]:
    """A page of Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        browser.close()


def _shoot(page: Page, name: str, box: tuple[int, int, int, int]) -> None:
    """Keep a part of what a page shows."""
    x, y, width, height = box
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        page.screenshot(path=path, full_page=True, clip={"x": x, "y": y, "width": width, "height": height})
        _save(Image.open(path).convert("RGB"), name)


def _save(picture: Image.Image, name: str) -> None:
    """Write it with few colours, which is small and looks the same."""
    picture.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


MADE: Final[dict[str, Callable[[], None]]] = {
    "demo": demo_clip, "speedup": speedup, "trace": trace, "report": report, "live": live, "tiles": tiles,
}  # fmt: skip


def main() -> int:
    """Make those that were named, or all, and check that they are small."""
    for name in sys.argv[1:] or MADE:
        MADE[name]()
    too_large = [
        f"{path.name}: {path.stat().st_size:,} bytes, {most:,} allowed"
        for path in sorted(PICTURES.iterdir())
        if path.stat().st_size > (most := MOST_BYTES_OF_A_CLIP if path.suffix == ".gif" else MOST_BYTES)
    ]
    made = [f"{path.name} {path.stat().st_size:,}" for path in sorted(PICTURES.iterdir())]
    sys.stdout.write("\n".join([*made, *too_large]) + "\n")
    return int(bool(too_large))


if __name__ == "__main__":
    sys.exit(main())
