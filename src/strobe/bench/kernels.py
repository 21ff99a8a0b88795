"""Kernel profile: denoise steps of a real stream, then every operation of a step, a cache and a decoder by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from strobe.bench.case import Progress
from strobe.bench.operations import Prepared, StepParts, cache_copies, decoder_operations
from strobe.core.errors import ConfigError
from strobe.core.spans import COMMIT, DENOISE_STEP, FRAME_BLOCK, RECACHE, VAE_DECODE, recording
from strobe.engine.config import EngineConfig, resolve
from strobe.engine.frame_block import FrameBlock
from strobe.engine.load import Model
from strobe.engine.session import Session
from strobe.perf.analysis.runs.budget import CACHE, REGIONS, KernelProfile, Operation, Whole
from strobe.perf.measure.isolated import time_isolated
from strobe.perf.measure.timing import Region, TimingRecorder

STAGES = (FRAME_BLOCK, COMMIT, VAE_DECODE)
"""Stages of a frame block reported beside its steps."""
_LONG_CALLS = 20
"""Most calls of the isolated window recomputation (`RECACHE`), since each takes as long as several steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPlan:
    """Amounts of a kernel profile: iterations, switches.

    Args:
        iterations: calls of each operation by itself, and denoise steps of the stream, with and without timers inside.
        switches: prompt switches at the end of the stream.
        cold: overwrite a GPU's cache before each call by itself.

    Raises:
        ConfigError: fewer than one.
    """

    iterations: int = 500
    switches: int = 3
    cold: bool = False

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.switches < 1:
            raise ConfigError(f"cannot profile {self.iterations} iterations and {self.switches} prompt switches; at least 1 each")


