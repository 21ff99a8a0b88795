"""Structs of each verb's `--json` document, by the words of the verb."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from strobe.perf.report.documents.history import HistoryDocument
from strobe.perf.report.documents.runs import RunDocument
from strobe.perf.report.documents.speedup import SpeedupDocument
from strobe.perf.report.documents.trace import TraceDocument
from strobe.perf.report.documents.value import SCHEMA_VERSION, Part

Written = Annotated[dict[str, str], Meta(description="paths of what was written, by what it is; empty without -o")]
ReportPaths = Annotated[dict[str, str], Meta(description="paths of the report, by suffix")]
Paths = Annotated[tuple[str, ...], Meta(description="paths of the report's files")]
NotMet = Annotated[tuple[str, ...], Meta(description="requirements that do not hold, each with the reason; exit code 1 if any")]
Red = Annotated[dict[str, str], Meta(description="candidates whose gate was red, with the rule and what was measured")]
Cells = Annotated[tuple[str, ...], Meta(description="names of cells")]


class _Printed(Part, frozen=True, kw_only=True):
    """Base of documents that a verb builds itself."""

    v: Annotated[int, Meta(description="schema version of the document")] = SCHEMA_VERSION


class Traced(TraceDocument, frozen=True, kw_only=True):
    """`strobe trace`: tables of profiler traces."""

    written: Written


class Compared(SpeedupDocument, frozen=True, kw_only=True):
    """`strobe speedup` of logs and traces: speedup at each level, and the ledger of the difference."""

    written: Written
    not_met: NotMet


class Reported(RunDocument, frozen=True, kw_only=True):
    """`strobe report`, and `strobe speedup RUN_DIR`: the speedups of measured runs."""

    report: ReportPaths
    figures: Annotated[
        dict[str, dict[str, float | None]],
        Meta(description="by candidate: every level and metric that --require can name; null where not measured or infinite"),
    ]
    not_met: NotMet
    damaged: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="by run folder: what is damaged and left out; empty if nothing is"),
    ]


class Tracked(HistoryDocument, frozen=True, kw_only=True):
    """`strobe track`: figures over commits, and the commits that changed them."""

    report: ReportPaths
    figures: Annotated[
        dict[str, dict[str, float | None]],
        Meta(description="by figure of the machine that measured last: what --require can name; null where there is none"),
    ]
    not_met: NotMet


class Measured(Reported, frozen=True, kw_only=True):
    """`strobe compare`: the speedups of the run that it measured."""

    red: Red


class ClipMade(Part, frozen=True, kw_only=True):
    """A clip that was made: its file, length, speed, preset and device."""

    path: Annotated[str | None, Meta(description="the file; null if no frame was made")]
    frames: Annotated[int, Meta(description="pixel frames")]
    frame_blocks: Annotated[int, Meta(description="frame blocks")]
    fps: Annotated[int | float, Meta(description="frames per second of playback")]
    preset: Annotated[str, Meta(description="preset that ran")]
    picked: Annotated[str | None, Meta(description="why that preset was picked; null if it was named")]
    model: Annotated[str, Meta(description="model")]
    device: Annotated[str, Meta(description="device")]
    devices: Annotated[int, Meta(description="number of devices")]
    work_ns: Annotated[int, Meta(description="time from noise to pixel frames, without loading and file writing")]
    pixel_fps: Annotated[float | None, Meta(description="frames / that time, frames per second; null without frames")]
    prompts: Annotated[tuple[dict[str, Any], ...], Meta(description="`frame_block` from which each prompt ran, and its `text`")]


class Generated(ClipMade, frozen=True, kw_only=True):
    """`strobe generate`: the clip that was made."""

    v: Annotated[int, Meta(description="schema version of the document")] = SCHEMA_VERSION


class Serving(_Printed, frozen=True, kw_only=True):
    """`strobe serve`: the address it listens on; printed before the first viewer can connect."""

    url: Annotated[str, Meta(description="address of the page")]
    port: Annotated[int, Meta(description="port it listens on")]
    model: Annotated[str, Meta(description="the model, as it was asked for")]
    preset: Annotated[str, Meta(description="preset of who asks for none")]
    device: Annotated[str, Meta(description="device that streams run on")]


class Shown(Measured, frozen=True, kw_only=True):
    """`strobe demo`: the comparison, and the clip made before it."""

    clip: Annotated[ClipMade, Meta(description="the clip")]


class ProfiledStream(Measured, frozen=True, kw_only=True):
    """`strobe profile stream`: the run of one or several presets."""

    kept: Annotated[tuple[str, ...], Meta(description="where earlier contents of the folder were moved")]
    attribution: Annotated[tuple[str, ...], Meta(description="path of the page on who calls what, if it was asked for")]


class ProfiledAttention(_Printed, frozen=True, kw_only=True):
    """`strobe profile attention`: one call by several implementations."""

    run: Annotated[str, Meta(description="run folder")]
    report: ReportPaths
    speedups: Annotated[tuple[dict[str, Any], ...], Meta(description="`candidate`, `reference`, `level`, `ratio`, `low`, `high`")]
    red: Annotated[tuple[str, ...], Meta(description="implementations whose gate was red")]
    not_met: NotMet


class ProfiledDit(Measured, frozen=True, kw_only=True):
    """`strobe profile dit`: forward passes of one transformer under several kinds of attention."""

    kept: Annotated[tuple[str, ...], Meta(description="where earlier contents of the folder were moved")]


class ProfiledKernels(_Printed, frozen=True, kw_only=True):
    """`strobe profile kernels`: one denoise step, operation by operation."""

    written: Paths
    step: Annotated[
        dict[str, Any],
        Meta(
            description="`n`, `mean_ns`, `parts_ns` by kind, `difference_ns`, `operations` with `calls`, `n`, `mean_ns`, `p50_ns`"
        ),
    ]
    report: Annotated[dict[str, Any], Meta(description="the page as it is laid out, as in its JSON twin")]


class Presets(_Printed, frozen=True, kw_only=True):
    """`strobe presets show`: the settings of each preset."""

    device: Annotated[str, Meta(description="device they would run on")]
    presets: Annotated[dict[str, str], Meta(description="by preset: what it is")]
    settings: Annotated[dict[str, dict[str, str]], Meta(description="by setting and preset: the value")]
    off_here: Annotated[dict[str, dict[str, str]], Meta(description="by preset and setting: why it is off on this device")]
    lacking: Annotated[dict[str, str], Meta(description="presets that cannot run here, with the reason")]
    elsewhere: Annotated[dict[str, str], Meta(description="settings that a page explains, with the page")]


class Picked(_Printed, frozen=True, kw_only=True):
    """`strobe presets pick`: the preset of best quality that holds a frame rate."""

    preset: Annotated[str, Meta(description="the preset")]
    holds: Annotated[bool, Meta(description="it holds the frame rate; if not, it is the fastest, and the exit code 1")]
    fps: Annotated[float | int, Meta(description="frame rate asked for, frames per second")]
    needed_fps: Annotated[float, Meta(description="what a preset must reach to hold it, frames per second")]
    why: Annotated[str, Meta(description="why this one")]
    presets: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each trial: `preset`, `reason`, `frames`, `blocks_ns`, `slowest_fps`, `median_fps`, `spread`, `cost_ns`"
        ),
    ]
    model: Annotated[str, Meta(description="model")]


class Machine(_Printed, frozen=True, kw_only=True):
    """`strobe doctor`: the state of this machine. Without torch it holds only the checks."""

    checks: Annotated[tuple[dict[str, Any], ...], Meta(description="`name`, `ok`, `detail`, and `fix` if it is not ok")]
    defaults: Annotated[
        dict[str, Any], Meta(description="`file` of defaults of flags, null if there is none; `tables`: the flags that each sets")
    ]
    machine: Annotated[dict[str, Any] | UnsetType, Meta(description="as Machine in docs/records.md")] = UNSET
    attention: Annotated[Any, Meta(description="which implementations run here, and why the others do not")] = UNSET
    presets: Annotated[dict[str, Any] | UnsetType, Meta(description="by preset and optimisation: `on`, `reason`")] = UNSET
    lacking: Annotated[dict[str, str] | UnsetType, Meta(description="presets that cannot run here, with the reason")] = UNSET
    metrics: Annotated[dict[str, str] | UnsetType, Meta(description="by quality metric: `measured`, or why not")] = UNSET
    plugins: Annotated[
        tuple[dict[str, str], ...] | UnsetType,
        Meta(description="what other packages add: `group`, `name`, `place`, `package`, and `broken`: why it is, or nothing"),
    ] = UNSET
    memory: Annotated[dict[str, Any] | UnsetType, Meta(description="with --preset: bytes that a stream will hold")] = UNSET
    devices: Annotated[tuple[dict[str, Any], ...] | UnsetType, Meta(description="with --devices: the same by number")] = UNSET


class Linted(_Printed, frozen=True, kw_only=True):
    """`strobe lint`: claims that cannot be true."""

    files: Annotated[tuple[str, ...], Meta(description="files that were read")]
    findings: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="`rule`, `severity`, `place` (`path`, `line`, `table`, `row`, `column`), `said`, `corrected`, `why`, "
            "`also`"
        ),
    ]


class Ablated(_Printed, frozen=True, kw_only=True):
    """`strobe ablate` and `strobe log`: cells of one setting each."""

    report: ReportPaths
    measured: Cells
    kept: Cells
    failed: Annotated[tuple[str, ...], Meta(description="cells that failed, each with the reason")]
    stop: Annotated[dict[str, tuple[str, ...]], Meta(description="what voids figures, by title; empty if nothing does")]
    speedups: Annotated[tuple[dict[str, Any], ...], Meta(description="`candidate`, `reference`, `ratio`, `low`, `high`")]


class Scored(_Printed, frozen=True, kw_only=True):
    """`strobe bench shapes`: quality scores of the bundled model."""

    figures: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="`name`, `preset`, `value`, `target`, `reached`, `n`, `definition`"),
    ]


class Soaked(_Printed, frozen=True, kw_only=True):
    """`strobe bench soak`: the first part of a long stream against its last."""

    run: Annotated[str, Meta(description="run folder")]
    blocks: Annotated[int, Meta(description="frame blocks")]
    drift: Annotated[float | None, Meta(description="relative change of a frame block's time; null if too few")]
    figures: Annotated[dict[str, Any], Meta(description="by figure: `first`, `last`, `may_grow`, `holds`")]
    report: ReportPaths


class Loaded(_Printed, frozen=True, kw_only=True):
    """`strobe bench serve`: what the viewers of a server saw, by load."""

    run: Annotated[str, Meta(description="run folder")]
    loads: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each `load` with `at_once`, `came`, `refused`, `failed`, `on_time` and `play_ratio` (shares), `stalls`, "
            "`stall_ns`, `first_picture_ns` and `prompt_to_pixel_ns` of each viewer and prompt, and `held`"
        ),
    ]
    report: ReportPaths


class Benched(_Printed, frozen=True, kw_only=True):
    """`strobe bench attention`, `tree` and `scaling`: a grid of calls."""

    cells: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each cell with its `contestants` or `strategies`: `name`, `median_ns`, `calls` and what else was found"
        ),
    ]
    measured: Cells
    kept: Cells
    failed: Annotated[tuple[str, ...], Meta(description="cells that failed, each with the reason")]
    report: Paths


class _Extracted(_Printed, frozen=True, kw_only=True):
    """Base of documents with figures from logs and traces."""

    inputs: Annotated[tuple[dict[str, Any], ...], Meta(description="each file: `path`, `bytes`, `sha256`")]
    logs: Annotated[
        tuple[dict[str, Any], ...], Meta(description="each log: `path`, `counts` of its lines, `similar`, `rejected`")
    ]
    written: Annotated[str | UnsetType, Meta(description="path of the page, with -o")] = UNSET


class Stages(_Extracted, frozen=True, kw_only=True):
    """`strobe extract stages`: rounds of stages."""

    stages: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="`log`, `stage`, `rounds_ns`, `avg_all_rounds_ns`, `avg_excl_warmup_ns`, `excluded`, `ranks`, `note`"),
    ]


class Timers(_Extracted, frozen=True, kw_only=True):
    """`strobe extract attention`: attention timers."""

    attention: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="`log`, `timer`, `rank`, `units`, `values`, `calls` (times in `_ns`), `method`, `excluded`, `outliers`"),
    ]


class Kernels(_Extracted, frozen=True, kw_only=True):
    """`strobe extract kernels`: focal kernels."""

    focal: Annotated[str, Meta(description="regular expression of the focal kernel")]
    kernels: Annotated[
        tuple[dict[str, Any], ...], Meta(description="`trace`, and `devices` with `names` and `calls` (times in `_ns`)")
    ]


class Trained(_Printed, frozen=True, kw_only=True):
    """`strobe train-shapes`: the weights, and the last figures of each stage."""

    folder: Annotated[str, Meta(description="where the weights lie")]
    stages: Annotated[dict[str, Any], Meta(description="by stage: `step`, `seconds` and its figures")]


class Judged(_Printed, frozen=True, kw_only=True):
    """`strobe quality`: scores of clips against a reference."""

    reference: Annotated[str, Meta(description="name of the reference")]
    cells: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="`clip`, `metric`, `value` (null: not measured or not defined, see `note`), `unit`, `n`, `better`, "
            "`reference`, `definition`, `note`"
        ),
    ]
    vbench: Annotated[str | None, Meta(description="command that judges exported clips; null if none were")]
    written: Paths
    not_met: NotMet


DOCUMENTS: Final[dict[str, tuple[type[Part], ...]]] = {
    "demo": (Shown,),
    "generate": (Generated,),
    "serve": (Serving,),
    "compare": (Measured,),
    "report": (Reported,),
    "trace": (Traced,),
    "speedup": (Compared, Reported),
    "doctor": (Machine,),
    "ablate": (Ablated,),
    "log": (Ablated,),
    "bench shapes": (Scored,),
    "bench attention": (Benched,),
    "bench tree": (Benched,),
    "bench scaling": (Benched,),
    "bench soak": (Soaked,),
    "bench serve": (Loaded,),
    "extract stages": (Stages,),
    "extract attention": (Timers,),
    "extract kernels": (Kernels,),
    "lint": (Linted,),
    "presets show": (Presets,),
    "presets pick": (Picked,),
    "profile stream": (ProfiledStream,),
    "profile attention": (ProfiledAttention,),
    "profile kernels": (ProfiledKernels,),
    "profile dit": (ProfiledDit,),
    "quality": (Judged,),
    "track run": (Tracked,),
    "track report": (Tracked,),
    "track find": (Tracked,),
    "train-shapes": (Trained,),
}
"""Documents of every verb; for a run folder `speedup` prints the second one."""
