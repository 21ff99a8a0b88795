"""Recording and replay of transformer passes: the same kernels on the same addresses, without Python between them.

A recorded pass reads its inputs from static tensors, into which the inputs of every replay are copied. Whatever else it depends
on is a weight, a tensor of the cache, or a Python value of the step's `signature`; where its frames stand is in the rotations.
What Python works out once per frame block (rows, rotations, a turned sink, coarse keys) is worked out beside it, into tensors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Literal, Self

import torch
from torch import Tensor

from strobe.cache.kv import CacheStep
from strobe.core.errors import StrobeError
from strobe.core.spans import DIT_FORWARD, silenced, span
from strobe.models.wan.layers import Modulation, TextKV

Mode = Literal["flow", "write"]
"""What a pass is for: the flow of noisy latents, or keys and values of clean ones (a commit, or a recache over the window)."""
LIMIT: Final = 16
"""Recorded passes that are kept. A window of 12 has four sizes of passes of each mode and up to five recaches; the least recently
used goes first."""
WARM_UPS: Final = 1
"""Eager runs of a pass before it is captured, on the same stream: everything in it is then compiled, tuned and allocated."""
CAPTURES: Final = threading.RLock()
"""Held by the thread that captures, waits for a whole device, or has torch give memory back. While a stream is captured, a device
must not be waited for as a whole, and `torch.cuda.empty_cache`, which goes over all devices, leaves the common pool alone."""


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for captures of all sessions of a device: libraries keep a workspace for every stream that calls them."""
    return torch.cuda.Stream(device)


Replaying = Callable[[], AbstractContextManager[None]]
"""What is done around a replay, such as giving its messages a deadline."""
PassInputs = tuple[Tensor, Modulation, TextKV, Tensor]
"""Tensors of a pass that are neither weights nor in the cache: latents `[B, F, C, Y, X]`, modulation, text, rotations."""
Body = Callable[[Tensor, Modulation, TextKV, Tensor, CacheStep], Tensor | None]
"""A pass: its inputs and step, to the flow or, of a pass that only writes, to nothing that is read."""


class Runner:
    """A way to run the passes of one stream; this one runs each anew, launch by launch."""

    def run(
        self, mode: Mode, body: Body, inputs: PassInputs, step: CacheStep, replaying: Replaying = nullcontext
    ) -> Tensor | None:
        """Run a pass, and every replay inside `replaying()`. The result may be overwritten by the next pass of the same mode."""
        return body(*inputs, step)

    def reset(self) -> None:
        """Forget recorded passes, because weights moved or the stream ends."""

    def fresh(self) -> Self:
        """Return one of the same kind for another stream."""
        return type(self)()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A recorded pass: `again` repeats it with the present static inputs, and `out` holds the result."""

    again: Callable[[], None]
    out: Tensor | None


class Recorded(Runner):
    """Passes recorded at their first run and replayed in Python after that: a CUDA graph's behaviour without its speed.

    A replay calls what was called when the pass was recorded, with the step of that time and with static inputs: every Python
    value is that of the recording. So a stream of recorded passes shows on any device whether a pass may be a graph.

    Args:
        limit: passes kept.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._replays: OrderedDict[tuple[object, ...], Replay] = OrderedDict()
        self._inputs: dict[tuple[object, ...], _Static] = {}

    def __len__(self) -> int:
        """Return the number of kept passes."""
        return len(self._replays)

    @property
    def num_bytes(self) -> int:
        """Memory of static inputs, bytes; results and work space belong to the passes."""
        return sum(tensor.nbytes for held in self._inputs.values() for tensor in held.tensors)

    def run(
        self, mode: Mode, body: Body, inputs: PassInputs, step: CacheStep, replaying: Replaying = nullcontext
    ) -> Tensor | None:
        """Replay a pass; record it before if there is none of its mode, signature and shapes.

        Raises:
            StrobeError: it cannot be recorded, or a replay differs from the eager pass. Its frames in the cache are lost.
        """
        signature = step.signature
        assert signature is not None, "this cache cannot be recorded"
        groups = self._groups(inputs)
        key = (mode, signature, *(group.shapes for group in groups))
        replay = self._replays.get(key)
        if replay is None:
            replay = self._replays[key] = self._recorded(body, groups, step, replaying)
            while len(self._replays) > self._limit:
                self._forget(self._replays.popitem(last=False)[1])
        self._replays.move_to_end(key)
        with replaying():
            replay.again()
        return replay.out

    def reset(self) -> None:
        """Forget every pass and free the static inputs."""
        while self._replays:
            self._forget(self._replays.popitem()[1])
        self._inputs.clear()

    def fresh(self) -> Self:
        return type(self)(self._limit)

    def _groups(self, inputs: PassInputs) -> tuple[_Static, ...]:
        """Return static inputs of these shapes, filled with these contents."""
        latents, modulation, text, rope = inputs
        pairs = ((latents, (latents,)), (modulation, (modulation.layers, modulation.head)), (text, text.tensors), (rope, (rope,)))
        groups = []
        for index, (source, tensors) in enumerate(pairs):
            key = (index, *(tensor.shape for tensor in tensors[:2]), len(tensors))
            group = self._inputs.get(key)
            if group is None:
                group = self._inputs[key] = _Static(tensors)
            group.fill(tensors, None if source is latents else source)  # others are made once and never written
            groups.append(group)
        return tuple(groups)

    def _recorded(self, body: Body, groups: tuple[_Static, ...], step: CacheStep, replaying: Replaying) -> Replay:
        latents, modulation, texts, rope = (group.tensors for group in groups)
        text = TextKV.made_of(texts)
        call = partial(body, latents[0], Modulation(layers=modulation[0], head=modulation[1]), text, rope[0], step)
        last = len(text.layers) - 1
        with silenced():
            replay = self._record(call, replaying)
            held = [(group, group.source, [tensor.clone() for tensor in group.tensors]) for group in groups]
            for group in groups:
                group.halve()
            with replaying():
                replay.again()  # before the eager pass: what it does not write is not there yet
            found = _bits(replay.out, step.buffers(last))  # the last layer's depend on all before it
            expected = _bits(call(), step.buffers(last))
            for group, source, tensors in held:
                group.fill(tensors, None)
                group.source = source
        if not all(map(torch.equal, found, expected)):
            self._forget(replay)
            raise StrobeError(
                f"a recorded pass over latents {list(latents[0].shape)} differs from the eager one; turn knob cuda_graphs off"
            )
        return replay

    def _record(self, call: Callable[[], Tensor | None], replaying: Replaying) -> Replay:
        """Record a pass; a subclass replaces this where the device can do more."""
        first = call()
        out = None if first is None else first.clone()

        def again() -> None:
            result = call()
            if out is not None and result is not None:
                out.copy_(result)

        return Replay(again=again, out=out)

    def _forget(self, replay: Replay) -> None:
        """Delete a pass; a subclass first waits where the device may still run it."""


