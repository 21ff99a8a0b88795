"""One stream on the thread that owns the device: a session, its frame blocks and branches, and what they were made from."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Final, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from strobe.core import spans
from strobe.core.errors import ConfigError, SessionError, StrobeError
from strobe.core.spans import recording
from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.prompts import Mode, PromptAck, Switch, check_mode, check_prompts
from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot, device_name, versions
from strobe.engine.stream import FrameBlock
from strobe.engine.video import decode_image
from strobe.perf.measure.timing import TimingRecorder
from strobe.serve.protocol import MARKS, VERSION, PromptEntry, RecipeAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The prompt, seed, preset and picture with which a stream begins.

    Args:
        image: bytes of the picture to start from; empty without one.
    """

    prompt: str
    seed: int
    preset: str
    image: bytes = b""


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A stream's state between two frame blocks, to which it can return."""

    number: int
    name: str
    snapshot: Snapshot
    origin: Origin
    log: tuple[PromptEntry, ...]
    frame_block: int
    frame: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptTimes:
    """How a prompt came to be followed, by the monotonic clock.

    Args:
        epoch: number of the prompt.
        arrived_s: its message came.
        asked_s: the device's thread took it.
        encoded_s: its text was there; None: it is not.
        begun_s: work on the frames that follow it began; None: it has not.
        made_s: these frames were there; None: they are not.
    """

    epoch: int
    arrived_s: float
    asked_s: float
    encoded_s: float | None = None
    begun_s: float | None = None
    made_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Block:
    """Frames of a frame block that was made.

    Args:
        frames: uint8 [F, Y, X, 3].
        first_frame: number of the first of them.
        entered: the prompt that took effect with it, if one did.
        timed: how this prompt came to be followed, if it came while the stream was open.
        block_ms: waits for the time that the device worked for it; a GPU goes on for a while after the frames are there.
        phases: ms of denoising, the clean-context pass and decoding; on a GPU, where they overlap, they are not taken apart.
        woken_ms: time that the device was held to bring the stream back from main memory before it; 0: it was there.
    """

    frames: NDArray[np.uint8]
    index: int
    first_frame: int
    generation: int
    epoch: int
    entered: PromptEntry | None
    block_ms: Callable[[], float]
    phases: dict[str, float]
    made_s: float
    cache: dict[str, int]
    timed: PromptTimes | None = None
    woken_ms: float = 0.0


class GpuClock:
    """Time that a GPU works for each frame block of a stream, however far the host is ahead of it and whatever else it does.

    Args:
        late: a frame block is handed out by the call after the one that made it (`Knobs.late_frames`).
    """

    def __init__(self, device: torch.device, *, late: bool) -> None:
        self._device, self._late = device, late
        self._before: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def timed(self, work: Callable[[], T]) -> tuple[T, Callable[[], float]]:
        """Run `work`, which returns a frame block; return it and what waits for the ms that the GPU worked for it.

        Of a stream's first late frame block those of the next one stand for it.
        """
        marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        queue = torch.cuda.current_stream(self._device)
        marks[0].record(queue)
        found = work()
        marks[1].record(queue)
        own = self._before if self._late and self._before is not None else marks
        self._before = marks

        def spent_ms() -> float:
            own[1].synchronize()
            return float(own[0].elapsed_time(own[1]))

        return found, spent_ms


def layout(session: Session, index: int, log: Sequence[PromptEntry]) -> dict[str, int]:
    """Return what a frame block attends, in latent frames, and how much room there is.

    These are sink, window, how much of it is filled, and the frame block itself. Of a stream in shots they are also how many have
    begun after the first, whether the frame block begins one, the first frame that is pinned behind the sink, and how many are.
    """
    config, policy = session.config, session.config.policy
    own = config.latents_of(index)
    shots = [entry.frame_block for entry in log if entry.mode == "shot" and 0 < entry.frame_block <= index]
    begins = index in shots
    before = shots[: len(shots) - begins]
    pins = config.latents_of(before[-1]) if before else range(0)
    pinned = range(max(pins.start, policy.sink), pins.start + min(len(pins), policy.sink))
    return {
        "sink": policy.sink,
        "window": policy.window,
        "filled": min(own.stop, policy.window),
        "end": own.stop,
        "frame_block": len(own),
        "sparsity_percent": round(100 * config.sparsity),
        "shots": len(shots),
        "begins": int(begins),
        "pinned": len(pinned),
        "pinned_first": pinned.start if pinned else 0,
    }


