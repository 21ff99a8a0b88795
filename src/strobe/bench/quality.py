"""Quality of clips: against a reference, against their prompts by the pixel oracle, and the measurements of `strobe quality`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from strobe.bench.gate import GateResult
from strobe.bench.runner import number
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, DataError, ImplUnavailableError, ShapeError
from strobe.core.libraries import broken, install
from strobe.models.shapes import oracle
from strobe.models.shapes.grammar import parse
from strobe.models.shapes.picture import SIZE
from strobe.perf.records.record import Quality, Workload
from strobe.quality.available import METRICS, MetricsAsked, metric
from strobe.quality.clips import clip_name, clips_of, pictures_of, read_clip
from strobe.quality.fidelity import COMPARED, Fidelity, block_starts, border_jump, compare, find_program, vmaf
from strobe.quality.learned import NEEDS, clip_score, lacking, lpips

SETTLE_BLOCKS: Final = 2
"""Frame blocks after a prompt switch that do not count for prompt accuracy."""
SEEN: Final = 0.9
"""Least share of frames with a visible object that passes the gate."""
SEEN_AT_ONCE: Final = (0, 1, 4, 5, 6)
"""Attributes that a single frame shows: colours, shapes, background; direction and speed take several."""


def against_reference(variant: str, frames: Tensor, reference: Tensor, reference_name: str) -> Iterator[Quality]:
    """Compute every metric of `fidelity.COMPARED`, frame i against frame i of the reference, mean over clips.

    Args:
        frames, reference: of the same prompts and noise, uint8 [B, F, Y, X, 3].
    """
    yield from fidelity_lines(variant, [compare(*pair) for pair in zip(frames, reference, strict=True)], reference_name)


def fidelity_lines(variant: str, clips: Sequence[Mapping[str, Fidelity]], reference_name: str) -> Iterator[Quality]:
    """Average the metrics of several clips: the mean over the clips that have a value, metric by metric."""
    for name in clips[0]:
        column = [clip[name] for clip in clips]
        values = [value for value, _ in column if value is not None]
        notes = dict.fromkeys(note or "every frame equals the reference" for value, note in column if value is None)
        note = "; ".join(notes)
        if values and notes:
            note = f"{len(column) - len(values)} of {len(column)} clips have no finite value ({note}); mean over the others"
        value = sum(values) / len(values) if values else None
        yield quality_line(variant, name, value, n=len(column), reference=reference_name, note=note)


def quality_line(variant: str, name: str, value: float | None, *, n: int, reference: str = "", note: str = "") -> Quality:
    """Return one number of one metric of the table as a record."""
    row = metric(name)
    return number(variant, name, value, row.definition, n=n, unit=row.unit, reference=reference, better=row.better, note=note)


def not_measured(variant: str, reason: str) -> Iterator[Quality]:
    """Yield a line for every metric that would otherwise be measured, with the reason instead of a value."""
    for name in COMPARED:
        yield quality_line(variant, name, None, n=0, note=reason)


def metrics(frame_size: tuple[int, ...], prompts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of what `against_reference` and `by_oracle` give for clips of these prompts; without prompts those of
    `not_measured`."""
    if not prompts or not readable(frame_size, prompts):
        return COMPARED
    at_switches = ("switch_latency",) if len(prompts) > 1 else ()
    return (*COMPARED, "prompt_accuracy", "drift", "flicker", "border_jump", *at_switches)


