"""One cell as a case of the runner: a stream in lockstep, its cold start, and errors recorded as entries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
from torch import nn

from strobe.bench.attempt import Attempt
from strobe.bench.cases.ablate.cells import AblationCell
from strobe.bench.cases.ablate.factors import SYNCS, Setup
from strobe.bench.cases.stream import GATE_BLOCKS, GATE_SWITCH, Script, StreamCase, unwritten
from strobe.bench.runner import VariantError
from strobe.core.device import synchronize
from strobe.engine.load import Model
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter


def script_of(script: Script, setup: Setup) -> Script:
    """Return the script, or a copy with its first switch alone, at the frame block that the setup gives.

    Raises:
        ConfigError: that is after the end of the clip.
    """
    if setup.switch_at is None:
        return script
    prompt = script.switches[0].prompt if script.switches else script.prompt
    switches = (Switch(frame_block=setup.switch_at, prompt=prompt),)
    return Script(prompt=script.prompt, switches=switches, num_blocks=script.num_blocks, seed=script.seed)


class CellCase(StreamCase):
    """The base of a cell and its candidate, if it has one; a `strobe.bench.case.Case`.

    Whatever a side raises is told as a `StrobeError`, after its settings were written: a run that fails is an entry too.

    Args:
        cell: the cell to run.
        script: the clip.
        model: the weights.
        device: "auto", "cpu", "cuda" or "cuda:N".
        review_samples: clips that quality is judged on.

    Raises:
        ConfigError: a word that the model does not know, or a switch after the end of the clip.
    """

    def __init__(self, cell: AblationCell, *, script: Script, model: Model, device: str, review_samples: int) -> None:
        self._batch = cell.base.batch
        sides = [side for side in (cell.base, cell.candidate) if side is not None]
        self._waits = {side.config.name for side in sides if side.waits}
        self._cold_ns: dict[str, int] = {}
        self._written: set[str] = set()
        self.writer: RunWriter | None = None
        super().__init__(
            [side.config for side in sides],
            script=script_of(script, cell.base),
            model=model,
            device=device,
            review_samples=review_samples,
        )

    def gate(self, name: str) -> record.Gate:
        """Check the candidate against the base; for a red gate write the settings too, since nothing else will."""
        with Attempt() as attempt:
            found = super().gate(name)
        if attempt.reason:
            self._fail(name, attempt)
        if not found.passed:
            self._write(name)
        return found

    def prepare(self, name: str) -> None:
        """Bring the variant's session back to the start of its stream."""
        with Attempt() as attempt:
            super().prepare(name)
        if attempt.reason:
            self._fail(name, attempt)

    def blocks(self, name: str) -> Iterator[object]:
        """Make the clip; the work begins with the prompt."""
        with Attempt() as attempt:
            yield from super().blocks(name)
        if attempt.reason:
            self._fail(name, attempt)

    def settings(self, name: str) -> record.Variant:
        """Return the resolved configuration of a variant, its cold start, and the memory of its text encoder."""
        self._written.add(name)
        found = super().settings(name)
        text = self._loaded.text
        waits = record.Knob(name=SYNCS, value="on", on=True)
        return msgspec.structs.replace(
            found,
            knobs=(*found.knobs, waits) if name in self._waits else found.knobs,
            costs=found.costs if self._batch == 1 else (),
            cold_start_ns=self._cold_ns.get(name),
            text_encoder_bytes=sum(each.nbytes for each in text.state_dict().values()) if isinstance(text, nn.Module) else None,
            text_encoder_on_device=self.device.type == "cpu" if isinstance(text, nn.Module) else None,
        )

    def review(self, name: str, folder: Path) -> Iterator[record.Quality | record.Video]:
        """Judge the variant's clips."""
        with Attempt() as attempt:
            yield from super().review(name, folder)
        if attempt.reason:
            self._fail(name, attempt)

    def _workload(self) -> record.Workload:
        return msgspec.structs.replace(super()._workload(), batch=self._batch)

    def _check_room(self) -> None:
        """Skip the check of free memory: a side that does not fit becomes an entry with its session's error."""

    def _session(self, name: str) -> Session:
        """Return the variant's session; the first time, open it and measure its cold start."""
        if name in self._sessions:
            return self._sessions[name][0]
        began = time.perf_counter_ns()
        session = Session(
            preset=self._configs[name],
            model=self._loaded,
            seed=self._script.seed,
            samples=range(self._batch),
            device=self.device,
        )
        start = unwritten(session.snapshot())
        cold_ns = self._short_clip(session, began)
        session.restore(start)
        warm_ns = self._short_clip(session, time.perf_counter_ns())
        session.restore(start)
        self._cold_ns[name] = max(0, cold_ns - warm_ns)
        self._sessions[name] = session, start
        return session

    def _short_clip(self, session: Session, began_ns: int) -> int:
        """Measure the time from a moment to the end of a clip that fills the window, evicts and switches the prompt."""
        session.prompt(self._script.prompt, wait=True)
        prompt = self._script.switches[0].prompt if self._script.switches else self._script.prompt
        for _ in session.stream(GATE_BLOCKS, switches=(Switch(frame_block=GATE_SWITCH, prompt=prompt),)):
            pass
        synchronize(self.device)
        return time.perf_counter_ns() - began_ns

    def _write(self, name: str) -> None:
        if self.writer is not None and name not in self._written:
            self.writer.append(self.settings(name))

    def _fail(self, name: str, attempt: Attempt) -> NoReturn:
        self._write(name)
        raise attempt.error if isinstance(attempt.error, VariantError) else VariantError(name, attempt.reason)
