"""The processes that share one session."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

import msgspec
import torch
import torch.distributed as dist

from strobe.attention.tree.comm import UNKNOWN, Agreement, CollectiveCall, comm_of, reached
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError
from strobe.core.settings import read_settings
from strobe.engine.graphs import Runner
from strobe.engine.prompts import Change

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LOADING: Final = 10
"""Timeouts that a rank may take longer than another to load a model."""
CPU: Final = torch.device("cpu")


class DeviceGroup:
    """The processes that share a session, one device each. All make it and then call the same methods in the same order.

    Rank 0 leads: its prompts are followed by all, and it alone decodes.

    Args:
        group: the processes; None: all. On GPUs it needs gloo too (`init_process_group("cpu:gloo,cuda:nccl")`).
        device: of this process.
        ulysses: ranks that share the heads; None: as many as can.
        timeout_s: how long to wait for another rank at any one point.

    Raises:
        ConfigError: `torch.distributed` is not initialised, this process is not in the group, or the group sends no CPU tensors.
        CollectiveError: not every rank came in time.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        device: str | torch.device = "cpu",
        ulysses: int | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s: got {timeout_s}, expected more than 0 seconds")
        self.device = resolve_device(device)
        self.ulysses = ulysses
        self.timeout_s = timeout_s
        self._comm = comm_of(group)
        self._joined = False
        self._runners: WeakSet[Runner] = WeakSet()
        if self.size > 1 and self._comm.backend("cpu") == "none":
            raise ConfigError('the group sends no CPU tensors; make it by init_process_group("cpu:gloo,cuda:nccl")')
        self.agree("meeting")

    @classmethod
    def join(cls, device: str = "auto", *, ulysses: int | None = None, timeout_s: float = 30.0) -> Self:
        """Meet the other processes that `torchrun` has started; `close` leaves them.

        Args:
            device: "auto", "cpu" or "cuda": the GPU with this process's number on its machine.

        Raises:
            ConfigError: not started by torchrun, a GPU by number, or more processes than GPUs.
            CollectiveError: not every rank came in time.
        """
        settings = read_settings()
        if not settings.torchrun:
            raise ConfigError("not started by torchrun; start it by: torchrun --nproc-per-node N -m strobe ...")
        where = own_device(device, dist.get_node_local_rank(), settings.local_world_size)
        if where.type == "cuda":
            torch.cuda.set_device(where)
        joined = not dist.is_initialized()
        if joined:
            on_gpu = where.type == "cuda"
            patience = 2 if on_gpu else 1  # NCCL ends the process at its timeout: let `settle` be first, if it is reached
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=patience * timeout_s))
        group = cls(device=where, ulysses=ulysses, timeout_s=timeout_s)
        group._joined = joined
        return group

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self._comm.size

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decodes and whose prompts count."""
        return self.rank == 0

    def begin(self, what: str, *, patience: int = 1) -> CollectiveCall:
        """Start the next call that all ranks make together, which wait `patience` timeouts for each other.

        Raises:
            CollectiveError: an earlier one has failed.
        """
        # `settle` comes before any result is handed out
        return self._comm.begin(what, 0, patience * self.timeout_s, ends_process=False)

    def agree(self, what: str, *, patience: int = 1) -> CollectiveCall:
        """Check that all ranks are here and about to do the same.

        Args:
            what: it, in words.
            patience: timeouts to wait.

        Raises:
            CollectiveError: a rank is about to do something else, is gone, or does not come; names it.
        """
        call = self.begin(what, patience=patience)
        Agreement(call, zlib.crc32(what.encode()), None, (UNKNOWN, UNKNOWN), CPU).wait()
        return call

    def follow(self, what: str, change: Change | None) -> Change | None:
        """Agree on the next step, and return rank 0's prompts for it; those of other ranks are ignored."""
        call = self.agree(what)
        said = msgspec.json.encode(change) if self.leads and change is not None else b""
        length = self._from_leader(call, torch.tensor([len(said)]), 1)
        if not length.item():
            return None
        text = self._from_leader(call, torch.tensor(list(said), dtype=torch.uint8), int(length.item()))
        if self.leads:
            return change
        return msgspec.json.decode(bytes(text.tolist()), type=Change)

    @contextmanager
    def watched(self, call: CollectiveCall) -> Iterator[None]:
        """Give the work that the block queues on this GPU the timeout of its call, from when the GPU reaches it.

        Messages of a recorded pass have no timeout of their own. Does nothing on a CPU.

        Raises:
            CollectiveError: something was given up before; the block does not begin.
        """
        if self.device.type != "cuda":
            yield
            return
        if self._comm.error is not None:
            raise self._comm.error
        begun = reached(self.device)
        yield
        self._comm.watch.add(reached(self.device), call.late, call.timeout_s, begun=begun)

    def settle(self) -> None:
        """Wait for the work queued on this GPU; all of it has a deadline, and late work is given up. Does nothing on a CPU.

        Raises:
            CollectiveError: something was given up.
        """
        if self.device.type != "cuda":
            return
        done = reached(self.device)
        while self._comm.error is None and not done():
            time.sleep(0.0002)
        if self._comm.error is not None:
            raise self._comm.error

    def keep(self, runner: Runner) -> None:
        """Remember a runner with recorded messages of these processes: NCCL can leave them only after its graphs are gone."""
        self._runners.add(runner)

    def close(self) -> None:
        """Leave the processes that `join` met, and forget recorded passes; does nothing for a group that was given.

        Closing twice does nothing.
        """
        if self._joined and not self._comm.broken:  # one that has failed could wait for ever; it ends with the process
            for runner in self._runners:
                runner.reset()
            dist.destroy_process_group()
        self._joined = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _from_leader(self, call: CollectiveCall, own: torch.Tensor, length: int) -> torch.Tensor:
        """Return rank 0's tensor of `length` elements on every rank."""
        empty = own[:0]
        sends = [own if self.leads else empty] * self.size
        return call.exchange(sends, [(length,), *[(0,)] * (self.size - 1)]).wait()[0]


def own_device(name: str, local_rank: int, local_size: int) -> torch.device:
    """Return the device of one of the processes of a machine.

    Raises:
        ConfigError: a GPU by number, or more processes than GPUs; the same on every rank of the machine.
    """
    if name.startswith("cuda:"):
        raise ConfigError(f"device {name!r} for {local_size} processes: each has a GPU of its own; give cuda, cpu or auto")
    where = resolve_device(name)
    if where.type != "cuda":
        return where
    if local_size > torch.cuda.device_count():
        raise ConfigError(
            f"{local_size} processes on {torch.cuda.device_count()} GPU(s) of this machine; use "
            f"torchrun --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    return torch.device("cuda", local_rank)