def by_oracle(variant: str, frames: Tensor, work: Workload) -> Iterator[Quality]:
    """Measure prompt accuracy, switch latency, drift, flicker and border jump, where the oracle reads clip and prompts.

    Args:
        frames: uint8 [B, F, Y, X, 3].
        work: says which prompt holds from which frame block on.
    """
    if not readable(tuple(frames.shape[2:4]), [prompt.text for prompt in work.prompts]):
        return
    clips = (frames.permute(0, 1, 4, 2, 3).float() / 255).contiguous()  # [B, F, 3, Y, X]
    begins = [_first_frame(work, prompt.frame_block) for prompt in work.prompts]
    found = [oracle.detect(clips[:, first:last]) for first, last in pairwise([*begins, work.frames])]
    wanted = [torch.tensor(parse(prompt.text).attributes) for prompt in work.prompts]
    yield _accuracy(variant, found, wanted, work)
    yield from _switch_latency(variant, found, wanted)
    yield _drift(variant, found, wanted, work)
    flicker = torch.cat([oracle.flicker(detection) for detection in found])
    definition = "mean absolute second difference in time of the object's mean colour in [0, 1]"
    yield _score(variant, "flicker", flicker, definition, "lower")
    starts = tuple(_first_frame(work, block) for block in range(1, work.frame_blocks))
    inner = tuple(start for start in starts if start not in begins)
    definition = "picture change into a frame block / change inside one, prompt switches apart; 1 is seamless"
    yield _score(variant, "border_jump", border_jump(clips, inner) if inner else torch.empty(0), definition, "lower")


def readable(frame_size: tuple[int, ...], prompts: Sequence[str]) -> bool:
    """Return whether the oracle was made for frames of this size and for these prompts."""
    try:
        return tuple(frame_size) == (SIZE, SIZE) and all(parse(prompt) for prompt in prompts)
    except ConfigError:
        return False


def shows_object(frames: Tensor) -> GateResult:
    """Check that an object is visible in most frames, uint8 [F, Y, X, 3]."""
    seen = oracle.detect(frames.permute(0, 3, 1, 2).float()[None] / 255).valid.double().mean().item()
    rule = f"latents finite, and an object visible in >= {SEEN:.0%} of {len(frames)} frames"
    return GateResult(seen >= SEEN, rule, f"{seen:.1%}")


def _accuracy(variant: str, found: list[oracle.Detection], wanted: list[Tensor], work: Workload) -> Quality:
    settle = SETTLE_BLOCKS * work.frames_per_block
    shares = []
    for index, (detection, attributes) in enumerate(zip(found, wanted, strict=True)):
        right = (detection.labels == attributes).all(-1).double()  # [B, F of the segment]
        settled = right[:, settle if index else 0 :]
        if settled.shape[1]:
            shares.append(settled.mean(1))
    definition = f"share of frames whose colour, shape, direction, speed and background are all as prompted; the first \
{SETTLE_BLOCKS} frame blocks after a switch do not count; mean over clips and prompts"
    return _score(variant, "prompt_accuracy", torch.cat(shares) if shares else torch.empty(0), definition, "higher")


def _switch_latency(variant: str, found: list[oracle.Detection], wanted: list[Tensor]) -> Iterator[Quality]:
    if len(found) < 2:
        return
    at_once = list(SEEN_AT_ONCE)
    waits: list[float] = []
    missed = 0
    for before, after, detection in zip(wanted, wanted[1:], found[1:], strict=False):
        if torch.equal(before[at_once], after[at_once]):
            continue
        right = (detection.labels == after)[..., at_once].all(-1)  # [B, F of the segment]
        waits += [float(row.int().argmax()) for row in right if row.any()]
        missed += int((~right.any(1)).sum())
    frames = torch.tensor(waits, dtype=torch.float64)
    what = "frames from a prompt switch to the first with the new colour, shape and background; mean over clips and switches"
    note = f"{missed} of {missed + len(waits)} switches never showed" if missed else ""
    yield _score(variant, "switch_latency", frames, what, "lower", unit="frames", note=note)


