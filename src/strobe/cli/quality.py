"""`strobe quality`: scores of clips against a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from strobe.cli.console import OUT, Output, named, table_text
from strobe.cli.report import GATE_FAILED
from strobe.cli.require import failures, parse_requirement, score_of
from strobe.cli.run_folder import check_page, write_page
from strobe.core.errors import ConfigError
from strobe.quality.available import MetricsAsked

_SHOWN: Final = ("metric", "value", "unit", "n", "better", "reference", "definition", "note")


def quality(
    reference: Annotated[Path, Parameter(name="REF")],
    /,
    *clips: Annotated[Path, Parameter(name="CLIP")],
    asked: Annotated[MetricsAsked, named("Metrics")] = MetricsAsked(),
    require: tuple[str, ...] = (),
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    output: Output = Output(),
) -> int:
    """Compare clips with a reference: PSNR, SSIM, MS-SSIM, FLIP, flicker, drift, jumps between frame blocks, and more.

    ```
    strobe quality dense.mp4 sparse80.mp4 sparse90.mp4  # needs-files
    strobe quality dense/ sparse/ --block-frames 9 12 -o quality.html  # needs-files
    strobe quality dense.mp4 sparse90.mp4 --metrics lpips --weights weights --require "lpips<0.1"  # needs-files
    ```

    Frame i is compared with frame i. A lossy file bounds every figure: H.264 at crf 23 alone is near 40 dB.

    Args:
        reference: a video, a folder of pictures, or a folder of clips.
        clips: as many as there are: videos or folders of pictures; of a folder of clips, folders of clips named alike.
        require: a condition that every clip must meet, such as psnr>=30 or sparse90:flip<0.05; exit code 1 if one does not.
        out: the page, .html, .md or .json.
    """
    requirements = [parse_requirement(text) for text in require]
    if not clips:
        raise ConfigError("nothing to compare with the reference: strobe quality REF CLIP [CLIP ...]")
    if out is not None:
        check_page(out)
    with output.progress("quality") as advance:
        from strobe.bench.quality import judge, variants_of
        from strobe.perf.report.quality_page import quality_report, scores_table

        variants = variants_of(reference, clips)
        lines = judge(variants, asked, advance)
        own = next(iter(variants))
        report = quality_report(own, lines)
    written = [] if out is None else write_page(report, out)
    figures = {name: {line.metric: score_of(line) for line in lines if line.variant == name} for name in variants if name != own}
    failed = [line for each in requirements for line in failures(each, figures)]
    why = dict.fromkeys(f"{line.metric}: {line.note}" for line in lines if line.value is None)  # whole: a cell would be cut
    output.show(table_text(scores_table(lines), notes=False), *why)
    output.show(*(f"not met: {line}" for line in failed), *written)
    cells = [{"clip": line.variant, **{name: getattr(line, name) for name in _SHOWN}} for line in lines]
    output.emit({"reference": own, "cells": cells, "written": written, "not_met": failed})
    return GATE_FAILED if failed else 0
