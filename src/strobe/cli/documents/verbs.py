"""Structs of each verb's `--json` document, by the words of the verb."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from strobe.perf.report.blocks.rows import DocumentPart
from strobe.perf.report.documents.runs import SCHEMA_VERSION, RunDocument
from strobe.perf.report.documents.speedup import SpeedupDocument
from strobe.perf.report.documents.trace import TraceDocument

Written = Annotated[
    dict[str, str], Meta(description="paths of the written files, by kind, e.g. `html`; empty if none was written")
]
ReportPaths = Annotated[dict[str, str], Meta(description="paths of the report, by suffix, e.g. `html`")]
Paths = Annotated[tuple[str, ...], Meta(description="paths of the files of the report")]
NotMet = Annotated[
    tuple[str, ...], Meta(description="requirements (--require) that are not met, each with the reason; exit code 1 if any")
]


class Printed(DocumentPart, frozen=True, kw_only=True):
    """Base of documents that a verb builds itself."""

    v: Annotated[int, Meta(description="schema version of the document")] = SCHEMA_VERSION


class Extracted(Printed, frozen=True, kw_only=True):
    """`strobe extract`: figures from logs and traces, those of the verb that ran."""

    inputs: Annotated[tuple[dict[str, Any], ...], Meta(description="each input file: `path`, `bytes`, `sha256`")]
    logs: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="each log: `path`, `counts` of its lines, `damage`, `similar` lines, `rejected` values"),
    ]
    written: Annotated[str | UnsetType, Meta(description="path of the page, with -o")] = UNSET
    stages: Annotated[
        tuple[dict[str, Any], ...] | UnsetType,
        Meta(
            description="each log and stage: `log`, `stage`, `rounds_ns`, `avg_all_rounds_ns`, `avg_excl_warmup_ns`, "
            "`excluded`, `ranks`, `note`"
        ),
    ] = UNSET
    attention: Annotated[
        tuple[dict[str, Any], ...] | UnsetType,
        Meta(
            description="each timer: `log`, `timer`, `rank`, `units`, number of `values`, `calls` (times in `_ns`), "
            "`method`, `note`, `excluded`, `outliers`, `remarks`"
        ),
    ] = UNSET
    focal: Annotated[str | UnsetType, Meta(description="regular expression of the focal kernel")] = UNSET
    kernels: Annotated[
        tuple[dict[str, Any], ...] | UnsetType,
        Meta(description="each trace: `trace`, and its `devices` with `device`, `names` and `calls` (times in `_ns`)"),
    ] = UNSET


class TraceOutput(TraceDocument, frozen=True, kw_only=True):
    """`strobe trace`: tables of profiler traces."""

    written: Written


class SpeedupOutput(SpeedupDocument, frozen=True, kw_only=True):
    """`strobe speedup` of logs and traces: speedup at each level, and the account (ledger) of the difference."""

    written: Written
    not_met: NotMet


class Generated(DocumentPart, frozen=True, kw_only=True):
    """`strobe generate`: the clip that was made; within another document it has no version."""

    v: Annotated[int | UnsetType, Meta(description="schema version of the document")] = UNSET
    path: Annotated[str | None, Meta(description="path of the file; null if no frame was made")]
    frames: Annotated[int, Meta(description="number of pixel frames")]
    frame_blocks: Annotated[int, Meta(description="number of frame blocks")]
    fps: Annotated[int | float, Meta(description="frames per second of playback")]
    preset: Annotated[str, Meta(description="preset that ran")]
    picked: Annotated[str | None, Meta(description="reason why strobe picked this preset; null if the user named it")]
    model: Annotated[str, Meta(description="name of the model")]
    device: Annotated[str, Meta(description="device that made the clip")]
    devices: Annotated[int, Meta(description="number of devices")]
    work_ns: Annotated[int, Meta(description="time from noise to pixel frames, without loading and without file writing")]
    pixel_fps: Annotated[float | None, Meta(description="`frames` / `work_ns`, in frames per second; null without frames")]
    prompts: Annotated[tuple[dict[str, Any], ...], Meta(description="prompts: `text` and the `frame_block` where each begins")]


class Reported(RunDocument, frozen=True, kw_only=True):
    """`strobe report`, `compare`, `demo`, `profile stream`, `attention` and `dit`, and `speedup RUN_DIR`: speedups of runs."""

    report: ReportPaths
    figures: Annotated[
        dict[str, dict[str, float | None]],
        Meta(description="by candidate: value of each level and metric that --require accepts; null: not measured or infinite"),
    ]
    not_met: NotMet
    damaged: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="by damaged run folder: the damage; damaged records are left out; empty if there is no damage"),
    ]
    red: Annotated[
        dict[str, str] | UnsetType,
        Meta(description="of a run that was measured now, by candidate that failed its gate: the rule and the measured figure"),
    ] = UNSET
    kept: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(description="of such a run: paths to which earlier contents of its folder were moved"),
    ] = UNSET
    attribution: Annotated[
        tuple[str, ...] | UnsetType,
        Meta(description="of `profile stream`: path of the page that attributes time to callers; empty if not asked for"),
    ] = UNSET
    clip: Annotated[Generated | UnsetType, Meta(description="of `demo`: clip that was made before the comparison")] = UNSET


class Serving(Printed, frozen=True, kw_only=True):
    """`strobe serve`: the address it listens on; printed before the first viewer can connect."""

    url: Annotated[str, Meta(description="URL of the page")]
    port: Annotated[int, Meta(description="port that the server listens on")]
    model: Annotated[str, Meta(description="name of the model, as given on the command line")]
    preset: Annotated[str, Meta(description="preset of viewers who ask for none")]
    device: Annotated[str, Meta(description="device that streams run on")]


class ProfiledKernels(Printed, frozen=True, kw_only=True):
    """`strobe profile kernels`: one denoise step, operation by operation."""

    written: Paths
    step: Annotated[
        dict[str, Any],
        Meta(
            description="`n` measured steps, `mean_ns`, `parts_ns` by kind, `difference_ns`, and by operation: `calls`, `n`, "
            "`mean_ns`, `p50_ns`"
        ),
    ]
    report: Annotated[dict[str, Any], Meta(description="layout of the page, as in `report.json`")]


class Presets(Printed, frozen=True, kw_only=True):
    """`strobe presets`: the settings of each preset."""

    device: Annotated[str, Meta(description="device that `off_here` and `lacking` are about")]
    presets: Annotated[dict[str, str], Meta(description="by preset: its description")]
    settings: Annotated[dict[str, dict[str, str]], Meta(description="value by setting and preset")]
    off_here: Annotated[dict[str, dict[str, str]], Meta(description="by preset and optimisation: why it is off on this device")]
    lacking: Annotated[dict[str, str], Meta(description="by preset that cannot run on this device: the reason")]
    elsewhere: Annotated[dict[str, str], Meta(description="by setting that another page explains: that page")]


class DoctorOutput(Printed, frozen=True, kw_only=True):
    """`strobe doctor`: the state of this machine. Without torch the document holds only the checks."""

    checks: Annotated[tuple[dict[str, Any], ...], Meta(description="checks: `name`, `ok`, `detail`, and `fix` if it is not ok")]
    defaults: Annotated[
        dict[str, Any],
        Meta(description="`file` of defaults of flags, null if there is none; `tables`: flags that each table sets"),
    ]
    gate: Annotated[
        dict[str, Any] | UnsetType,
        Meta(
            description="with --gate: `gates` that were run (`operator`, `impl`, `ran`, `tests`: number of cases, `failed`: the "
            "case that failed, `refused`: what is not taken), `record`: the file they are in, `reason` why none ran"
        ),
    ] = UNSET
    machine: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="facts of the machine, with the keys of `DoctorOutput` in [records.md](records.md#machine)"),
    ] = UNSET
    attention: Annotated[
        Any,
        Meta(
            description="attention implementation that would run (`runs`), reasons against others (`passed_over`), state of "
            "each (`impls`)"
        ),
    ] = UNSET
    presets: Annotated[
        dict[str, Any] | UnsetType, Meta(description="by preset and optimisation: `on`, `reason` if it is off")
    ] = UNSET
    lacking: Annotated[dict[str, str] | UnsetType, Meta(description="by preset that cannot run here: the reason")] = UNSET
    metrics: Annotated[dict[str, str] | UnsetType, Meta(description="by quality metric: `measured`, or why it is not")] = UNSET
    plugins: Annotated[
        tuple[dict[str, str], ...] | UnsetType,
        Meta(description="plug-ins: `group`, `name`, `place`, `package`, and `broken`: the reason, empty if it loads"),
    ] = UNSET
    memory: Annotated[dict[str, Any] | UnsetType, Meta(description="with --preset: predicted memory of a stream, bytes")] = UNSET
    devices: Annotated[
        tuple[dict[str, Any], ...] | UnsetType, Meta(description="with --devices: the same by number of devices")
    ] = UNSET


class Linted(Printed, frozen=True, kw_only=True):
    """`strobe lint`: claims in documents and records that cannot be true."""

    files: Annotated[tuple[str, ...], Meta(description="files that were read")]
    findings: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each finding: `rule`, `severity`, `place` (`path`, `line`, `table`, `row`, `column`), `said`, "
            "`corrected`, `why`, and `also` (further places)"
        ),
    ]


class Varied(Printed, frozen=True, kw_only=True):
    """`strobe compare --vary` and `strobe report --log`: many runs, of changed settings or of a log, with their speedups."""

    report: ReportPaths
    measured: Annotated[tuple[str, ...], Meta(description="names of the cells that this call measured")]
    kept: Annotated[tuple[str, ...], Meta(description="names of the cells that an earlier call had measured")]
    failed: Annotated[tuple[str, ...], Meta(description="names of the cells that failed, each with the reason")]
    stop: Annotated[dict[str, tuple[str, ...]], Meta(description="by title: problems that make figures invalid; empty if none")]
    speedups: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="each speedup: `candidate`, `reference`, `ratio`, and `low`, `high` of its 95 % interval"),
    ]


class Scored(Printed, frozen=True, kw_only=True):
    """`strobe bench shapes`: quality scores of the bundled model."""

    figures: Annotated[
        tuple[dict[str, Any], ...],
        Meta(description="each score: `name`, `preset`, `value`, `target`, `reached`, `n`, `definition`"),
    ]


class BenchServeOutput(Printed, frozen=True, kw_only=True):
    """`strobe bench serve`: what viewers saw of a server under load."""

    run: Annotated[str, Meta(description="path of the run folder")]
    loads: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each `load`: `at_once` (mean number of concurrent viewers), numbers of viewers who `came`, were "
            "`refused` or `failed`, shares `on_time` and `play_ratio`, `stalls`, `stall_ns`, lists "
            "`first_picture_ns` and `prompt_to_pixel_ns`, and `held`: true if the server held the load"
        ),
    ]
    report: ReportPaths
    not_met: NotMet


class Benched(Printed, frozen=True, kw_only=True):
    """`strobe bench attention`, `tree` and `scaling`: grids of attention calls."""

    cells: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each cell, with its `contestants` or `strategies`: `name`, and `reason` if it was not timed, else "
            "`median_ns`, `calls` and further figures"
        ),
    ]
    measured: Annotated[tuple[str, ...], Meta(description="names of the cells that this call measured")]
    kept: Annotated[tuple[str, ...], Meta(description="names of the cells that an earlier call had measured")]
    failed: Annotated[tuple[str, ...], Meta(description="names of the cells that failed, each with the reason")]
    report: Paths


class QualityOutput(Printed, frozen=True, kw_only=True):
    """`strobe quality`: scores of clips against a reference."""

    reference: Annotated[str, Meta(description="name of the reference clip")]
    cells: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each score: `clip`, `metric`, `value` (null: not measured or not defined, see `note`), `unit`, `n`, "
            "`better`, `reference`, `definition`, `note`"
        ),
    ]
    written: Paths
    not_met: NotMet


class AcceptOutput(Printed, frozen=True, kw_only=True):
    """`strobe accept`: checks of a model that need no official code."""

    run: Annotated[str, Meta(description="path of the run folder")]
    accepted: Annotated[bool, Meta(description="true: every check was made and none failed; false: exit code 1")]
    verdict: Annotated[str, Meta(description="the verdict in one sentence")]
    judged: Annotated[int, Meta(description="number of checks with a verdict")]
    failed: Annotated[tuple[str, ...], Meta(description="names of the checks that failed")]
    checks: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            description="each check: `group`, `name`, `value` (null: not finite), `unit`, bounds `low` and `high`, `passed` "
            "(null: random weights, not judged), `basis` of the bounds, `detail`"
        ),
    ]
    report: ReportPaths


DOCUMENTS: Final[dict[str, tuple[type[DocumentPart], ...]]] = {
    "accept": (AcceptOutput,),
    "demo": (Reported,),
    "generate": (Generated,),
    "serve": (Serving,),
    "compare": (Reported, Varied),
    "report": (Reported, Varied),
    "trace": (TraceOutput,),
    "speedup": (SpeedupOutput, Reported),
    "doctor": (DoctorOutput,),
    "bench shapes": (Scored,),
    "bench attention": (Benched,),
    "bench tree": (Benched,),
    "bench scaling": (Benched,),
    "bench serve": (BenchServeOutput,),
    "extract stages": (Extracted,),
    "extract attention": (Extracted,),
    "extract kernels": (Extracted,),
    "lint": (Linted,),
    "presets": (Presets,),
    "profile stream": (Reported,),
    "profile attention": (Reported,),
    "profile kernels": (ProfiledKernels,),
    "profile dit": (Reported,),
    "quality": (QualityOutput,),
}
"""Documents of every verb; for a run folder `speedup` prints the second one."""