def _drift(variant: str, found: list[oracle.Detection], wanted: list[Tensor], work: Workload) -> Quality:
    """Compute the change of accuracy from the second frame block to the last, by attributes that single frames show."""
    at_once, size = list(SEEN_AT_ONCE), work.frames_per_block
    right = [(each.labels == goal)[..., at_once].all(-1).double() for each, goal in zip(found, wanted, strict=True)]
    start = work.frames_first_block
    change = right[-1][:, -size:].mean(1) - right[0][:, start : start + size].mean(1)
    definition = "share of frames with colour, shape and background as prompted: last frame block minus second; mean over clips"
    return _score(variant, "drift", change, definition, "higher")


def _score(variant: str, metric: str, values: Tensor, definition: str, better: str, *, unit: str = "", note: str = "") -> Quality:
    kept = values[values.isfinite()].double()
    value = kept.mean().item() if len(kept) else None
    note = note or ("" if len(kept) else "no clip from which it can be read")
    return number(variant, metric, value, definition, n=len(kept), unit=unit, better=better, note=note)


def _first_frame(work: Workload, block: int) -> int:
    return 0 if block == 0 else work.frames_first_block + (block - 1) * work.frames_per_block


Pairs = tuple[tuple[Path, Path], ...]
"""Clips of one origin, each with the clip it is compared with."""


def variants_of(reference: Path, clips: Sequence[Path]) -> dict[str, Pairs]:
    """Pair clips with references: a clip with a clip, or the clips of a folder with those of a folder by name.

    Returns:
        by name the reference itself, compared with itself, then one variant per argument.

    Raises:
        DataError: there is nothing to compare, or names without a partner.
        ConfigError: two arguments of one name.
    """
    for path in (reference, *clips):
        if not path.exists():
            raise DataError(f"{path} does not exist; give a clip, or a folder of pictures or clips")
    folder = reference.is_dir() and not pictures_of(reference)
    wanted = {clip_name(path): path for path in clips_of(reference)} if folder else {"": reference}
    if not wanted:
        raise DataError(f"{reference} holds neither pictures nor clips")
    names = [clip_name(path) for path in clips]
    labels = names if len(set(names)) == len(names) else [str(path) for path in clips]
    own = clip_name(reference)
    if len(set(labels)) < len(labels):
        raise ConfigError(f"a clip is named twice among {', '.join(labels)}")
    if own in labels:
        own = f"{own} (reference)"
    found = {own: tuple((path, path) for path in wanted.values())}
    return found | {name: _paired(path, wanted, folder) for name, path in zip(labels, clips, strict=True)}


def _paired(path: Path, wanted: dict[str, Path], folder: bool) -> Pairs:
    found = {clip_name(each): each for each in clips_of(path)} if folder and path.is_dir() else {"": path}
    if set(found) != set(wanted):
        lonely = sorted(set(found) ^ set(wanted))
        raise DataError(
            f"{path} and the reference do not hold clips of the same names: {', '.join(lonely[:5]) or 'one is a folder of clips'}"
            f"{' ...' if len(lonely) > 5 else ''} on one side only; give two clips, or two folders of clips named alike"
        )
    return tuple((found[key], wanted[key]) for key in wanted)


def judge(variants: Mapping[str, Pairs], asked: MetricsAsked, progress: Callable[[int, int, str], None]) -> tuple[Quality, ...]:
    """Measure every variant; the first is the reference.

    Raises:
        ShapeError: a clip and its reference differ in length or size.
        DataError: a clip cannot be read.
        ConfigError: an unknown metric.
        ImplUnavailableError: a metric that was asked for by name cannot be measured; says why.
    """
    for name in asked.metrics:
        metric(name)
    judging = _Judging(asked)
    lines: list[Quality] = []
    for done, (variant, pairs) in enumerate(variants.items()):
        progress(done, len(variants), variant)
        lines += judging.lines(variant, pairs, itself=not done)
    for name in asked.metrics:
        own = [line for line in lines if line.metric == name]
        if not any(line.n for line in own):
            measured = sorted({line.metric for line in lines if line.n})
            raise ImplUnavailableError(name, f"not measured: {own[0].note}", measured, what="metric")
    return tuple(lines)


