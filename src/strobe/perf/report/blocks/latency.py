"""Latencies that a user notices: time to the first frame, frame rate, cost of a prompt switch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from strobe.perf.analysis.runs.latency import Latencies
from strobe.perf.report.blocks.fields import beside, table_of
from strobe.perf.report.blocks.spread import tail_cell
from strobe.perf.report.blocks.stages import excluded_text
from strobe.perf.report.model import Block, Cell, Missing, Notes, Number, Section, Table, Time
from strobe.perf.report.study import RunStudy
from strobe.perf.report.text import time_text


def _time(ns: float | None) -> Cell:
    return Missing("no steady frame blocks") if ns is None else Time(ns)


def _part(value_ns: float | None) -> Cell:
    """Return a part of a frame block; no clip spends nothing on one, so 0 says that it was not timed by itself."""
    return Missing("not timed by itself in these clips") if value_ns == 0 else _time(value_ns)


def _rate(value: float | None) -> Cell:
    return Missing("no steady frame blocks") if value is None else Number(value, 2, "FPS")


def _tail(found: Latencies) -> Cell:
    if found.block is None:
        return Missing("no steady frame blocks")
    return tail_cell(found.block.tail)


_ROWS: Final[tuple[tuple[str, Callable[[Latencies], Cell]], ...]] = (
    ("first frames handed over, from the call (median)", lambda found: Time(found.first_frame_ns)),
    ("steady frame block, streamed with VAE: mean", lambda found: _time(found.block.mean_ns if found.block else None)),
    ("steady frame block, streamed with VAE: p50", lambda found: _time(found.block.p50_ns if found.block else None)),
    ("steady frame block, streamed with VAE: slow end", _tail),
    ("denoise steps and commit alone, in a steady block", lambda found: _part(found.dit_block_ns)),
    ("VAE decode alone, in a steady block", lambda found: _part(found.decode_block_ns)),
    ("between latent frames (steady block / latent frames in it)", lambda found: _time(found.inter_latent_ns)),
    ("between pixel frames (steady block / pixel frames in it)", lambda found: _time(found.inter_frame_ns)),
    ("pixel FPS, steady, with VAE", lambda found: _rate(found.pixel_fps)),
    ("latent FPS, steady, with VAE", lambda found: _rate(found.latent_fps)),
    ("frames stalled at the playback rate, one frame block ahead", lambda found: Number(found.stalled_frames, 0, "frames")),
    ("pixel FPS of the whole clip, start and switches included", lambda found: _rate(found.clip_pixel_fps)),
)


def latency_section(study: RunStudy, found: Mapping[str, Latencies | str]) -> Section:
    """Build the section with latencies, prompt switches, and the frame blocks left out."""
    lead = (
        "A frame block lasts from the delivery of the one before to its own, decoding included. Pixel frames and latent frames "
        "are counted apart; both are named."
    )
    blocks: list[Block] = [_table(study, found)]
    switches = _switches(study, found)
    if switches.rows:
        blocks.append(switches)
    blocks.append(Notes(_left_out(study, found)))
    return Section("latency", "Latencies as a user means them", lead, tuple(blocks))


def _cells(study: RunStudy, found: Mapping[str, Latencies | str], cell: Callable[[Latencies], Cell]) -> tuple[Cell, ...]:
    values = (found[subject.label] for subject in study.subjects)
    return tuple(Missing(value) if isinstance(value, str) else cell(value) for value in values)


def _table(study: RunStudy, found: Mapping[str, Latencies | str]) -> Table:
    fields = beside("", (subject.label for subject in study.subjects), numeric=True)
    rows = [(name, *_cells(study, found, cell)) for name, cell in _ROWS]
    rates = sorted({run.header.workload.fps for run in study.runs if run.header.workload})
    stalls = "A frame block stalls it that takes longer than the one before plays; the clip that stalls most counts."
    notes = tuple(f"Playback needs {rate} pixel frames per second. {stalls}" for rate in rates)
    return table_of("Latencies and rates over the timed clips.", fields, rows, notes=notes)


def _switches(study: RunStudy, found: Mapping[str, Latencies | str]) -> Table:
    kinds = dict.fromkeys(
        (switch.frame_block, switch.mode) for value in found.values() if not isinstance(value, str) for switch in value.switches
    )
    fields = beside("", (subject.label for subject in study.subjects), numeric=True)
    rows = [(f"switch at frame block {at} ({mode})", *_cells(study, found, partial(_switch, at))) for at, mode in kinds]
    note = "First frame block under the new prompt minus the block before it, median over clips."
    return table_of("Extra time of a prompt switch.", fields, rows, notes=(note,))


def _switch(at: int, found: Latencies) -> Cell:
    for switch in found.switches:
        if switch.frame_block == at:
            return Time(switch.extra_ns, f"{time_text(switch.after_ns)} after, {time_text(switch.before_ns)} before")
    return Missing("no such switch", "-")


def _left_out(study: RunStudy, found: Mapping[str, Latencies | str]) -> tuple[str, ...]:
    items: dict[str, list[str]] = {}
    for subject in study.subjects:
        value = found[subject.label]
        if isinstance(value, str):
            continue
        steady = value.steady
        kept = f"{len(steady.kept)} frame blocks of {value.num_clips} clips {'are steady' if steady.tested else 'are kept'}"
        causes = excluded_text([(item.index, item.cause) for item in steady.excluded])
        text = f"{kept}; excluded frame blocks: {causes}{'; ' + steady.note if steady.note else ''}{_outliers(value)}"
        items.setdefault(text, []).append(subject.label)
    return tuple(f"{', '.join(labels)}: {text}." for text, labels in items.items())


def _outliers(found: Latencies) -> str:
    """Return a note on steady samples outside Tukey's fences, which are kept, and their effect on the mean; empty if none."""
    if found.block is None or not found.block.outliers.indices:
        return ""
    outside = found.block.outliers
    effect = f"without them the mean would change by {100 * outside.effect:+.2g} %"
    return f"; {len(outside.indices)} of the {outside.n} kept lie outside Tukey's fences and count: {effect}"
