"""The thread that owns the device: it makes frame blocks of many streams, the earliest deadline first, and does all else between.

Nothing but this thread touches a session. Others hand it work by `submit`; it hands frame blocks out by the `made` callback.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from time import monotonic, perf_counter
from typing import Any, Final, TypeVar

import torch

from strobe.core.errors import SessionError, StrobeError
from strobe.engine.config import EngineConfig
from strobe.engine.memory import free_bytes, predict
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS
from strobe.engine.presets import preset as find_preset
from strobe.engine.prompts import Mode
from strobe.engine.resolve import check_device, resolve
from strobe.engine.session import Session
from strobe.serve.scheduler import Demand, NotOpenedError, StreamCost, choose, learn, refusal
from strobe.serve.streams import Block, LiveStream, Origin, SpareSessions

T = TypeVar("T")
_Queue = deque[tuple[Callable[[], Any], Future[Any]]]
_MEASURED: Final = {"cpu": 1, "cuda": 6}
"""Steady frame blocks that a cost is taken from at the start: on a CPU the viewer should not wait for more."""
_KEPT: Final = 64
"""Last times of frame blocks that the cost of a preset is learned from."""


class StreamGoneError(SessionError):
    """The stream was closed meanwhile."""


class Worker:
    """The thread that runs the streams of one model on one device.

    Args:
        default: the preset of who asks for none.
        start_buffer_s: seconds of video that viewers hold before they play; a stream is made no further ahead.
        most: streams that may be open.
        made: called from this thread with each stream's name and frame block.
        failed: called from this thread when a stream's frame block failed; the stream is closed.

    Raises:
        ConfigError: the default preset cannot run here.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        *,
        default: str = "balanced",
        start_buffer_s: float = 0.5,
        most: int = 64,
        made: Callable[[str, Block], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.model, self.device, self.default = model, device, default
        self.start_buffer_s, self.most = start_buffer_s, most
        check_device(find_preset(default), device)
        self.configs = {name: find_preset(name) for name in PRESETS if _runs(name, model, device)}
        self.costs: dict[str, StreamCost] = {}
        """What a stream of each preset takes: predicted at the start, learned from its streams as they run."""
        self._predicted: dict[str, StreamCost] = {}
        self._seen: dict[tuple[str, bool], deque[float]] = {}
        self.sessions = SpareSessions(model, device, most=0)
        self._made, self._failed = made, failed
        self._playing: dict[str, LiveStream] = {}
        self._work: _Queue = deque()
        self._steering: _Queue = deque()
        self._making = ""  # name of the stream whose frame block is under way
        self._alone = True  # no other stream plays, so its frame blocks may be given up
        self._give_up = threading.Event()  # a prompt came for it
        self._again = ""  # name of the stream whose last frame block was given up
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="strobe-device", daemon=True)

    @property
    def content_s(self) -> float:
        """Seconds of video in a steady frame block."""
        defaults = self.model.defaults
        return defaults.frame_block * defaults.stride.time / defaults.fps

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 30.0) -> None:
        """End after the present frame block; work that was submitted before is done first."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def submit(self, work: Callable[[], T], *, steers: str = "") -> Future[T]:
        """Run a function on the thread that owns the device, between two frame blocks.

        Args:
            steers: the stream that the function prompts, if it does: it runs before all else that waits. If no other stream
                plays, the frame block under way is given up for it, unless it follows a prompt itself: whoever prompts without
                end still sees frames.
        """
        future: Future[T] = Future()
        with self._wake:
            if self._closing:
                future.set_exception(StrobeError("the server is shutting down; connect again in a moment"))
                return future
            (self._steering if steers else self._work).append((work, future))
            stream = self._playing.get(steers)
            if stream is not None and self._making == steers and self._alone and not stream.steered:
                self._give_up.set()
            self._wake.notify()
        return future

    def prompt(self, name: str, text: str, mode: Mode, over: int, arrived_s: float) -> Future[tuple[int, int | None]]:
        """Prompt a stream, and once more when its text is there, if that takes time; see `LiveStream.prompt`."""

        def settle() -> None:
            if name in self._playing:
                self._playing[name].settle()

        def ask() -> tuple[int, int | None]:
            stream = self.stream(name)
            answer = stream.prompt(text, mode, over, arrived_s)
            if stream.encoded is not None:
                stream.encoded.add_done_callback(lambda _: self.submit(settle, steers=name))
            return answer

        return self.submit(ask, steers=name)

    def painted(self, name: str, generation: int, frame: int, running: bool) -> None:
        """Report from any thread that a viewer has painted all frames before `frame`, and whether the stream is to go on.

        A report of a generation that the stream has left is ignored: its frames have other numbers.
        """
        with self._wake:
            playing = self._playing.get(name)
            if playing is not None and playing.generation == generation:
                playing.painted, playing.running = frame, running
                self._wake.notify()

    def warm_up(self, prompt: str, tell: Callable[[int, int, str], None]) -> dict[str, float]:
        """Measure the default preset with a prompt switch, and so record its graphs and compile its kernels.

        The others are predicted from it by their transformer passes until streams of them run. On a GPU a second stream shows
        what one more takes beside the first, and the first is moved to main memory and back, which also makes room for it there.
        Where sessions record graphs, as many are opened as the device has time for.

        Args:
            prompt: any that the model understands.
            tell: called with steps done, steps in all and what comes next.

        Returns:
            on a GPU of a stream of the default preset `suspend_ms` and `wake_ms`, for which the device is held to move it to main
            memory and back, and `stream_bytes` of one more; nothing on a CPU, where a viewer would wait for it.
        """
        measured = _MEASURED.get(self.device.type, 2)
        steps = measured + 4
        _ = self.model.weights_hash  # waited for here, not where a stream is opened or kept
        tell(0, steps, "open a session")
        config = self.configs[self.default]
        records = resolve(config, self.model.defaults, self.device).knobs.cuda_graphs and self.device.type == "cuda"
        self.sessions.most = 2 if records else 0
        if records:
            self._spare(config)
        origin = Origin(prompt=prompt, seed=0, preset=self.default)
        stream = LiveStream(name="warm-up", sessions=self.sessions, origin=origin, config=config)
        stream.open()
        try:
            times = []
            for number in range(measured + 2):
                tell(number + 1, steps, f"frame block {number}")
                if number == measured + 1:
                    stream.prompt(prompt, "recache", 4)
                block = stream.make(self._gives_up)
                assert block is not None, "nobody steers this stream"
                times.append(block.block_ms() / 1e3)
            found: dict[str, float] = {}
            if self.device.type == "cuda":
                tell(measured + 3, steps, "suspend and wake")
                found = self._moved(stream)
        finally:
            stream.close()
        steady = sorted(times[1 : 1 + measured])[measured // 2]
        passes = sum(resolve(config, self.model.defaults, self.device).calls_per_block.values())
        for name, other in self.configs.items():
            resolved = resolve(other, self.model.defaults, self.device)
            ratio = sum(resolved.calls_per_block.values()) / passes
            self._predicted[name] = self.costs[name] = StreamCost(
                block_s=steady * ratio,
                longest_s=max(times[-1], steady) * ratio,
                content_s=self.content_s,
                stream_bytes=sum(predict(self.model, resolved).values()),
            )
        if found:
            measured_cost = replace(self.costs[self.default], stream_bytes=int(found["stream_bytes"]))
            self._predicted[self.default] = self.costs[self.default] = measured_cost
        if records:
            self._fill(config, tell)
        tell(steps, steps, "ready")
        return found

    def _fill(self, config: EngineConfig, tell: Callable[[int, int, str], None]) -> None:
        """Open as many sessions as the device has time for, so that nobody waits while passes are recorded."""
        cost = self.costs[self.default]
        self.sessions.most = min(self.most, int(1 / cost.share) + 1)
        while (ready := self.sessions.count(config)) < self.sessions.most:
            free = free_bytes(self.device)
            if free is not None and free < 2 * cost.stream_bytes:
                return
            tell(ready, self.sessions.most, f"record session {ready + 1} of {self.sessions.most}")
            self._spare(config)

    def _spare(self, config: EngineConfig) -> None:
        session = Session(preset=config, model=self.model, device=self.device)
        session.warm_up()
        self.sessions.give(session)

    def _moved(self, stream: LiveStream) -> dict[str, float]:
        """Measure one more stream's memory, then suspend and wake the first one; the second time counts."""
        before = torch.cuda.memory_allocated(self.device)
        other = LiveStream(name="one more", sessions=self.sessions, origin=stream.origin, config=stream.config)
        other.open()
        try:
            other.make(self._gives_up)
            after = torch.cuda.memory_allocated(self.device)
        finally:
            other.close()
        times = []
        for _ in range(2):
            suspend_ms = stream.suspend()
            began = perf_counter()
            stream.wake()
            times.append((suspend_ms, 1e3 * (perf_counter() - began)))
        return {"suspend_ms": times[-1][0], "wake_ms": times[-1][1], "stream_bytes": after - before}

    def measured(self, preset: str) -> bool:
        """Return whether the cost of a preset comes from streams of it, and not from those of the default one."""
        return preset == self.default or bool(self._seen.get((preset, False)))

    def refusal(self, preset: str) -> NotOpenedError | None:
        """Say why one more stream does not fit; None if it does. On the device's thread."""
        awake = [self.costs[each.origin.preset] for each in self._playing.values() if not each.asleep]
        config = self.configs[preset]

        def decide() -> NotOpenedError | None:
            free = free_bytes(self.device)
            if free is None or self.sessions.count(config):
                free = 2**62
            return refusal(preset, awake, self.costs, free_bytes=free, start_buffer_s=self.start_buffer_s, most=self.most)

        found = decide()
        return decide() if found is not None and found.kind == "memory" and self.sessions.clear(keep=config) else found

    def open(self, name: str, origin: Origin) -> LiveStream:
        """Open a stream that `refusal` let in. On the device's thread.

        Raises:
            StrobeError: the prompt or the picture is refused.
        """
        stream = LiveStream(name=name, sessions=self.sessions, origin=origin, config=self.configs[origin.preset])
        stream.open()
        self.adopt(stream)
        return stream

    def adopt(self, stream: LiveStream) -> None:
        """Add a stream that was forked. On the device's thread."""
        with self._wake:
            stream.opened_s, stream.running, stream.painted = monotonic(), False, stream.frames_made
            self._playing[stream.name] = stream

    def stream(self, name: str) -> LiveStream:
        """Return an open stream. On the device's thread.

        Raises:
            StreamGoneError: it is closed.
        """
        if name not in self._playing:
            raise StreamGoneError("the stream is closed; open another one")
        return self._playing[name]

    def drop(self, name: str, *, failed: bool = False) -> None:
        """Close a stream. On the device's thread."""
        with self._wake:
            stream = self._playing.pop(name, None)
        if stream is not None:
            stream.close(failed=failed)

    def go(self, name: str, branch: int) -> LiveStream:
        """Take a stream back to a branch. On the device's thread. Raises: see `LiveStream.go`."""
        stream = self.stream(name)
        stream.go(branch)
        self.rewound(name)
        return stream

    def rewound(self, name: str) -> None:
        """Note that a stream was reset or went to a branch: none of its frames is painted. On the device's thread.

        It stands still until the event loop knows its new generation and says so by `painted`; frames made before would be lost.
        """
        with self._wake:
            stream = self._playing[name]
            stream.painted, stream.running = stream.frames_made, False

    def _run(self) -> None:
        while self._next():
            pass
        for name in list(self._playing):
            self.drop(name)
        self.sessions.clear()

    def _next(self) -> bool:
        """Do the work that came first, or else make a frame block; return whether more is to come. Its variables end with it:
        whoever waits for work would hold the stream that was closed last."""
        with self._wake:
            again = self._again if self._again in self._playing else ""
            name = again or choose(self._demands())
            waiting = self._steering or (None if again else self._work)
            if not waiting and name is None:
                if self._closing:
                    return False
                self._wake.wait()  # for work, or for a viewer that has painted
                return True
            work = waiting.popleft() if waiting else None
            self._making = "" if work is not None or name is None else name
            self._alone = not any(each.running for other, each in self._playing.items() if other != name)
        if work is not None:
            self._do(*work)
        elif name is not None and (again or not self._closing):
            self._make(name)
        else:
            return False
        return True

    def _demands(self) -> list[Demand]:
        """Return what each stream needs; one that remakes what its viewer has seen waits for those under half a buffer."""
        fps = self.model.defaults.fps
        return [
            Demand(
                stream=name,
                ahead_s=self.start_buffer_s / 2 if each.frames_made < each.painted else (each.frames_made - each.painted) / fps,
                target_s=self.start_buffer_s + self.content_s,
                running=each.running,
                steered=each.steered,
                opened_s=each.opened_s,
            )
            for name, each in self._playing.items()
        ]

    @staticmethod
    def _do(work: Callable[[], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is whoever waits that it concerns
            future.set_exception(error)

    def _make(self, name: str) -> None:
        stream = self._playing[name]
        try:
            block = stream.make(self._gives_up)
            self._again = name if block is None else ""
            if block is not None:
                self._made(name, block)
                self._learn(stream.origin.preset, block)
        except Exception as error:  # noqa: BLE001 - one stream's failure is no other's
            self.drop(name, failed=True)
            self._failed(name, error)
        finally:
            with self._wake:
                self._making = ""
                self._give_up.clear()

    def _gives_up(self) -> bool:
        """Return whether the frame block under way is to be given up. Only one that may be has the host wait for each step."""
        if not self._alone:
            return False
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self._give_up.is_set()

    def _learn(self, preset: str, block: Block) -> None:
        """Learn the preset's cost from a frame block, unless the window of the attention is not full yet."""
        defaults = self.model.defaults
        if block.index * defaults.frame_block < resolve(self.configs[preset], defaults, self.device).policy.window:
            return
        switched = block.entered is not None
        self._seen.setdefault((preset, switched), deque(maxlen=_KEPT)).append(block.block_ms() / 1e3)
        steady, after = (list(self._seen.get((preset, kind), ())) for kind in (False, True))
        self.costs[preset] = learn(self._predicted[preset], steady, after)


def _runs(name: str, model: Model, device: torch.device) -> bool:
    try:
        resolve(find_preset(name), model.defaults, device)
    except StrobeError:
        return False
    return True
