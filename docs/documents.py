"""JSON document of every verb, as structs: `docs/json.md` is made from them, and the tests hold what the verbs print to them."""

from __future__ import annotations

from typing import Annotated as A
from typing import Any, Final, TypeAlias

from msgspec import UNSET, UnsetType

from strobe.perf.report.documents.runs import SCHEMA_VERSION, RunDocument
from strobe.perf.report.documents.speedup import SpeedupDocument, TraceDocument
from strobe.perf.table.rows import DocumentPart, col, struct_of
from structs import parts_of, struct_sections

Rows: TypeAlias = tuple[dict[str, Any], ...]
Written = A[dict[str, str], col("paths of the written files, by kind, e.g. `html`; empty if none was written")]
ReportPaths = A[dict[str, str], col("paths of the report, by suffix, e.g. `html`")]
Paths = A[tuple[str, ...], col("paths of the files of the report")]
Measured = A[tuple[str, ...], col("names of the cells that this call measured")]
Kept = A[tuple[str, ...], col("names of the cells that an earlier call had measured")]
Failed = A[tuple[str, ...], col("names of the cells that failed, each with the reason")]
NotMet = A[tuple[str, ...], col("requirements (--require) that are not met, each with the reason; exit code 1 if any")]


class Printed(DocumentPart, frozen=True, kw_only=True):
    """Base of documents that a verb builds itself."""

    v: A[int, col("schema version of the document")] = SCHEMA_VERSION


