"""The prompts of a session, and the frame block at which each takes effect; texts are encoded in parallel to the stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from torch import Tensor

from strobe.core.errors import SessionError
from strobe.engine.prompts import Change, Mode
from strobe.engine.texts import TextEncoder
from strobe.engine.weighted import encode_prompts, prompts_ready


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptAck:
    """Answer to a prompt.

    Args:
        prompts: one per sample.
        mode: how they take over.
        found: number of the first frame block that follows them, once it is known.
    """

    prompts: tuple[str, ...]
    mode: Mode
    found: Future[int] = field(compare=False, repr=False)

    @property
    def frame_block(self) -> int | None:
        """Number of the first frame block that follows the prompt; None while its text is encoded. Raises: see `wait`."""
        return self.found.result() if self.found.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the text is encoded; returns the number of the first frame block that follows it.

        Args:
            timeout: in seconds; None: as long as it takes.

        Raises:
            SessionError: another prompt took its place before it was encoded, or the session was closed.
            StrobeError: the text encoder failed; the old prompt stays.
            TimeoutError: it takes longer.
        """
        return self.found.result(timeout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A change that waits for its frame block, with its text if that is encoded already."""

    change: Change
    text: Tensor | None = None


class Prompting:
    """The prompts of one session; the last one asked for counts.

    Args:
        encoder: of the model.
        open_block: number of the frame block that is made next.
    """

    def __init__(self, encoder: TextEncoder, open_block: int) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()
        self._open_block = open_block
        self._told: Told | None = None
        self._number = 0
        self._coming: Future[int] | None = None
        self._workers: ThreadPoolExecutor | None = None

    @property
    def told(self) -> Told | None:
        """Change that waits for its frame block, with its text if encoded; None: there is none."""
        with self._lock:
            return self._told

    @property
    def pending(self) -> Change | None:
        """Change that waits for its frame block, without its text; None: there is none."""
        told = self.told
        return None if told is None else told.change

    def ask(self, change: Change, *, wait: bool) -> PromptAck:
        """Accept a change: at once if its text needs no time, else when it is encoded.

        Args:
            change: the prompts were checked.
            wait: encode them now, in this thread.
        """
        ready = prompts_ready(self._encoder, change.prompts)
        found: Future[int] = Future()
        with self._lock:
            self._number += 1
            number, self._coming = self._number, None
            if not ready and not wait:
                found = self._coming = self._worker().submit(self._encode, number, change)
        if ready or wait:
            found.set_result(self._tell(number, Told(change=change)) if ready else self._encode(number, change))
        return PromptAck(prompts=change.prompts, mode=change.mode, found=found)

    def encode_ahead(self, prompts: Sequence[str]) -> None:
        """Encode texts that will be asked for later, in parallel to the stream."""
        with self._lock:
            for prompt in prompts:
                if not prompts_ready(self._encoder, [prompt]):
                    self._worker().submit(encode_prompts, self._encoder, [prompt])

    def settle(self) -> None:
        """Wait until nothing is being encoded. Raises: see `PromptAck.wait`."""
        while (coming := self._coming) is not None:
            try:
                coming.result()
            finally:
                with self._lock:
                    self._coming = None if self._coming is coming else self._coming

    def open(self, frame_block: int, *, first: bool) -> Told | None:
        """Return the change that a frame block about to be made has to follow.

        Args:
            frame_block: its number.
            first: there is no prompt yet; then wait for what is being encoded.
        """
        if first and self.pending is None:
            self.settle()
        with self._lock:
            self._open_block = frame_block + 1
            return self._told

    def made(self, told: Told | None, next_block: int, frame_block: int) -> None:
        """Note how far the stream is; a change that a finished frame block followed no longer waits."""
        with self._lock:
            self._open_block = next_block
            if next_block > frame_block and self._told is told:
                self._told = None

    def reset(self, change: Change | None, open_block: int) -> None:
        """Start anew with a change that waits; texts still being encoded are dropped."""
        with self._lock:
            self._number += 1
            self._told = None if change is None else Told(change=change)
            self._open_block, self._coming = open_block, None

    def close(self) -> None:
        """Let the worker thread end after its present text."""
        with self._lock:
            self._number += 1
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.shutdown(wait=False, cancel_futures=True)

    def _worker(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prompts")
        return self._workers

    def _encode(self, number: int, change: Change) -> int:
        return self._tell(number, Told(change=change, text=encode_prompts(self._encoder, change.prompts)))

    def _tell(self, number: int, told: Told) -> int:
        with self._lock:
            if number != self._number:
                raise SessionError(
                    f"the prompt {told.change.prompts[0]!r} takes no effect: another one came, or the session ended, before its "
                    "text was encoded"
                )
            self._told = told
            return self._open_block