class SpareSessions:
    """Sessions of one model on one device that no stream uses. Every method belongs to the thread that owns the device.

    Args:
        most: kept; further ones are closed. 0: none is, as on a CPU, where a session opens at once.
    """

    def __init__(self, model: Model, device: torch.device, *, most: int) -> None:
        self.model, self.device, self.most = model, device, most
        self._ready: list[Session] = []

    def count(self, config: EngineConfig) -> int:
        """Return how many are ready for a configuration."""
        return sum(session.config.asked == config for session in self._ready)

    def take(self, config: EngineConfig, *, seed: int, prompt: str | None = None) -> Session:
        """Return a session without start frames: one that is ready, or else a new one.

        Raises:
            StrobeError: the prompt is refused, or the device has too little memory.
        """
        for session in self._ready:
            if session.config.asked == config:
                session.restart(prompt, seed=seed)
                self._ready.remove(session)
                return session
        session = Session(prompt, preset=config, model=self.model, seed=seed, device=self.device)
        session.warm_up()  # before its first frame block: what a frame block takes is learnt
        return session

    def give(self, session: Session) -> None:
        """Keep a session that a stream no longer needs, or close it."""
        if len(self._ready) < self.most:
            session.cancel()
            self._ready.append(session)
        else:
            session.close()

    def clear(self, keep: EngineConfig | None = None) -> bool:
        """Close those that are ready, but for those of one configuration; return whether there were any."""
        going = [session for session in self._ready if session.config.asked != keep]
        self._ready = [session for session in self._ready if session.config.asked == keep]
        for session in going:
            session.close()
        return bool(going)


_PHASES: Final = {
    "denoise_ms": (spans.DENOISE_STEP,),
    "commit_ms": (spans.COMMIT,),
    "decode_ms": (spans.VAE_DECODE, spans.DECODE_WAIT),
}


