"""Clips judged against a reference: the measurements of `strobe quality`, as quality lines of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from torch import Tensor

from strobe.bench.cases.scoring import fidelity_lines, quality_line
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, DataError, ImplUnavailableError, ShapeError
from strobe.perf.records.record import Quality
from strobe.quality.asked import MetricsAsked
from strobe.quality.available import METRICS, metric
from strobe.quality.fidelity import COMPARED, compare
from strobe.quality.files import clip_name, clips_of, pictures_of, read_clip
from strobe.quality.learned import clip as clip_model
from strobe.quality.learned.dists import Dists
from strobe.quality.learned.lpips import Lpips
from strobe.quality.learned.weights import lacking
from strobe.quality.temporal import block_starts, border_jump
from strobe.quality.vmaf import find_program, vmaf


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipSet:
    """Clips of one origin, each with the clip it is compared with; `reference`: it is compared with itself."""

    name: str
    pairs: tuple[tuple[Path, Path], ...]
    reference: bool = False


def variants_of(reference: Path, clips: Sequence[Path]) -> tuple[ClipSet, ...]:
    """Pair clips with references: a clip with a clip, or the clips of a folder with those of a folder by name.

    Returns:
        the reference itself, then one variant per argument.

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
    itself = ClipSet(name=own, pairs=tuple((path, path) for path in wanted.values()), reference=True)
    return (itself, *(_paired(name, path, wanted, folder) for name, path in zip(labels, clips, strict=True)))


def _paired(name: str, path: Path, wanted: dict[str, Path], folder: bool) -> ClipSet:
    found = {clip_name(each): each for each in clips_of(path)} if folder and path.is_dir() else {"": path}
    if set(found) != set(wanted):
        lonely = sorted(set(found) ^ set(wanted))
        raise DataError(
            f"{path} and the reference do not hold clips of the same names: {', '.join(lonely[:5]) or 'one is a folder of clips'}"
            f"{' ...' if len(lonely) > 5 else ''} on one side only; give two clips, or two folders of clips named alike"
        )
    return ClipSet(name=name, pairs=tuple((found[key], wanted[key]) for key in wanted))


def judge(variants: Sequence[ClipSet], asked: MetricsAsked, progress: Callable[[int, int, str], None]) -> tuple[Quality, ...]:
    """Measure every variant.

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
    for done, variant in enumerate(variants):
        progress(done, len(variants), variant.name)
        lines += judging.lines(variant)
    for name in asked.metrics:
        own = [line for line in lines if line.metric == name]
        if not any(line.n for line in own):
            measured = sorted({line.metric for line in lines if line.n})
            raise ImplUnavailableError(name, f"not measured: {own[0].note}", measured, what="metric")
    return tuple(lines)


class _Judging:
    """Judge of all variants: reads networks once, and clips once per variant."""

    def __init__(self, asked: MetricsAsked) -> None:
        self._asked, self._device = asked, resolve_device(asked.device)

    def lines(self, variant: ClipSet) -> Iterator[Quality]:
        """Yield all lines of a variant."""
        asked, first = self._asked, variant.pairs[0][1]
        against = str(first if len(variant.pairs) == 1 else first.parent)
        compared, values = [], {name: list[float]() for name in _ALONE}
        notes = {name: self._missing(name) for name in _ALONE}
        only = tuple(name for name in COMPARED if asked.wants(name))
        for path, wanted in variant.pairs:
            frames = read_clip(path).to(self._device)
            reference = frames if path == wanted else read_clip(wanted).to(self._device)
            if not variant.reference:
                compared.append(compare(frames, reference, only))
            for name in _ALONE:
                if not notes[name] and asked.wants(name) and (name in _OF_A_CLIP or name == "vmaf" or not variant.reference):
                    value, notes[name] = self._alone(name, frames, reference)
                    values[name] += [] if value is None else [value]
        if not variant.reference:
            yield from fidelity_lines(variant.name, compared, against)
        for row in METRICS:
            if row.name not in COMPARED and asked.wants(row.name):
                found, note = values.get(row.name, []), notes.get(row.name, row.not_measured or "")
                if variant.reference and not found and row.name not in _OF_A_CLIP:
                    continue  # the reference is not compared with itself
                value = sum(found) / len(found) if found else None
                named = "" if row.name in _OF_A_CLIP else against
                yield quality_line(variant.name, row.name, value, n=len(found), reference=named, note=note)

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
            case "clip_score" if clip_model.lacks_library():
                return clip_model.lacks_library()
        return lacking(name, asked.weights)

    def _alone(self, name: str, frames: Tensor, reference: Tensor) -> tuple[float | None, str]:
        """Return the value of one metric for one clip, and a note or the reason why there is none."""
        asked = self._asked
        try:
            match name:
                case "border_jump":
                    starts = block_starts(len(frames), asked.block_frames[-1], asked.block_frames[0])
                    jump = border_jump(frames.permute(0, 3, 1, 2)[None] / 255, starts).item()
                    return (jump, "") if jump == jump else (None, "nothing changes inside the frame blocks")
                case "vmaf":
                    program = find_program()
                    assert program is not None
                    return vmaf(frames, reference, program).mean().item(), ""
                case "lpips":
                    return self._lpips(frames, reference).mean().item(), ""
                case "dists":
                    return self._dists(frames, reference).mean().item(), ""
                case _:
                    return self._clip(frames, asked.prompt).mean().item(), ""
        except ShapeError as error:
            if name == "border_jump" or frames.shape != reference.shape:
                raise
            return None, str(error)  # too small for the network

    @cached_property
    def _lpips(self) -> Lpips:
        return Lpips(self._folder, self._device)

    @cached_property
    def _dists(self) -> Dists:
        return Dists(self._folder, self._device)

    @cached_property
    def _clip(self) -> clip_model.ClipScore:
        return clip_model.ClipScore(self._folder, self._device)

    @property
    def _folder(self) -> Path:
        assert self._asked.weights is not None, "`lacking` was asked first"
        return self._asked.weights


_ALONE: Final = ("border_jump", "vmaf", "lpips", "dists", "clip_score")
"""Metrics that `compare` does not compute and that can be measured here."""
_OF_A_CLIP: Final = frozenset({"border_jump", "clip_score"})
"""Metrics of a clip by itself: the reference has a value too."""
