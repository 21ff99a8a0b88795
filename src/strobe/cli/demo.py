"""`strobe demo`: a clip steered by prompts, four presets compared, one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from strobe.cli.compare import ClipFlags
from strobe.cli.console import OUT, Output
from strobe.cli.generate import WrittenClip
from strobe.cli.model import at_least
from strobe.cli.run_folder import measure, tells_what_is_kept

if TYPE_CHECKING:
    from strobe.engine.config import ModelDefaults

SHOWN: Final = ("baseline", "quality", "balanced", "turbo")
"""Presets that are compared on any machine: `ultra` wants FP8, and a latent frame of the bundled model is one tile, too few for
`sparse` to gain anything."""


def why_fast(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence on the main savings of the fastest candidate; none without an account."""
    clips = [row for row in found["speedups"] if row["level"] == "e2e" and (row["low"] or 0) > 1]
    if not clips:
        return
    best = max(clips, key=lambda row: row["ratio"])
    parts = [row for row in found["parts"] if row["candidate"] == best["candidate"] and (row["share"] or 0) > 0]
    most = sorted(parts, key=lambda row: -row["share"])[:2]
    if most:
        because = " and ".join(f"{row['part']} ({100 * row['share']:.0f} %)" for row in most)
        yield (
            f"{best['candidate']} is {best['ratio']:.2f} times as fast as {best['reference']}; "
            f"what it saves in a frame block is above all {because}."
        )


def side_by_side(run: Path, picture: Path, defaults: ModelDefaults, device: str) -> Iterator[str]:
    """Write the last frames of baseline and turbo as one picture and yield what turbo changed; nothing without both clips."""
    import torch

    from strobe.core.device import resolve_device
    from strobe.engine.presets import preset
    from strobe.engine.resolve import resolve
    from strobe.engine.video import write_png
    from strobe.quality.clips import read_clip

    names = ("baseline", "turbo")
    clips = [run / "clips" / f"{name}.mp4" for name in names]
    if not all(clip.exists() for clip in clips):
        return
    left, right = (read_clip(clip)[-1] for clip in clips)
    zoom = max(1, 384 // len(left))
    gap = left.new_full((len(left), 4, 3), 255)
    write_png(picture, torch.cat((left, gap, right), dim=1).repeat_interleave(zoom, 0).repeat_interleave(zoom, 1))
    slow, fast = (resolve(preset(name), defaults, resolve_device(device)) for name in names)
    steps, window = (len(slow.schedule.timesteps), len(fast.schedule.timesteps)), (slow.policy.window, fast.policy.window)
    yield (
        f"{picture}: the last frame of both, baseline on the left; turbo takes {steps[1]} denoise steps instead of {steps[0]}, "
        f"and its attention sees {window[1]} latent frames instead of {window[0]}."
    )


def what_next(run: Path) -> Iterator[str]:
    """Yield three commands to try next."""
    yield "Next:"
    yield '  strobe generate "a green star moving up" --switch 5s:"a blue square moving left" -o mine.mp4'
    yield f"  strobe trace {next(iter(sorted(run.glob('traces/*.json.gz'))), run)}"
    yield "  strobe compare baseline quality balanced turbo ultra --rounds 8"


def demo(
    *,
    out: Annotated[Path, Parameter(alias=OUT)] = Path("demo-out"),
    rounds: int = 3,
    clip: ClipFlags = ClipFlags(),
    output: Output = Output(),
) -> int:
    """Make a clip with two prompt switches, compare four presets on it, write the report: minutes on two idle cores.

    ```
    strobe demo  # slow
    strobe demo --out my-demo --prompt "a green star moving down" --rounds 4  # slow
    ```

    Args:
        out: the folder for everything; made if absent.
        rounds: palindromes of the comparison; see `strobe compare --help`.
    """
    at_least(1, rounds=rounds, blocks=clip.blocks)
    with output.progress("demo, 1 of 2: a clip") as advance:
        from strobe.bench.case import ComparePlan
        from strobe.bench.cases.stream import StreamCase
        from strobe.engine.session import Session

        model = clip.load()
        script = clip.script(model.defaults)
        case = StreamCase(SHOWN, script=script, model=model, device=clip.device, review_samples=2)
        out.mkdir(parents=True, exist_ok=True)
        video = WrittenClip(path=out / "clip.mp4")
        with Session(clip.prompt, model=model, seed=clip.seed, device=clip.device) as session:
            try:
                video.record(session, script.num_blocks, script.switches, advance)
            finally:
                if not video.broken:
                    output.show(*video.lines(session))
            made = video.document(session)
    with tells_what_is_kept(output, lambda: (f"the clip is kept: {video.path}",)):
        code, found = measure(case, ComparePlan(palindromes=rounds), out, [], output, title="demo, 2 of 2: presets compared")
    run = Path(found["runs"][0])
    shown_frames = side_by_side(run, out / "baseline-turbo.png", model.defaults, clip.device)
    output.show(*why_fast(found), *shown_frames, *what_next(run))
    output.emit({"clip": made, **found})
    return code