_ALONE: Final = ("border_jump", "vmaf", "lpips", "clip_score")
"""Metrics that `compare` does not compute and that can be measured here."""
_OF_A_CLIP: Final = frozenset({"border_jump", "clip_score"})
"""Metrics of a clip by itself: the reference has a value too."""
_NETWORKS: Final[dict[str, Callable[[Path, torch.device], Callable[..., Tensor]]]] = {
    "lpips": lpips, "clip_score": clip_score,
}  # fmt: skip


class _Judging:
    """Judge of all variants: reads networks once, and clips once per variant."""

    def __init__(self, asked: MetricsAsked) -> None:
        self._asked, self._device = asked, resolve_device(asked.device)
        self._networks: dict[str, Callable[..., Tensor]] = {}

    def lines(self, variant: str, pairs: Pairs, *, itself: bool) -> Iterator[Quality]:
        """Yield all lines of a variant; `itself`: it is the reference, which is not compared with itself."""
        asked, first = self._asked, pairs[0][1]
        against = str(first if len(pairs) == 1 else first.parent)
        compared, values = [], {name: list[float]() for name in _ALONE}
        notes = {name: self._missing(name) for name in _ALONE}
        only = tuple(name for name in COMPARED if asked.wants(name))
        for path, wanted in pairs:
            frames = read_clip(path).to(self._device)
            reference = frames if path == wanted else read_clip(wanted).to(self._device)
            if not itself:
                compared.append(compare(frames, reference, only))
            for name in _ALONE:
                if not notes[name] and asked.wants(name) and (name in _OF_A_CLIP or name == "vmaf" or not itself):
                    value, notes[name] = self._alone(name, frames, reference)
                    values[name] += [] if value is None else [value]
        if not itself:
            yield from fidelity_lines(variant, compared, against)
        for row in METRICS:
            if row.name not in COMPARED and asked.wants(row.name):
                found, note = values.get(row.name, []), notes.get(row.name, row.not_measured or "")
                if itself and not found and row.name not in _OF_A_CLIP:
                    continue
                value = sum(found) / len(found) if found else None
                named = "" if row.name in _OF_A_CLIP else against
                yield quality_line(variant, row.name, value, n=len(found), reference=named, note=note)

    def _missing(self, name: str) -> str:
        """Return the reason why a metric cannot be measured of any clip; empty if it can."""
        asked = self._asked
        match name:
            case "border_jump":
                return "" if asked.block_frames else "needs the pixel frames of a frame block: give --block-frames"
            case "vmaf":
                return "" if find_program() else metric(name).not_measured or ""
            case "clip_score" if not asked.prompt:
                return "needs what the clip should show: give --prompt"
            case "clip_score" if why := broken(NEEDS):
                return f"{why}: {install('diffusers')}"
        return lacking(name, asked.weights)

    def _alone(self, name: str, frames: Tensor, reference: Tensor) -> tuple[float | None, str]:
        """Return the value of one metric for one clip, and a note or the reason why there is none."""
        asked = self._asked
        if name == "border_jump":
            starts = block_starts(len(frames), asked.block_frames[-1], asked.block_frames[0])
            jump = border_jump(frames.permute(0, 3, 1, 2)[None] / 255, starts).item()
            return (jump, "") if jump == jump else (None, "nothing changes inside the frame blocks")
        if name == "vmaf":
            program = find_program()
            assert program is not None
            return vmaf(frames, reference, program).mean().item(), ""
        if name not in self._networks:
            assert asked.weights is not None, "`lacking` was asked first"
            self._networks[name] = _NETWORKS[name](asked.weights, self._device)
        try:
            return self._networks[name](frames, asked.prompt if name == "clip_score" else reference).mean().item(), ""
        except ShapeError as error:
            if frames.shape != reference.shape:
                raise
            return None, str(error)  # too small for the network
