"""`strobe demo`: a clip steered by prompts, four presets compared, one page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strobe.cli.compare import ClipFlags, measure
from strobe.cli.console import Output
from strobe.cli.generate import Clip
from strobe.cli.model import at_least

SHOWN: Final = ("baseline", "quality", "balanced", "turbo")
"""Presets that are compared on any machine: `ultra` wants FP8, and a latent frame of the bundled model is one tile, too few for
`sparse` to gain anything."""


def demo(
    *,
    out: Path = Path("demo-out"),
    rounds: int = 3,
    clip: ClipFlags = ClipFlags(),
    output: Output = Output(),
) -> int:
    """Make a clip with two prompt switches, compare four presets on it and write the report. A few minutes on two cores.

    ```
    strobe demo
    strobe demo --out my-demo --prompt "a green star moving down" --rounds 4
    ```

    Args:
        out: the folder for everything; made if absent.
        rounds: palindromes of the comparison; see `strobe compare --help`.
    """
    at_least(1, rounds=rounds, blocks=clip.blocks)
    with output.progress("demo") as advance:
        from strobe.bench.case import Plan
        from strobe.bench.cases.stream import StreamCase
        from strobe.engine.session import Session

        model = clip.load()
        script = clip.script(model.defaults)
        case = StreamCase(SHOWN, script=script, model=model, device=clip.device, review_samples=2)
        out.mkdir(parents=True, exist_ok=True)
        video = Clip(path=out / "clip.mp4")
        with Session(clip.prompt, model=model, seed=clip.seed, device=clip.device) as session:
            try:
                video.record(session, script.num_blocks, script.switches, advance)
            finally:
                if not video.broken:
                    output.show(*video.lines(session))
            made = video.document(session)
    code, found = measure(case, Plan(palindromes=rounds), out, [], output)
    output.show(f"demo: {video.path} {found['report']['html']}")
    output.emit({"clip": made, **found})
    return code