class CudaGraphs(Recorded):
    """Passes recorded as one CUDA graph each; they run in turn and share the memory of their intermediates.

    Args:
        device: where the passes run.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._side = capture_stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def fresh(self) -> Self:
        return type(self)(self._device)

    def _record(self, call: Callable[[], Tensor | None], replaying: Replaying) -> Replay:
        if not len(self):
            self._pool = torch.cuda.graph_pool_handle()  # a handle that all graphs have left is gone
        with CAPTURES:
            graph, out = self._captured(call, replaying)

        def again() -> None:
            with span(DIT_FORWARD):
                graph.replay()

        return Replay(again=again, out=out)

    def _captured(self, call: Callable[[], Tensor | None], replaying: Replaying) -> tuple[torch.cuda.CUDAGraph, Tensor | None]:
        """Warm up, then capture a pass as a CUDA graph.

        During the capture no other thread may use the side stream, whose work would become part of the graph, nor wait for the
        device or empty torch's caches. It does not begin if `replaying` says that a message of the warm-up has failed.
        """
        here = torch.cuda.current_stream(self._device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UPS):
                call()
        here.wait_stream(self._side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with replaying():
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
                    out = call()
            except RuntimeError as error:
                torch.cuda.set_stream(here)  # torch leaves it where the capture failed
                with suppress(RuntimeError):  # torch before 2.12 leaves the pool in use, with all later allocations of the thread
                    torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
                    torch._C._cuda_releasePool(self._device.index, self._pool)
                if isinstance(error, StrobeError):
                    raise
                what = str(error.__context__ or error).partition("\n")[0]
                raise StrobeError(f"a pass cannot be captured as a CUDA graph: {what}; turn knob cuda_graphs off") from error
        return graph, out

    def _forget(self, replay: Replay) -> None:
        with CAPTURES:
            torch.cuda.synchronize(self._device)


class _Static:
    """Tensors at fixed addresses, filled with the contents of others of the same shapes."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        with torch.inference_mode(False):  # filled in whatever mode
            self.tensors = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in like)
        self.shapes = tuple(tensor.shape for tensor in like)
        self.source: object = None

    def fill(self, tensors: Sequence[Tensor], source: object) -> None:
        """Copy contents in, unless they came from the same source before; a source None always counts as new."""
        if source is not None and source is self.source:
            return
        for own, tensor in zip(self.tensors, tensors, strict=True):
            own.copy_(tensor)
        self.source = source

    def halve(self) -> None:
        """Halve all floating-point contents, to have other, finite values; row counts stay."""
        for own in self.tensors:
            if own.is_floating_point():
                own.mul_(0.5)
        self.source = None


def _bits(out: Tensor | None, buffers: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors as bytes, for a comparison bit by bit."""
    tensors = (*buffers,) if out is None else (out, *buffers)
    return [tensor.contiguous().view(torch.uint8).clone() for tensor in tensors]