def profile_kernels(
    model: Model, preset: EngineConfig, prompts: tuple[str, str], *, device: torch.device, plan: KernelPlan, progress: Progress
) -> KernelProfile:
    """Measure a preset's denoise steps, its operations by themselves, and the steps again, so that drift affects both.

    Args:
        prompts: prompt of the stream, and the one that the switches alternate with.

    Raises:
        ConfigError: an unknown word, or a window that is not possible.
    """
    config = resolve(preset, model.defaults, device)
    with torch.inference_mode():
        parts = StepParts(model=model, config=config)
        operations = parts.operations()
        decoder = decoder_operations(model, config, parts.latents)
        others = (*cache_copies(parts), *_rare(parts))
    half = -(-plan.iterations // (2 * len(config.schedule.timesteps)))  # frame blocks with each kind of timers
    pieces = 4 * half + plan.switches + len((*operations, *decoder, *others))
    with closing(Session(prompts[0], preset=preset, model=model, device=device)) as session:
        stream = _Steps(session, progress, pieces)
        stream.settle()
        stream.run(2 * half)
        timed = {}
        for each in (*operations, *decoder, *others):
            stream.tell(each.name)
            with torch.inference_mode():
                timed[each.name] = _operation(each, plan, device)
        stream.run(2 * half)
        stream.switch(prompts, plan.switches)
    return KernelProfile(
        step=Whole(name=DENOISE_STEP, times_ns=tuple(stream.plain_ns), operations=_taken(timed, operations)),
        fine_ns=tuple(stream.fine_ns),
        regions_ns={name: tuple(stream.regions_ns[name]) for name in REGIONS},
        decode=Whole(name=VAE_DECODE, times_ns=tuple(stream.stages_ns[VAE_DECODE]), operations=_taken(timed, decoder)),
        stages_ns={name: tuple(times) for name, times in stream.stages_ns.items()},
        reference=_taken(timed, others),
    )


def _taken(timed: dict[str, Operation], chosen: Sequence[Prepared]) -> tuple[Operation, ...]:
    return tuple(timed[each.name] for each in chosen)


def _operation(each: Prepared, plan: KernelPlan, device: torch.device) -> Operation:
    iterations = min(plan.iterations, _LONG_CALLS) if each.name == RECACHE else plan.iterations
    found = time_isolated(each.run, iterations=iterations, device=device, warmup=2, cold=plan.cold, waits=each.waits)
    return Operation(
        name=each.name,
        what=each.what,
        kind=each.kind,
        inside=each.inside,
        calls=each.calls,
        times_ns=found.times_ns,
        cost=each.cost,
        waits=each.waits,
    )


def _rare(parts: StepParts) -> tuple[Prepared, ...]:
    """Return the cache's operations per frame block and per prompt switch, in the order to run: `kv_open` moves the cache on."""

    def one(name: str, what: str, run: object) -> Prepared:
        assert callable(run)
        return Prepared(name=name, what=what, kind=CACHE, inside="", calls=0, run=run, waits=True)

    frames = parts.history.shape[1]
    opened = one("kv_open", "once per frame block: slots chosen, sink turned", parts.open_next)
    if parts.config.past == "shots":  # a prompt switch derives nothing again
        return (opened,)
    return (one(RECACHE, f"{frames} latent frames derived again: a prompt switch", parts.recache), opened)


class _Steps:
    """A stream whose frame blocks alternate between plain timers (P) and timers around every layer's regions (F): P F F P."""

    def __init__(self, session: Session, progress: Progress, pieces: int) -> None:
        self._session = session
        self._progress = progress
        self._filling = 2 + -(-session.config.policy.window // session.config.frame_block)
        self._pieces = pieces + self._filling
        self._done = 0
        device = session.config.device
        self._recorders = {fine: TimingRecorder(device, fine=fine) for fine in (False, True)}
        self._stream: Iterator[FrameBlock] = session.stream()
        self._timed = 0
        self.plain_ns: list[int] = []
        self.fine_ns: list[int] = []
        self.regions_ns: dict[str, list[int]] = defaultdict(list)
        self.stages_ns: dict[str, list[int]] = defaultdict(list)

    def tell(self, what: str) -> None:
        """Report the next step as progress."""
        self._progress(self._done, self._pieces, what)
        self._done += 1

    def settle(self) -> None:
        """Run until the window is full, frames were evicted, and each kind of timer is warm."""
        for number in range(self._filling):
            self._block(fine=bool(number % 2), what="filling the window")

    def run(self, blocks: int) -> None:
        """Time `blocks` frame blocks, half of them with each kind of timers."""
        for _ in range(blocks):
            fine = self._timed % 4 in (1, 2)
            self._timed += 1
            regions = self._block(fine=fine, what="timing steps")
            steps = [region for region in regions if region.name == DENOISE_STEP]
            (self.fine_ns if fine else self.plain_ns).extend(step.value_ns for step in steps)
            if fine:
                for name in REGIONS:
                    self.regions_ns[name] += [_inside(step, regions, name) for step in steps]
            else:
                self._stages(regions, STAGES)

    def switch(self, prompts: tuple[str, str], count: int) -> None:
        """Time prompt switches."""
        for number in range(count):
            self._session.prompt(prompts[1 - number % 2], wait=True)
            self._stages(self._block(fine=False, what="switching the prompt"), (RECACHE,))

    def _stages(self, regions: Sequence[Region], names: Sequence[str]) -> None:
        for region in regions:
            if region.name in names:
                self.stages_ns[region.name].append(region.value_ns)

    def _block(self, *, fine: bool, what: str) -> tuple[Region, ...]:
        self.tell(what)
        recorder = self._recorders[fine]
        with recording(recorder):
            recorder.start_clip()
            next(self._stream)
            return recorder.finish_clip()


def _inside(step: Region, regions: Sequence[Region], name: str) -> int:
    """Return the time of a region in one step: both lie on one thread or stream, one after the other."""
    end = step.start_ns + step.value_ns
    return sum(region.value_ns for region in regions if region.name == name and step.start_ns <= region.start_ns < end)
