"""Messages between ranks, the only file here that uses `torch.distributed`: numbered calls, and errors that name the rank.

On gloo a message goes straight to its receiver under a tag made from the call, so two ranks in different calls wait for each
other and never read each other's bytes; a receive that fails knows whom it waited for. Other backends run their collectives.

Every tensor that goes to `torch.distributed` is contiguous: gloo reads memory in order and does not look at strides, so ranks
whose strides differ would add numbers of different places. `CollectiveCall._start` asserts it, and nothing else starts a message.

How ranks show each other that all are in the same call, and what a rank that fails leaves behind, is in the README. Work that is
queued on a GPU and that no call waits for has a deadline here: NCCL's own is that of the whole group, and names no rank.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from strobe.core.errors import ConfigError, StrobeError
from strobe.core.settings import read_settings
from strobe.core.spans import span

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class CollectiveError(StrobeError, RuntimeError):
    """A call that several ranks make together failed; every rank that is alive raises it.

    Args:
        message: one line.
        ranks: the ranks that are to blame, as ranks of the group; empty if it is not known.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        self.ranks = tuple(ranks)
        super().__init__(message)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 1, 2`."""
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


def disagreement(odd: Sequence[int], what: str, calls: Mapping[int, str]) -> str:
    """Return `rank 1 disagrees on the arguments: rank 0 is in call 7: ...; rank 1 is in call 7: ...`."""
    usual = min(rank for rank in calls if rank not in odd)
    told = "; ".join(f"rank {rank} is in {calls[rank]}" for rank in (usual, *odd))
    return f"{name_ranks(odd)} disagree{'s' * (len(odd) == 1)} on the {what}: {told}"


class Note(NamedTuple):
    """What a rank leaves when its call fails: number, digest and words of the call, what happened, and whom it waited for."""

    number: int
    digest: int
    call: str
    reason: str
    blamed: Sequence[int]


def _within(patience_s: float, action: Callable[[], None]) -> None:
    """Run an action in a thread, and return when it ends or the time is up: a store's own calls have no timeout."""

    def run() -> None:
        try:
            action()
        except RuntimeError:  # the store's process has gone; the caller sees that nothing came
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)


POLL_S: Final = 0.05


@dataclass(kw_only=True, slots=True, eq=False)
class Queued:
    """One piece of queued work with its deadline. Neither question about it may wait.

    Args:
        done: whether it has ended.
        begun: whether the GPU has come to it. What is queued before it may take as long as it likes.
        late: called once, in another thread, if it has not ended `timeout_s` after it had begun.
        since: the first look at which it had begun.
    """

    done: Callable[[], bool]
    begun: Callable[[], bool]
    late: Callable[[], None]
    timeout_s: float
    since: float | None = None

    def over(self, now: float) -> bool:
        """Look at the work; return whether it has ended, or is late, which is told."""
        if _true(self.done):
            return True
        if self.since is None and _true(self.begun):
            self.since = now
        if self.since is None or now <= self.since + self.timeout_s:
            return False
        told = False
        try:
            self.late()
            told = True
        finally:  # the thread that waits for the queue to empty would wait for ever
            if not told:
                end_process(CollectiveError("the GPU waits for another rank, and giving up failed"))
        return True


class Watch:
    """A thread that looks at the queued work; it sleeps while there is none."""

    def __init__(self) -> None:
        self._queued: list[Queued] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(
        self, done: Callable[[], bool], late: Callable[[], None], timeout_s: float, *, begun: Callable[[], bool] = lambda: True
    ) -> None:
        """Add work to the watch, and start its thread if none runs, as in a process that was forked."""
        with self._changed:
            self._queued.append(Queued(done=done, begun=begun, late=late, timeout_s=timeout_s))
            self._changed.notify()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="strobe-watch")
                self._thread.start()

    def _run(self) -> None:
        _leave_captures_alone()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued)
                queued = list(self._queued)
            over = [each for each in queued if each.over(time.monotonic())]
            with self._changed:
                self._queued = [each for each in self._queued if each not in over]
            time.sleep(POLL_S)


_WATCH: Final = Watch()


def reached(device: torch.device | None = None) -> Callable[[], bool]:
    """Record an event on a GPU's current stream (default: the current GPU); return the function that asks if it is done."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.query


def _leave_captures_alone() -> None:
    """Let this thread query events while another thread captures a CUDA graph; without this a query would break the capture."""
    if torch.cuda.is_initialized() and torch.version.cuda:
        relaxed = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))


def _true(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except RuntimeError:  # the device or the communicator has failed: whoever uses it next is told
        return True


def end_process(error: CollectiveError) -> None:
    """Write the error and end this process, because work that waits on the GPU cannot be stopped in another way.

    `torchrun` finds the message in the file where it looks for one, and shows it as the cause.
    """
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()
    try:
        raise error  # the launcher shows the traceback of what is being handled
    except CollectiveError:
        get_error_handler().record_exception(error)
    os._exit(1)


Shape = tuple[int, ...]

MESSAGE: Final = "tree_message:"
"""The region of one collective, from its start until its result is there: `agreement`, `gather`, `exchange` or `reduce`."""
WAIT: Final = "tree_wait:"
"""The region of the last part of a collective that runs beside something else: from when this rank has nothing else to do."""
HANG_UP: Final = 3
"""The tag under which nothing is ever sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One message in flight: with which rank (None: with all), and whether its wait has a timeout and it comes, not goes.

    `begun`, where it is still queued on the GPU after the wait, says whether the GPU has come to it.
    """

    rank: int | None
    work: dist.Work
    timed: bool
    comes: bool = False
    begun: Callable[[], bool] | None = None

    def silent(self) -> bool:
        """Whether it is to come and has not."""
        try:
            return self.comes and not self.work.wait(timedelta(milliseconds=1))
        except RuntimeError:
            return True


class Token(NamedTuple):
    """The description of a call that a rank sends to the others; fields are sent in this order."""

    number: int
    digest: int
    queries: int
    num_kv_heads: int
    head_dim_v: int


class Comm:
    """A process group and the number of calls made on it. One for each group, made by `comm_of`; nothing is sent to make it.

    Args:
        group: None: this process alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = None if group is None else ref(group)  # a group must not live on because it was used here
        config = "" if group is None else dist.get_backend_config(group)  # cpu:gloo,cuda:nccl
        self._backends = {device: name for device, _, name in (each.partition(":") for each in config.split(","))}
        self.rank = 0 if group is None else group.rank()
        self.size = 1 if group is None else group.size()
        self._store = None if group is None else c10d._get_process_group_store(group)
        self.agreed: dict[tuple[int, ...], tuple[int, int]] = {}
        self.num_calls = 0
        self.broken = ""
        self.watch = _WATCH
        self.error: CollectiveError | None = None
        self._blocking = read_settings().nccl_blocking_wait

    @property
    def group(self) -> dist.ProcessGroup:
        group = None if self._group is None else self._group()
        assert group is not None, "a process alone sends nothing"
        return group

    def backend(self, device_type: str) -> str:
        """Return the backend that carries tensors of a device, such as `gloo` or `nccl`; `none` for a process alone."""
        return self._backends.get(device_type, "none")

    def direct(self, device: torch.device) -> bool:
        """Return whether messages of this device are sent directly to their receiver under a tag."""
        return device.type == "cpu" and self.backend("cpu") == "gloo"

    def timed(self, device: torch.device) -> bool:
        """Return whether a wait may have a timeout; with NCCL only under blocking waits: its timeout makes the CPU wait."""
        backend = self.backend(device.type)
        return backend == "gloo" or (backend == "nccl" and self._blocking)

    def timeout_s(self, device: torch.device) -> float:
        """Return how long the group itself waits for a message of this device."""
        timeout: timedelta = self.group._get_backend(device).options._timeout
        return timeout.total_seconds()

    def put(self, key: str, value: object, patience_s: float) -> None:
        """Leave a value of this rank in the group's store, if the store can be reached within `patience_s`."""
        store = self._store
        assert store is not None, "a process alone tells nobody"
        _within(patience_s, lambda: store.set(f"strobe/tree/{key}/{self.rank}", json.dumps(value)))

    def read(self, key: str, ranks: Collection[int], patience_s: float) -> dict[int, Any]:
        """Collect what the given ranks have put, at most `patience_s` long; ranks that have not are absent.

        Some stores wait a second or more for a value, so the store is polled.
        """
        store, found = self._store, dict[int, Any]()
        assert store is not None, "a process alone hears of nobody"
        deadline = time.monotonic() + patience_s

        def poll() -> None:
            while len(found) < len(ranks) and time.monotonic() < deadline:
                for rank in ranks:
                    name = f"strobe/tree/{key}/{rank}"
                    if rank not in found and store.check([name]):
                        found[rank] = json.loads(store.get(name))
                time.sleep(0.002)

        _within(patience_s, poll)
        return dict(sorted(found.items()))

    def give_up(self, error: CollectiveError, *, ends_process: bool) -> None:
        """Stop what waits on the GPU for a missing rank: end this process, or only abort NCCL's communicator.

        That is done in a thread of its own: NCCL frees memory there, and so waits for all that runs on the GPU, which may be a
        message of another group that the watch has to give up meanwhile.
        """
        self.error = error
        if ends_process:
            end_process(error)
        group = self.group

        def abort() -> None:
            _leave_captures_alone()
            try:
                group._get_backend(torch.device("cuda")).abort()
            except RuntimeError:
                end_process(error)

        threading.Thread(target=abort, daemon=True, name="strobe-abort").start()

    def hang_up(self) -> None:
        """Close gloo's connections to all ranks, so that none of them waits for a message that this rank will not send.

        A wait that is over closes them all; ranks whose connection is closed already take no message to wait for.
        """
        if self.backend("cpu") != "gloo":
            return
        for rank in range(self.size):
            if rank != self.rank:
                with suppress(RuntimeError):
                    self.group.recv([torch.empty(1, dtype=torch.uint8)], rank, HANG_UP).wait(timedelta(milliseconds=1))

    def begin(self, text: str, digest: int, timeout_s: float, *, ends_process: bool = True) -> CollectiveCall:
        """Start the next call of this group.

        Args:
            text, digest: the call in words, and what must be equal on all ranks.
            timeout_s: of each wait.
            ends_process: where a collective of it on a GPU is late; False: whoever calls looks at `error` before any result.

        Raises:
            CollectiveError: an earlier call has failed; what is still under way in the group could be taken for an answer.
        """
        if self.broken:
            raise CollectiveError(f"this process group has failed before ({self.broken}); make a new group")
        self.num_calls += 1
        return CollectiveCall(self, self.num_calls, text, digest, timeout_s, ends_process)


# A group's number of calls must outlive a call, and must not outlive the group.
_COMMS: WeakKeyDictionary[dist.ProcessGroup, Comm] = WeakKeyDictionary()


def comm_of(group: dist.ProcessGroup | None) -> Comm:
    """Return the `Comm` of a group, made at the first call; None: of the default group.

    Raises:
        ConfigError: `torch.distributed` is not initialised, or this rank is not in the group.
    """
    if not dist.is_initialized():
        raise ConfigError("torch.distributed: not initialised; call torch.distributed.init_process_group first")
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise ConfigError(f"group: got {group!r}, expected a process group that this rank is in")
    comm = _COMMS.get(group)
    if comm is None:
        comm = _COMMS[group] = Comm(group)
    return comm


def comms_of_mesh(mesh: DeviceMesh) -> tuple[Comm, Comm | None]:
    """Return the `Comm`s over which keys and, on a 2-D mesh, heads are spread.

    Raises:
        ConfigError: the mesh is something else, or has more than two dimensions.
    """
    from torch.distributed import device_mesh

    if not isinstance(mesh, device_mesh.DeviceMesh):
        raise ConfigError(f"mesh: got {type(mesh).__name__}, expected a DeviceMesh, which init_device_mesh makes")
    if mesh.ndim == 1:
        return comm_of(mesh.get_group()), None
    if mesh.ndim == 2:
        return comm_of(mesh.get_group(0)), comm_of(mesh.get_group(1))
    raise ConfigError(f"mesh: got {mesh.ndim} dimensions, expected 1 (tree) or 2 (tree, heads)")


@dataclass(slots=True, eq=False)
class Exchange:
    """Messages in flight between all pairs of ranks; `wait` returns one received tensor from each rank."""

    call: CollectiveCall
    received: list[Tensor]
    kind: str
    works: list[Waiting] = field(default_factory=list)
    kept: Sequence[Tensor] = ()  # what is being sent must not be freed
    marked: ExitStack = field(default_factory=ExitStack)  # a profiling mark, open until the end of the wait

    def wait(self) -> list[Tensor]:
        """Wait for all messages and return one tensor from each rank.

        Raises:
            CollectiveError: a rank did not send within the timeout, or has gone.
        """
        with self.marked, span(WAIT + self.kind):
            self.call.wait(self.works)
        return self.received


@dataclass(eq=False)
class CollectiveCall:
    """One call on one group: all its messages carry its number, and its errors name it. See `Comm.begin`."""

    comm: Comm
    number: int
    text: str
    digest: int
    timeout_s: float
    ends_process: bool
    first: Callable[[], object] | None = None

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def others(self) -> list[int]:
        """The other ranks, those after this one first."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def meet(self) -> None:
        """Run the action that must come before the first message, once; every method that sends calls this."""
        first, self.first = self.first, None
        if first is not None:
            first()

    def exchange(
        self,
        sends: Sequence[Tensor],
        shapes: Sequence[Shape] = (),
        *,
        into: Sequence[Tensor] = (),
        tag: int | None = None,
        kind: str = "exchange",
    ) -> Exchange:
        """Send `sends[r]` to rank r and receive a tensor of `shapes[r]` from it, all of one dtype and device.

        What a rank sends itself is handed over; with `into`, contiguous tensors, all comes there. An empty tensor is not sent.
        A `tag` of its own comes before all others. `kind` is what a recorder sees.

        Raises:
            ConfigError: tensors on a GPU travel by gloo.
        """
        assert bool(shapes) != bool(into) and all(each.is_contiguous() for each in into)
        if tag is None:
            self.meet()
        own = sends[self.rank]
        received = list(into) or [own if rank == self.rank else own.new_empty(shape) for rank, shape in enumerate(shapes)]
        if into:
            into[self.rank].copy_(own)
        exchange = Exchange(self, received, kind)
        if self.size == 1:
            return exchange
        with ExitStack() as stack:
            stack.enter_context(span(MESSAGE + kind))
            if self.comm.direct(own.device):
                own_tag = 16 + zlib.crc32(f"{self.number} {self.digest}".encode()) % (2**30)
                started = self._exchange_directly(sends, received, own_tag if tag is None else tag)
            else:
                started = self._exchange_as_collective(sends, received)
            exchange.works, exchange.kept = started
            exchange.marked = stack.pop_all()
        return exchange

    def _exchange_directly(self, sends: Sequence[Tensor], received: list[Tensor], tag: int) -> tuple[list[Waiting], list[Tensor]]:
        group, works, kept = self.comm.group, list[Waiting](), list[Tensor]()
        for act, tensors in ((group.recv, received), (group.send, sends)):
            for rank in self.others:
                if tensors[rank].numel():
                    kept.append(_bytes(tensors[rank].contiguous()))
                    work = self._start(partial(act, kept[-1:], rank, tag), kept[-1:], rank)
                    works.append(Waiting(rank=rank, work=work, timed=True, comes=tensors is received))
        return works, kept

    def _exchange_as_collective(self, sends: Sequence[Tensor], received: list[Tensor]) -> tuple[list[Waiting], list[Tensor]]:
        """Exchange messages by one collective from the memory they are in; only a message that is not contiguous is copied. Gloo
        would fail on CUDA tensors of different sizes with an error about a closed connection."""
        if sends[self.rank].is_cuda and self.comm.backend("cuda") == "gloo":
            raise ConfigError(
                "the group sends CUDA tensors by gloo, which exchanges only messages of equal size; "
                'make it by init_process_group("cpu:gloo,cuda:nccl")'
            )
        nothing = sends[self.rank].new_empty(0)
        arriving = [nothing if rank == self.rank else each.view(-1) for rank, each in enumerate(received)]
        leaving = [nothing if rank == self.rank else each.contiguous().view(-1) for rank, each in enumerate(sends)]
        start = partial(dist.all_to_all, arriving, leaving, group=self.comm.group, async_op=True)
        return [self._start_of_all(start, [*arriving, *leaving])], leaving

    def gather(self, tensor: Tensor, shapes: Sequence[Shape] | None = None) -> list[Tensor]:
        """Gather every rank's tensor, in rank order.

        Args:
            shapes: of every rank's tensor where they differ.
        """
        shapes = [tuple(tensor.shape)] * self.size if shapes is None else list(shapes)
        if self.size == 1:
            return [tensor]
        if self.comm.direct(tensor.device):
            return self.exchange([tensor.contiguous()] * self.size, shapes, kind="gather").wait()
        self.meet()
        sizes = [prod(shape) * tensor.element_size() for shape in shapes]
        longest = max(sizes)
        if longest == 0:
            return [tensor.new_empty(shape) for shape in shapes]
        sent = _bytes(tensor.contiguous())
        if sent.numel() < longest:
            sent = torch.cat([sent, sent.new_zeros(longest - sent.numel())])
        arrived = torch.empty(longest * self.size, dtype=torch.uint8, device=tensor.device)
        # torch renamed it and warns about the old name
        collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with span(MESSAGE + "gather"):
            start = partial(collective, arrived, sent, group=self.comm.group, async_op=True)
            self.wait([self._start_of_all(start, [arrived, sent])])
        parts = zip(arrived.view(self.size, longest), sizes, shapes, strict=True)
        return [part[:size].view(tensor.dtype).view(shape) for part, size, shape in parts]

    def all_reduce(self, tensor: Tensor, *, largest: bool = False) -> Tensor:
        """Sum over the ranks, or take the maximum; the given tensor may be overwritten."""
        if self.size == 1:
            return tensor
        self.meet()
        tensor = tensor.contiguous()
        options = c10d.AllreduceOptions()
        options.reduceOp = c10d.ReduceOp(dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        options.timeout = timedelta(seconds=self.timeout_s)
        with span(MESSAGE + "reduce"):
            self.wait([self._start_of_all(partial(self.comm.group.allreduce, [tensor], options), [tensor])])
        return tensor

    def wait(self, works: Sequence[Waiting]) -> None:
        """Wait for all messages, at most `timeout_s`."""
        deadline = time.monotonic() + self.timeout_s
        for place, each in enumerate(works):
            left = timedelta(seconds=max(1e-3, deadline - time.monotonic()))
            waits = partial(each.work.wait, left) if each.timed else partial(each.work.wait)
            self._guard(waits, each.rank, works[place + 1 :])
            if each.begun is not None:
                self.comm.watch.add(each.work.is_completed, self.late, self.timeout_s, begun=each.begun)

    def late(self) -> None:
        """Give up the call: the GPU has worked on a message of it for longer than its timeout."""
        if self.comm.error is None:  # given up already, with all that waits for the same rank
            self.comm.give_up(self.failure([], True, "the GPU waits for another rank"), ends_process=self.ends_process)

    def _start_of_all(self, start: partial[dist.Work], tensors: Sequence[Tensor]) -> Waiting:
        """Start a collective; where the watch is to look at it, record an event on the stream just before."""
        device = tensors[0].device
        captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()  # nothing may be waited for
        timed = self.comm.timed(device) and not captured
        watched = device.type == "cuda" and not timed and not captured
        begun = reached(device) if watched else None
        return Waiting(rank=None, work=self._start(start, tensors, None), timed=timed, begun=begun)

    def _start(self, start: partial[dist.Work], tensors: Sequence[Tensor], rank: int | None) -> dist.Work:
        assert all(each.is_contiguous() for each in tensors), "a message must lie in one piece"
        work = self._guard(start, rank, ())
        assert isinstance(work, dist.Work)
        return work

    def _guard(self, action: partial[dist.Work] | partial[bool], rank: int | None, left: Sequence[Waiting]) -> object:
        """Run an action of the backend; turn its error into one that names the rank."""
        if self.comm.error is not None:
            raise self.comm.error
        try:
            return action()
        except RuntimeError as error:  # gloo raises RuntimeError, NCCL its subclass DistBackendError
            reason = str(error).partition("\n")[0]
            late = "imed out" in reason or "imeout" in reason
            suspects = [rank, *(each.rank for each in left if late and each.silent())]
            raise self.failure([each for each in suspects if each is not None], late, reason) from error

    def post(self, reason: str, blamed: Sequence[int]) -> Note:
        """Leave a note for the ranks that wait for this one."""
        note = Note(self.number, self.digest, self.text, reason, blamed)
        self.comm.put("note", note, 0.3)
        return note

    def failure(self, suspects: Sequence[int], late: bool, reason: str, notes_s: float = 0.4) -> CollectiveError:
        """Build the error of this call, and mark the group as broken. Takes at most 0.3 s, and `notes_s` to hear the others.

        Args:
            suspects: ranks that did not answer, or whose connection closed; empty if the backend does not say.
            late: the time was up.
            reason: what the backend said.
        """
        here, said = self.post(reason, suspects), ""
        notes = {rank: Note(*told) for rank, told in self.comm.read("note", self.others, notes_s).items()}
        same = {rank: note for rank, note in (notes | {self.rank: here}).items() if note.number == self.number}
        usual = Counter(same[rank].digest for rank in sorted(same)).most_common(1)[0][0]
        if blamed := sorted(rank for rank, note in same.items() if note.digest != usual):
            calls = {rank: f"call {note.number}: {note.call}" for rank, note in same.items()}
            what = disagreement(blamed, "arguments", calls)
        else:
            blamed = self._blamed(suspects, late, notes)
            what = f"{name_ranks(blamed) if blamed else 'a rank'} "
            what += f"did not answer within {self.timeout_s:g} s" if late else f"closed the connection ({reason})"
            told = {rank: note for rank, note in notes.items() if rank in blamed}
            said = "".join(f"; rank {rank} said: in call {n.number} ({n.call}): {n.reason}" for rank, n in told.items())
        self.comm.hang_up()
        self.comm.broken = f"call {self.number}: {what}"
        head = f"tree attention, call {self.number} of rank {self.rank} of {self.size} ({self.text})"
        return CollectiveError(f"{head}: {what}{said}; end the run or make a new process group", blamed)

    def _blamed(self, suspects: Sequence[int], late: bool, notes: Mapping[int, Note]) -> list[int]:
        """Return the ranks to blame: late ones, else those without a note, else those that the notes blame."""
        if suspects and late:
            return sorted(suspects)
        silent = sorted(rank for rank in suspects or self.others if rank not in notes)
        by_others = {rank for note in notes.values() for rank in note.blamed if rank != self.rank}
        return silent or sorted(by_others) or sorted(suspects)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


UNKNOWN = -1
"""Stands for the shape of the keys on a rank without keys; it is less than any."""
NOTES_S: Final = 0.7
"""A rank that is in a kind of call that it knows does not come to the store: NCCL tells it, half a second after the timeout."""
_MUST_AGREE = (
    ("digest", "arguments"),
    ("number", "calls before this one"),
    ("num_kv_heads", "key heads"),
    ("head_dim_v", "head_dim_v"),
    ("queries", "queries, which are replicated: the same values on every rank"),
)


class Agreement:
    """An exchange of tokens between the ranks of a call, which shows that all are in the same call.

    Args:
        call: on one group.
        digest: of the arguments that must be equal.
        q: the queries, where every rank must have the same; else None.
        keys: `(num_kv_heads, head_dim_v)` of this rank; UNKNOWN without keys.
        device: of the tensors.
    """

    def __init__(self, call: CollectiveCall, digest: int, q: Tensor | None, keys: tuple[int, int], device: torch.device) -> None:
        self._call, self._keys, self._kind = call, keys, (digest, *keys)
        self._tokens: Exchange | None = None
        if call.size > 1 and (device.type == "cpu" or self._kind not in call.comm.agreed):
            queries = UNKNOWN if q is None else fingerprint(q)
            self._token = Token(call.number, digest, queries, *keys)
            if device.type == "cpu":  # under one tag for all calls, so that ranks in different ones can notice it
                own = torch.tensor(self._token)
                self._tokens = call.exchange([own] * call.size, [tuple(own.shape)] * call.size, tag=1, kind="agreement")

    def wait(self) -> tuple[int, int]:
        """Wait for the tokens; return `(num_kv_heads, head_dim_v)` of the ranks that have keys, UNKNOWN if none has.

        Raises:
            CollectiveError: a rank did not come, or is in another call.
        """
        comm = self._call.comm
        if comm.size == 1:
            return self._keys
        if self._tokens is None and self._kind in comm.agreed:
            return comm.agreed[self._kind]
        tokens = self._collected()
        for name, what in _MUST_AGREE:
            values = [getattr(token, name) for token in tokens]
            known = [value for value in values if value != UNKNOWN]
            if len(set(known)) > 1:
                usual = Counter(known).most_common(1)[0][0]
                odd = [rank for rank, value in enumerate(values) if value not in (usual, UNKNOWN)]
                raise self._refusal(tokens, odd, what, values if name not in ("digest", "queries") else None)
        found = max(token.num_kv_heads for token in tokens), max(token.head_dim_v for token in tokens)
        if self._tokens is None:
            comm.agreed[self._kind] = found
        return found

    def _collected(self) -> list[Token]:
        if self._tokens is not None:
            return [Token(*each.tolist()) for each in self._tokens.wait()]
        values = self._shared(f"agree/{self._call.number}", self._token)
        if missing := [rank for rank in range(self._call.size) if rank not in values]:
            raise self._call.failure(missing, True, "no answer in the store", NOTES_S)
        return [Token(*each) for each in values.values()]

    def _shared(self, key: str, value: object) -> dict[int, Any]:
        """Leave a value in the store and collect those of all ranks; ranks that are missing when the time is up are absent."""
        comm, timeout_s = self._call.comm, self._call.timeout_s
        comm.put(key, value, timeout_s)
        return comm.read(key, range(comm.size), timeout_s)

    def _refusal(self, tokens: Sequence[Token], odd: Sequence[int], what: str, values: Sequence[int] | None) -> CollectiveError:
        """Build the error for ranks that disagree, with each rank's call; all ranks raise it, because all saw the same tokens."""
        call = self._call
        said = self._shared(f"text/{zlib.crc32(repr(tokens).encode())}", f"call {call.number}: {call.text}")
        calls = {rank: said.get(rank, "(no answer)") for rank in range(call.size)}
        given = "" if values is None else f" ({', '.join(map(str, values))} by rank)"
        found = disagreement(odd, what + given, calls)
        call.post(found.partition(": ")[0], odd)
        return CollectiveError(f"tree attention: {found}", odd)


def fingerprint(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's bits, row by row: other values, or another order, give another number.

    On a GPU the tensor is copied to the host, once for each kind of call. A CRC takes less time than a sum of the bits.
    """
    values = tensor.detach().cpu().contiguous().view(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().data)