@dataclass(kw_only=True, eq=False)
class LiveStream:
    """A stream on the device, or suspended to main memory. Every method belongs to the thread that owns the device.

    Args:
        name: what others call it; no secret.
        sessions: where its session comes from, and goes when it needs none.
    """

    name: str
    sessions: SpareSessions
    origin: Origin
    config: EngineConfig
    generation: int = 0
    frames_made: int = 0
    blocks_made: int = 0
    opened_s: float = 0.0
    running: bool = False
    painted: int = 0
    """Number of the first frame that its viewer has not painted."""
    log: list[PromptEntry] = field(default_factory=list)
    branches: dict[int, Branch] = field(default_factory=dict)
    _session: Session | None = None
    _blocks: Iterator[FrameBlock] | None = None
    _asleep: Snapshot | None = None
    _clock: GpuClock | None = None
    _next_epoch: int = 1
    _waiting: tuple[PromptEntry, PromptAck] | None = None
    _next_branch: int = 1
    _replay: tuple[PromptEntry, ...] = ()
    _held: PromptEntry | None = None
    base: int | None = None
    """Branch that the present generation began with; None: it began at frame 0."""
    _give_up: Callable[[], bool] = lambda: False
    _timed: PromptTimes | None = None

    def open(self) -> None:
        """Open the stream's session.

        Raises:
            StrobeError: the prompt, picture or preset is refused, or the device has too little memory.
        """
        self.resume([PromptEntry(epoch=0, frame_block=0, text=self.origin.prompt, mode="recache", over=4)])

    def resume(
        self, log: Sequence[PromptEntry], snapshot: Snapshot | None = None, frame: int = 0, waiting: PromptEntry | None = None
    ) -> None:
        """Go on from a snapshot of the stream, or from its start; the prompts of the log take effect at the frame blocks it says.

        Args:
            log: every prompt, the first one first.
            snapshot: between two frame blocks; its tensors are on the CPU.
            frame: number of the first frame after it.
            waiting: a prompt that was asked for and had no frame block yet; it follows the log.
        """
        made = 0 if snapshot is None else snapshot.next_block
        self.log, self._replay, self._held, self._waiting = list(log), tuple(log), waiting, None
        self.frames_made, self.blocks_made = frame, made
        self._next_epoch = 1 + max(entry.epoch for entry in (*log, *([] if waiting is None else [waiting])))
        if snapshot is not None:
            self._asleep = replace(snapshot, pending=None)
            return
        origin = self.origin
        first = next(entry.text for entry in reversed(log) if entry.frame_block == 0)
        if origin.image:
            start = decode_image(origin.image, self.sessions.model.defaults.frame_size)
            preset, model, seed = self.config, self.sessions.model, origin.seed
            self._session = Session(first, preset=preset, model=model, seed=seed, device=self.sessions.device, start=start)
            self._session.warm_up()
        else:
            self._session = self.sessions.take(self.config, seed=origin.seed, prompt=first)
        self._go_on()

    def _go_on(self) -> None:
        """Open the session's iterator of frame blocks, with the prompts of a log that is made again."""
        assert self._session is not None
        first = max(1, self._session.next_block)
        switches = [
            Switch(frame_block=each.frame_block, prompt=each.text, mode=each.mode, over=each.over)
            for each in self._replay
            if each.frame_block >= first
        ]
        self._blocks = self._session.stream(switches=switches, give_up=lambda: self._give_up())
        device, late = self.sessions.device, self._session.config.knobs.late_frames
        self._clock = GpuClock(device, late=late) if device.type == "cuda" else None

    @property
    def asleep(self) -> bool:
        """Whether the stream is suspended to main memory."""
        return self._asleep is not None

    @property
    def snapshot(self) -> Snapshot:
        """State of a suspended stream."""
        if self._asleep is None:
            raise SessionError("the stream is not suspended")
        return self._asleep

    @property
    def session(self) -> Session:
        """Session of the stream; a suspended one is woken."""
        if self._asleep is not None:
            self.wake()
        if self._session is None:
            raise SessionError("the stream is closed; open another one")
        return self._session

    def make(self, give_up: Callable[[], bool] = lambda: False) -> Block | None:
        """Make the next frame block and copy it off the device; a suspended stream is woken before.

        Args:
            give_up: asked before each denoise step; True gives the frame block up.

        Returns:
            None if it was given up: make it anew, under the prompt that came. Only then can the stream be kept or moved.
        """
        self._give_up = give_up
        asked, asleep = perf_counter_ns(), self.asleep
        session = self.session
        woken_ms = (perf_counter_ns() - asked) / 1e6 if asleep else 0.0
        self._answer_held()
        if self._timed is not None and self._timed.begun_s is None and self.steered:
            self._timed = replace(self._timed, begun_s=monotonic())
        assert self._blocks is not None
        phases: dict[str, float] = {}
        if self._clock is not None:
            block, block_ms = self._clock.timed(partial(next, self._blocks, None))
        else:
            block, block_ms, phases = self._make_on_cpu(self._blocks)
        self.settle()
        if block is None:
            self._go_on()
            return None
        entered = next((entry for entry in self.log if entry.frame_block == block.index), None)
        made_s, timed = monotonic(), None
        if entered is not None and self._timed is not None and entered.epoch == self._timed.epoch:
            timed, self._timed = replace(self._timed, made_s=made_s), None
        epoch = max(entry.epoch for entry in self.log if entry.frame_block <= block.index)
        made = Block(
            frames=block.frames.numpy(),
            index=block.index,
            first_frame=self.frames_made,
            generation=self.generation,
            epoch=epoch,
            entered=entered,
            block_ms=block_ms,
            phases=phases,
            made_s=made_s,
            cache=layout(session, block.index, self.log),
            timed=timed,
            woken_ms=woken_ms,
        )
        self.frames_made += len(made.frames)
        self.blocks_made = block.index + 1
        return made

    def _make_on_cpu(self, blocks: Iterator[FrameBlock]) -> tuple[FrameBlock | None, Callable[[], float], dict[str, float]]:
        """Return the next frame block, what returns its ms, and the ms of its phases; None for one that was given up."""
        began, recorder = perf_counter_ns(), TimingRecorder(self.sessions.device)
        recorder.start_clip()
        with recording(recorder):
            block = next(blocks, None)
        regions = recorder.finish_clip()
        phases = {
            phase: sum(region.value_ns for region in regions if region.name in names) / 1e6 for phase, names in _PHASES.items()
        }
        took_ms = (perf_counter_ns() - began) / 1e6
        return block, lambda: took_ms, phases

    @property
    def steered(self) -> bool:
        """Whether a prompt of known text waits for its first frames; those that are made again from a log do not count."""
        return not self._replay[1:] and self.log[-1].frame_block >= self.blocks_made

    def prompt(self, text: str, mode: Mode, over: int, arrived_s: float | None = None) -> tuple[int, int | None]:
        """Steer the stream; a prompt that still waits is replaced.

        Args:
            arrived_s: when its message came, by the monotonic clock.

        Returns:
            the prompt's number, and the first frame block that follows it: None while its text is encoded beside the stream.

        Raises:
            ConfigError: the model does not understand the prompt; the old one stays.
        """
        if not text.strip():
            raise ConfigError("the prompt is empty; say what to show")
        check_mode(mode, over, self.sessions.model.defaults.past)
        check_prompts(self.sessions.model.text, [text])
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._held = PromptEntry(epoch=epoch, frame_block=0, text=text, mode=mode, over=over)
        now = monotonic()
        self._timed = PromptTimes(epoch=epoch, arrived_s=now if arrived_s is None else arrived_s, asked_s=now)
        self._answer_held()
        return epoch, self.log[-1].frame_block if self.log[-1].epoch == epoch else None

    def _answer_held(self) -> None:
        """Ask the session for the prompt that came last, once all prompts of a log that is made again have taken effect."""
        held, session = self._held, self.session
        if held is None or any(entry.frame_block >= session.next_block for entry in self._replay[1:]):
            return
        self._held, self._replay = None, ()
        self._waiting = held, session.prompt(held.text, mode=held.mode, over=held.over)
        self.settle()

    @property
    def waiting(self) -> PromptEntry | None:
        """The prompt that was asked for and has no frame block yet."""
        return self._held if self._held is not None or self._waiting is None else self._waiting[0]

    @property
    def encoded(self) -> Future[int] | None:
        """Done once the text of the prompt that waits for it is there; None: none waits."""
        return None if self._waiting is None else self._waiting[1].found

    def settle(self) -> None:
        """Log the prompt that waited for its text, once its frame block is known."""
        if self._waiting is None or not self._waiting[1].found.done():
            return
        (entry, answer), self._waiting = self._waiting, None
        if self._timed is not None and self._timed.epoch == entry.epoch:
            self._timed = replace(self._timed, encoded_s=monotonic())
        with suppress(StrobeError):  # its text could not be encoded, or another prompt took its place
            at = answer.wait(0)
            before = [each for each in self.log if each.frame_block < at]
            self.log = [*before, msgspec.structs.replace(entry, frame_block=at)]

    def reset(self, origin: Origin, config: EngineConfig) -> None:
        """Begin again with other words, another seed or preset; if that is refused, the stream stays as it was."""
        other = LiveStream(name=self.name, sessions=self.sessions, origin=origin, config=config)
        if not origin.prompt.strip():
            raise ConfigError("the prompt is empty; say what to show")
        check_prompts(self.sessions.model.text, [origin.prompt])
        self.suspend()
        before, self._asleep, opened = self._asleep, None, False
        try:
            other.open()
            opened = True
        finally:
            if not opened:
                self._asleep = before
        self._session, self.origin, self.config = other._session, origin, config
        self.log, self.frames_made, self.blocks_made, self._next_epoch = other.log, 0, 0, 1
        self._replay, self._held, self._waiting, self._timed, self.base = (), None, None, None, None
        self.generation += 1
        self._go_on()

    def mark(self, name: str) -> Branch:
        """Keep the present state, between two frame blocks, as a branch.

        Raises:
            SessionError: it keeps as many branches as it may.
        """
        if len(self.branches) >= MARKS:
            raise SessionError(f"a stream keeps {MARKS} branches; open another stream for more")
        session = self.session
        branch = Branch(
            number=self._next_branch,
            name=name.strip() or f"branch {self._next_branch}",
            snapshot=session.snapshot().to("cpu"),
            origin=self.origin,
            log=tuple(self.log),
            frame_block=session.next_block,
            frame=self.frames_made,
        )
        self._next_branch += 1
        self.branches[branch.number] = branch
        return branch

    def branch(self, number: int) -> Branch:
        """Return a kept branch by number."""
        if number not in self.branches:
            raise ConfigError(f"there is no branch {number}; this stream keeps {sorted(self.branches) or 'none'}")
        return self.branches[number]

    def go(self, number: int) -> Branch:
        """Return to a branch; a new generation begins.

        Raises:
            SessionError: it is of another seed or preset than the stream has now.
        """
        branch = self.branch(number)
        self.session.restore(branch.snapshot.to(self.sessions.device))
        self._take(branch)
        self.generation, self.base = self.generation + 1, number
        return branch

    def forked(self, number: int, name: str) -> LiveStream:
        """Create a second stream that goes on from a branch; it shares the weights."""
        branch = self.branch(number)
        other = LiveStream(name=name, sessions=self.sessions, origin=branch.origin, config=self.config)
        other._asleep = branch.snapshot
        other._take(branch)
        return other

    def keep_branches(self, branches: Mapping[int, Branch]) -> None:
        self.branches, self._next_branch = dict(branches), 1 + max(branches, default=0)

    def _take(self, branch: Branch) -> None:
        self.log, self.frames_made, self.blocks_made = list(branch.log), branch.frame, branch.frame_block
        self._next_epoch = max(entry.epoch for entry in branch.log) + 1
        self._replay, self._held, self._waiting, self._timed = (), None, None, None
        if self._session is not None:
            self._go_on()

    def suspend(self) -> float:
        """Move the state to main memory, free the device and return the ms that it took; does nothing for a suspended stream."""
        began = perf_counter_ns()
        if self._session is not None:
            self._asleep = self._session.snapshot().to("cpu")
            self.sessions.give(self._session)
            self._session = self._blocks = None
        return (perf_counter_ns() - began) / 1e6

    def wake(self) -> None:
        """Bring the stream back to the device; what follows is bit-equal to what would have followed."""
        assert self._asleep is not None
        snapshot = self._asleep
        session = self.sessions.take(snapshot.identity.config, seed=self.origin.seed)
        session.restore(snapshot.to(self.sessions.device))
        if self.sessions.device.type == "cuda":
            torch.cuda.synchronize(self.sessions.device)  # so that who waits knows how long it took
        self._session, self._asleep = session, None
        self._go_on()

    def recipe(self) -> RecipeAnswer:
        origin = self.origin
        return RecipeAnswer(
            v=VERSION,
            model=self.sessions.model.name,
            weights=self.sessions.model.weights_hash,
            preset=origin.preset,
            seed=origin.seed,
            prompts=[each for each in self.log if each.frame_block < max(1, self.blocks_made)],
            frame_blocks=self.blocks_made,
            image=base64.b64encode(origin.image).decode(),
            image_sha256=hashlib.sha256(origin.image).hexdigest() if origin.image else "",
            device=device_name(self.sessions.device),
            versions=versions(),
        )

    def close(self, *, failed: bool = False) -> None:
        """Free all that the stream holds; the session of one that failed is not used again."""
        if self._session is not None and failed:
            self._session.close()
        elif self._session is not None:
            self.sessions.give(self._session)
        self._session = self._blocks = self._asleep = None
        self.branches.clear()