class Extracted(Printed, frozen=True, kw_only=True):
    """`strobe extract stages`, `attention` and `kernels`: figures from logs and traces, those of the verb that ran."""

    inputs: A[Rows, col("each input file: `path`, `bytes`, `sha256`")]
    logs: A[Rows, col("each log: `path`, `counts` of its lines, `damage`, `similar` lines, `rejected` values")]
    written: A[str | UnsetType, col("path of the page, with -o")] = UNSET
    stages: A[
        Rows | UnsetType,
        col(
            "each log and stage: `log`, `stage`, `rounds_ns`, `avg_all_rounds_ns`, `avg_excl_warmup_ns`, `excluded`, `ranks`, "
            "`note`"
        ),
    ] = UNSET
    attention: A[
        Rows | UnsetType,
        col(
            "each timer: `log`, `timer`, `rank`, `units`, number of `values`, `calls` (times in `_ns`), `method`, `note`, "
            "`excluded`, `outliers`, `remarks`"
        ),
    ] = UNSET
    focal: A[str | UnsetType, col("regular expression of the focal kernel")] = UNSET
    kernels: A[
        Rows | UnsetType, col("each trace: `trace`, and its `devices` with `device`, `names` and `calls` (times in `_ns`)")
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

    v: A[int | UnsetType, col("schema version of the document")] = UNSET
    path: A[str | None, col("path of the file; null if no frame was made")]
    frames: A[int, col("number of pixel frames")]
    frame_blocks: A[int, col("number of frame blocks")]
    fps: A[int | float, col("frames per second of playback")]
    preset: A[str, col("preset that ran")]
    model: A[str, col("name of the model")]
    device: A[str, col("device that made the clip")]
    devices: A[int, col("number of devices")]
    work_ns: A[int, col("time from noise to pixel frames, without loading and without file writing")]
    pixel_fps: A[float | None, col("`frames` / `work_ns`, in frames per second; null without frames")]
    prompts: A[Rows, col("prompts: `text` and the `frame_block` where each begins")]


class Reported(RunDocument, frozen=True, kw_only=True):
    """`strobe report`, `compare`, `demo`, `profile stream`, `attention` and `dit`: speedups of runs."""

    report: ReportPaths
    figures: A[
        dict[str, dict[str, float | None]],
        col("by candidate: value of each level and metric that --require accepts; null: not measured or infinite"),
    ]
    not_met: NotMet
    damaged: A[
        dict[str, tuple[str, ...]],
        col("by damaged run folder: the damage; damaged records are left out; empty if there is no damage"),
    ]
    red: A[
        dict[str, str] | UnsetType,
        col("of a run measured now, by candidate that failed its gate: the rule and the measured figure"),
    ] = UNSET
    kept: A[tuple[str, ...] | UnsetType, col("of such a run: paths of earlier contents of its folder")] = UNSET
    attribution: A[
        tuple[str, ...] | UnsetType,
        col("of `profile stream`: path of the page that attributes time to callers; empty if not asked for"),
    ] = UNSET
    clip: A[Generated | UnsetType, col("of `demo`: clip that was made before the comparison")] = UNSET


class Serving(Printed, frozen=True, kw_only=True):
    """`strobe serve`: the address it listens on; printed before the first viewer can connect."""

    url: A[str, col("URL of the page")]
    port: A[int, col("port that the server listens on")]
    model: A[str, col("name of the model, as given on the command line")]
    preset: A[str, col("preset of viewers who ask for none")]
    device: A[str, col("device that streams run on")]


class ProfiledKernels(Printed, frozen=True, kw_only=True):
    """`strobe profile kernels`: one denoise step, operation by operation."""

    written: Paths
    step: A[
        dict[str, Any],
        col(
            "`n` measured steps, `mean_ns`, `parts_ns` by kind, `difference_ns`, and by operation: `calls`, `n`, `mean_ns`, "
            "`p50_ns`"
        ),
    ]
    report: A[dict[str, Any], col("layout of the page, as in `report.json`")]


class Presets(Printed, frozen=True, kw_only=True):
    """`strobe presets`: the settings of each preset."""

    device: A[str, col("device that `off_here` and `lacking` are about")]
    presets: A[dict[str, str], col("by preset: its description")]
    settings: A[dict[str, dict[str, str]], col("value by setting and preset")]
    off_here: A[dict[str, dict[str, str]], col("by preset and optimisation: why it is off on this device")]
    lacking: A[dict[str, str], col("by preset that cannot run on this device: the reason")]


class DoctorOutput(Printed, frozen=True, kw_only=True):
    """`strobe doctor`: the state of this machine. Without torch the document holds only the checks."""

    checks: A[Rows, col("checks: `name`, `ok`, `detail`, and `fix` if it is not ok")]
    defaults: A[str | None, col("file of defaults of flags, null if there is none")]
    gate: A[
        dict[str, Any] | UnsetType,
        col(
            "with --gate: `gates` (`operator`, `impl`, `ran`, number of `tests`, `failed` case, `refused`), the file `record`, "
            "`reason` why none ran"
        ),
    ] = UNSET
    machine: A[
        dict[str, Any] | UnsetType,
        col("facts of the machine, as in [records.md](records.md#machine)"),
    ] = UNSET
    attention: A[
        Any,
        col("implementation that `runs`, reasons against others (`passed_over`), state of each (`impls`)"),
    ] = UNSET
    presets: A[dict[str, Any] | UnsetType, col("by preset and optimisation: `on`, `reason` if it is off")] = UNSET
    lacking: A[dict[str, str] | UnsetType, col("by preset that cannot run here: why")] = UNSET
    metrics: A[dict[str, str] | UnsetType, col("by quality metric: `measured`, or why it is not")] = UNSET
    plugins: A[
        tuple[dict[str, str], ...] | UnsetType,
        col("plug-ins: `group`, `name`, `place`, `package`, and why `broken`, empty if it loads"),
    ] = UNSET
    memory: A[dict[str, Any] | UnsetType, col("with --preset: predicted memory of a stream, bytes")] = UNSET


class Linted(Printed, frozen=True, kw_only=True):
    """`strobe lint`: claims in documents and records that cannot be true."""

    files: A[tuple[str, ...], col("files that were read")]
    findings: A[
        Rows,
        col(
            "each finding: `rule`, `severity`, `place` (`path`, `line`, `table`, `row`, `column`), `said`, `corrected`, `why`, "
            "and `also` (further places)"
        ),
    ]


class Varied(Printed, frozen=True, kw_only=True):
    """`strobe compare --vary` and `strobe report --log`: many runs, of changed settings or of a log, with their speedups."""

    report: ReportPaths
    measured: Measured
    kept: Kept
    failed: Failed
    stop: A[dict[str, tuple[str, ...]], col("by title: problems that make figures invalid; empty if none")]
    speedups: A[Rows, col("each speedup: `candidate`, `reference`, `ratio`, and `low`, `high` of its 95 % interval")]


class BenchServeOutput(Printed, frozen=True, kw_only=True):
    """`strobe bench serve`: what viewers saw of a server under load."""

    run: A[str, col("path of the run folder")]
    loads: A[
        Rows,
        col(
            "each `load`: mean viewers `at_once`, viewers who `came`, were `refused`, `failed`, shares `on_time`, `play_ratio`, "
            "`stalls`, `stall_ns`, lists `first_picture_ns`, `prompt_to_pixel_ns`, and whether the server `held` the load"
        ),
    ]
    report: ReportPaths
    not_met: NotMet


class Benched(Printed, frozen=True, kw_only=True):
    """`strobe bench attention` and `tree`: grids of attention calls."""

    cells: A[
        Rows,
        col(
            "each cell, with its `contestants` or `strategies`: `name`, and `reason` if it was not timed, else `median_ns`, "
            "`calls` and further figures"
        ),
    ]
    measured: Measured
    kept: Kept
    failed: Failed
    report: Paths


class QualityOutput(Printed, frozen=True, kw_only=True):
    """`strobe quality`: scores of clips against a reference."""

    reference: A[str, col("name of the reference clip")]
    cells: A[
        Rows,
        col(
            "each score: `clip`, `metric`, `value` (null: not measured or not defined, see `note`), `unit`, `n`, `better`, "
            "`reference`, `definition`, `note`"
        ),
    ]
    written: Paths
    not_met: NotMet


class AcceptOutput(Printed, frozen=True, kw_only=True):
    """`strobe accept`: checks of a model that need no official code."""

    run: A[str, col("path of the run folder")]
    accepted: A[bool, col("true: every check was made and none failed; false: exit code 1")]
    verdict: A[str, col("the verdict in one sentence")]
    judged: A[int, col("number of checks with a verdict")]
    failed: A[tuple[str, ...], col("names of the checks that failed")]
    checks: A[
        Rows,
        col(
            "each check: `group`, `name`, `value` (null: not finite), `unit`, bounds `low` and `high`, `passed` (null: not "
            "judged), `basis` of the bounds, `detail`"
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
    "speedup": (SpeedupOutput,),
    "doctor": (DoctorOutput,),
    "bench attention": (Benched,),
    "bench tree": (Benched,),
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


_HEAD: Final = f"""# JSON documents

Generated from `docs/documents.py` by `make docs`; do not edit.

With `--json`, every verb prints a document on stdout. A section lists the keys of a document, with its verbs, or of a
row or object inside documents. A list of rows is a table:
`pandas.DataFrame(json.load(file)["speedups"])`. [python.md](python.md) returns the same values to a script.

* **Keys** and units read as in [records.md](records.md); `_flops` is floating-point operations, `_fps` frames per second,
  `_per_s` per second.
* **Sides.** A candidate is compared with a baseline, also called its reference. The ratio, or speedup, of a comparison is
  time of the baseline / time of the candidate; `saved_ns` is time of the baseline - time of the candidate.
* **Account (ledger).** The account of a difference splits it into lines that add up to it exactly; `ledger` in a key means
  account.
* **Versions.** All documents have the schema version {SCHEMA_VERSION} in `v`. A new key keeps the version; a removed, renamed
  or redefined key raises it.
* **Pages.** `report.json` is the layout of a page, not data.
"""


def json_markdown() -> str:
    """Return `docs/json.md`: the keys of each document, which says the verbs that print it, and of the parts of documents."""
    kinds = dict.fromkeys(struct_of(kind) for found in DOCUMENTS.values() for kind in found)
    parts = dict.fromkeys(part for kind in kinds for part in parts_of(kind) if part not in kinds)
    return "\n".join((_HEAD, *struct_sections({kind: kind.__name__ for kind in (*kinds, *parts)})))
