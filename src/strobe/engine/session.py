"""A stream of video that can be steered: prompts in, frames out."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, SessionError
from strobe.engine.config import EngineConfig
from strobe.engine.load import load
from strobe.engine.memory import check_room
from strobe.engine.model import Model
from strobe.engine.parallel.group import DeviceGroup
from strobe.engine.parallel.rank import RankContext, check_several
from strobe.engine.presets import preset as find_preset
from strobe.engine.prompts import (
    Change,
    Mode,
    PromptAck,
    Prompting,
    Switch,
    blocks_from,
    check_mode,
    check_prompts,
    check_reached,
    check_switches,
)
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.engine.snapshot import Identity, Snapshot, read_snapshot
from strobe.engine.start import start_latents, with_first_block
from strobe.engine.stream import FrameBlock, GivenUpError, Stream
from strobe.models.lora import Lora, combined


def _whole(seed: int, samples: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return Python's own whole numbers, which noise and snapshots spell out."""
    try:
        seed, *numbers = (int(operator.index(number)) for number in (seed, *samples))
    except TypeError as error:
        raise ConfigError(f"seed {seed} and samples {samples} are not valid: give whole numbers, e.g. 1 and range(4)") from error
    if not numbers or len(set(numbers)) != len(numbers):
        raise ConfigError(f"samples {samples} are not valid: give one or more different numbers, e.g. range(4)")
    return seed, tuple(numbers)


class Session:
    """One stream of frame blocks, or several in lockstep.

    ```python
    with strobe.Session("a red circle moving left", preset="balanced", seed=1) as session:
        for block in session.stream(num_blocks=10):
            show(block.frames)
            if block.index == 4:
                session.prompt("a blue square moving up")
    ```

    The same seed, sample, preset and prompts give the same stream, whatever else happened before.

    Args:
        prompt: first prompt, one for all samples or one for each; it may also come later, by `prompt`.
        preset: name of a preset, or a configuration.
        model: "shapes", a folder, or a loaded model.
        seed: of all noise.
        samples: numbers of the streams that run in lockstep; each draws noise of its own.
        device: "auto", "cpu", "cuda" or "cuda:N"; or the processes that share the session, one device each, which all open it
            (`strobe.engine.parallel`).
        start: what the stream begins with, for all samples: frames uint8 [1 + 4 n, Y, X, 3] (one is an image), or clean latents
            [F, C, Y, X]. They fill the first frame blocks, as they are or made anew (`EngineConfig.strength`); what does not
            fill whole ones goes into the first.

    Raises:
        ShapeError: `start` has another shape.
        DataError: it holds NaN or infinity.
        ConfigError: unknown preset, model or word, or an impossible window or number of devices (names the nearest that is
            allowed).
        CollectiveError: not all processes open the same session.
        ImplUnavailableError: the device is not on this machine.
        WeightsError: the model's weights cannot be read.
        StrobeError: the device has too little free memory; says how much, and what to lower.
    """

    def __init__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        preset: str | EngineConfig = "balanced",
        model: str | Path | Model = "shapes",
        seed: int = 0,
        samples: Sequence[int] = (0,),
        device: str | torch.device | DeviceGroup = "auto",
        start: Tensor | None = None,
    ) -> None:
        asked = find_preset(preset) if isinstance(preset, str) else preset
        seed, samples = _whole(seed, samples)
        where = device.device if isinstance(device, DeviceGroup) else resolve_device(device)
        loaded = model if isinstance(model, Model) else load(model)
        given = None if start is None else start_latents(start, loaded, len(samples), where)
        if given is not None:
            asked = with_first_block(asked, given.shape[1], loaded.defaults)
        config = resolve(asked, loaded.defaults, where)
        share = None
        if isinstance(device, DeviceGroup):
            check_several(config)
            share = RankContext.of(device, loaded, config)
        there = share is None and loaded.shelf.holds(config)
        check_room(loaded, config, share.layout if share else None, len(samples), there=there)
        with torch.inference_mode(False), torch.autocast(where.type, enabled=False):  # LoRAs are merged in float32
            self._attach(Stream(loaded, config, seed=seed, samples=samples, start=given, share=share))
        loaded.text.place(where)
        if prompt is not None:
            self.prompt(prompt)

    def _attach(self, stream: Stream) -> None:
        self._stream = stream
        self._prompting = Prompting(self.model.text, stream.state.next_block)
        self._working = threading.Lock()
        self._running: dict[int, Switch] | None = None  # the timeline of the stream that made the last frame block
        self._cancellations = 0
        self._changed_at = 0  # number of the last frame block that began with new prompts
        self._closed = False

    @property
    def model(self) -> Model:
        """The model that runs."""
        return self._stream.model

    @property
    def config(self) -> ResolvedConfig:
        """Configuration that runs, resolved for this model and device."""
        return self._stream.config

    @property
    def num_devices(self) -> int:
        """Devices that share the session."""
        share = self._stream.share
        return 1 if share is None else share.devices.size

    @property
    def next_block(self) -> int:
        """Number of the frame block that comes next out of a stream."""
        return self._stream.next_block

    @property
    def prompts(self) -> tuple[str, ...]:
        """Prompts of the last frame block that was made, one per sample; empty before the first."""
        return self._stream.state.prompts

    def prompt(self, text: str | Sequence[str], *, mode: Mode = "recache", over: int = 4, wait: bool = False) -> PromptAck:
        """Steer the stream, at any time and from any thread, from the next frame block on for which the text is ready.

        A text that takes time is encoded in parallel to the stream, which goes on under the old prompt meanwhile.

        Args:
            text: one prompt for all samples, or one for each; a prompt may be several with weights (`strobe.engine.prompts`).
            mode: "recache" (hard), "soft", "interpolate" or "shot"; see `strobe.engine.prompts.MODES`.
            over: frame blocks that "interpolate" takes.
            wait: encode now, so that the next frame block follows it whatever the encoder takes. The first prompt of a session is
                always waited for, where its frame block is made.

        Returns:
            which frame block will be the first to follow it, as soon as that is known.

        Raises:
            ConfigError: an unknown word or mode (names the nearest), or a wrong number of prompts. The old prompt stays.
            SessionError: the session is closed.
        """
        self._check_open()
        check_mode(mode, over, self.config.past)
        prompts = self._checked(text)
        wait = wait or self._stream.share is not None  # the processes that share it go on together
        return self._prompting.ask(Change(prompts=prompts, mode=mode, over=over), wait=wait)

    def stream(
        self,
        num_blocks: int | None = None,
        *,
        seconds: float | None = None,
        switches: Sequence[Switch] = (),
        give_up: Callable[[], bool] | None = None,
    ) -> Iterator[FrameBlock]:
        """Go on with the stream, frame block by frame block; each is made when it is asked for.

        One at a time: once another call's first frame block was made, the iterator of this one is of no more use.

        Args:
            num_blocks: how many; None without `seconds`: endless.
            seconds: at least so much more video.
            switches: prompts for frame blocks to come, numbered from the start of the stream.
            give_up: asked before each denoise step and before the clean-context pass, to follow a new prompt at once. If it
                returns True, the frame block under way is given up and the iterator ends: call `prompt`, then `stream` again,
                which makes that frame block anew. Passes are queued ahead of a GPU, so wait for it in this function. With it,
                frames that follow a new prompt never come late (`Knobs.late_frames`). A session on several devices ignores it.

        Raises:
            ConfigError: both lengths or one that is not positive; an unknown word, or a switch that would never take effect.
            SessionError: the session is closed; while streaming: there is no prompt yet, or another stream took over.
        """
        self._check_open()
        blocks = blocks_from(self.next_block, num_blocks, seconds, self.model.defaults, self.config.first_block)
        timeline = {switch.frame_block: switch for switch in check_switches(switches, self.config.past)}
        check_reached(timeline.values(), self._stream.state.next_block, blocks)
        prompts = [switch.prompt for switch in timeline.values()]
        check_prompts(self.model.text, prompts)
        self._prompting.encode_ahead(prompts)
        alone = self._stream.share is None
        return self._run(blocks, timeline, self._cancellations, give_up if alone else None)

    @property
    def loras(self) -> tuple[Lora, ...]:
        """LoRAs that run, those of the model first."""
        return self._stream.loras

    def use_lora(self, lora: Lora | Sequence[Lora] | None, *, strength: float = 1.0) -> None:
        """Replace the LoRAs that this method set before by one or several others; the model's own LoRAs stay.

        It takes effect at the next frame block, which derives the window again as a hard switch does, save in models with shots.

        Args:
            lora: one, several (each with a strength of its own, `Lora.at`), or None. One of the model's gets its new strength.
            strength: multiplies theirs.

        Raises:
            ConfigError: one LoRA is given twice.
            WeightsError: a LoRA is not one of this model's; what ran stays.
            SessionError: the session is closed or working, or was forked.
        """
        given = () if lora is None else (lora,) if isinstance(lora, Lora) else tuple(lora)
        with self._exclusive():
            self._stream.use_loras(combined(self.model.loras, [each.at(each.strength * strength) for each in given]))

    def cancel(self) -> None:
        """End the streams opened so far before their next frame block. The session can go on with another `stream`."""
        self._cancellations += 1

    def snapshot(self) -> Snapshot:
        """Copy the session as it is between two frame blocks.

        Raises:
            SessionError: the session is closed or working, or its last frame block failed half-way.
        """
        self._prompting.settle()
        with self._exclusive():
            state, cache = self._stream.snapshot()
            return Snapshot(identity=self._identity, state=state, cache=cache, pending=self._prompting.pending)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this session or one like it; what follows is bit-equal to what followed then.

        Raises:
            SessionError: the snapshot has other weights, configuration, seed or samples, or contradicts itself; names what.
        """
        with self._exclusive():
            snapshot.check(self._identity)
            self._stream.restore(snapshot.state, snapshot.cache)
            self._prompting.reset(snapshot.pending, snapshot.state.next_block)

    def restart(self, prompt: str | Sequence[str] | None = None, *, seed: int = 0) -> None:
        """Begin again under another prompt and seed, without start frames; iterators of `stream` end.

        What follows is bit-equal to what a new session of the same configuration streams. A new one has to record its
        passes on a GPU; this keeps them.

        Raises:
            ConfigError: as of `prompt`, or a seed that is no whole number; the session stays as it was.
            SessionError: the session is closed or working, runs on several devices, or has other LoRAs than its model.
        """
        seed, _ = _whole(seed, self._stream.samples)
        prompts = () if prompt is None else self._checked(prompt)
        with self._exclusive():
            self._stream.restart(seed)
            self._prompting.reset(None, 0)
            self._running = None
        self.cancel()
        if prompts:
            self.prompt(prompts)

    def warm_up(self) -> None:
        """Record every pass now, before the first frame block: on a GPU it takes seconds.

        Otherwise a pass is recorded when it first runs, so that first frames come sooner, and the frame blocks that fill the
        window and the first prompt switch take longer. Where passes are not recorded, nothing is. Of a `DeviceGroup` every rank
        calls it.

        Raises:
            SessionError: the session is closed or working, or has begun.
        """
        with self._exclusive():
            if self._stream.state.next_block:
                raise SessionError(f"frame block {self.next_block} comes next: warm up before the first one")
            if self.config.knobs.cuda_graphs:
                self._stream.warm_up()

    def launched(self) -> AbstractContextManager[None]:
        """Run passes kernel by kernel inside this context, because a profiler sees no regions inside graphs: the same frames."""
        return self._stream.launched()

    def fork(self) -> Session:
        """Return a second session that goes on from here independently, with the same weights; raises what `snapshot` does."""
        self._prompting.settle()
        with self._exclusive():
            other = Session.__new__(Session)
            other._attach(self._stream.fork())
            other._prompting.reset(self._prompting.pending, self._stream.state.next_block)
            return other

    @classmethod
    def resume(
        cls, path: str | Path, *, model: str | Path | Model | None = None, device: str | torch.device | DeviceGroup = "auto"
    ) -> Self:
        """Open a session that goes on from a file that `Snapshot.save` wrote.

        Args:
            path: the file.
            model: where the weights are now; None: where they were.
            device: see `Session`.

        Raises:
            DataError: the file cannot be read.
            SessionError: the weights are not those of the snapshot, or it is of another version or was damaged.
        """
        where = device if isinstance(device, DeviceGroup) else resolve_device(device)
        snapshot = read_snapshot(path, where if isinstance(where, torch.device) else where.device)
        identity = snapshot.identity
        given = model or identity.model
        session = cls(preset=identity.config, model=given, seed=identity.seed, samples=identity.samples, device=where)
        session.restore(snapshot)
        return session

    def close(self) -> None:
        """End the session; a frame block that another thread is making is finished. Closing twice does nothing."""
        self._closed = True
        self.cancel()
        self._prompting.close()
        self._close_when_idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _checked(self, text: str | Sequence[str]) -> tuple[str, ...]:
        """Return the prompt of each sample; unknown words are told now."""
        count = len(self._stream.samples)
        prompts = (text,) * count if isinstance(text, str) else tuple(text)
        if len(prompts) != count:
            raise ConfigError(f"{len(prompts)} prompts for {count} samples; give one, or one for each sample")
        check_prompts(self.model.text, prompts)
        return prompts

    @property
    def _identity(self) -> Identity:
        stream, name, config = self._stream, self.model.name, self.config.asked
        return Identity(model=name, weights_hash=stream.weights_hash, config=config, seed=stream.seed, samples=stream.samples)

    def _run(
        self, blocks: Iterable[int], timeline: dict[int, Switch], cancellations: int, give_up: Callable[[], bool] | None
    ) -> Iterator[FrameBlock]:
        for count, index in enumerate(blocks):
            if self._cancellations != cancellations:
                return
            last = isinstance(blocks, range) and index == blocks[-1]
            ahead = self.config.knobs.late_frames and not last
            try:
                block = self._next(timeline, start=None if count else index, ahead=ahead, give_up=give_up)
            except GivenUpError:
                return
            yield block

    def _next(
        self, timeline: dict[int, Switch], start: int | None, ahead: bool, give_up: Callable[[], bool] | None
    ) -> FrameBlock:
        """Hand out a frame block; with `ahead` make the next one first."""
        with self._exclusive():
            self._take_turn(timeline, start)
            index, cancellations = self.next_block, self._cancellations
            if self._stream.state.next_block == index:
                self._make(timeline, give_up)
            ahead = ahead and not (give_up is not None and self._changed_at == index)
            if ahead and self._stream.state.next_block == index + 1 and self._cancellations == cancellations:
                self._make(timeline, give_up)
            return self._stream.deliver()

    def _make(self, timeline: dict[int, Switch], give_up: Callable[[], bool] | None) -> None:
        index = self._stream.state.next_block
        switch = timeline.get(index)
        if switch is not None:
            self.prompt(switch.prompt, mode=switch.mode, over=switch.over, wait=True)
        told = self._prompting.open(index, first=self._stream.state.blend is None)
        try:
            change, text = (None, None) if told is None else told
            self._stream.advance(change, text, give_up)
            self._changed_at = self._changed_at if told is None else index
        finally:
            self._prompting.made(told, self._stream.state.next_block, index)  # made, if maybe not decoded

    def _take_turn(self, timeline: dict[int, Switch], start: int | None) -> None:
        """Check that this stream's turn has come; two streams that alternate would miss each other's switches."""
        if start == self.next_block:
            self._running = timeline
        if self._running is not timeline:
            raise SessionError(
                f"another stream has taken this session on to frame block {self.next_block}; "
                "call stream(...) again to go on from there, or fork() the session to have two"
            )

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._working.acquire(blocking=False):
            self._check_open()
            raise SessionError("the session is making a frame block in another thread; wait for it, or fork() beforehand")
        try:
            self._check_open()  # nobody closes it now
            # the configuration says what computes in which dtype, and what is kept is written to in whatever mode
            with torch.inference_mode(False), torch.autocast(self.config.device.type, enabled=False):
                yield
        finally:
            self._working.release()
            if self._closed:
                self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._working.acquire(blocking=False):  # else whoever works does it afterwards
            self._stream.close()
            self._working.release()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("the session is closed; open another one")
