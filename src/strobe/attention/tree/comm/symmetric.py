"""One-shot gather through symmetric memory: every rank writes its message into memory that its peers read over NVLink.

Plain reads of peers' memory only. NVLink multicast can put the devices of a host out of service, so this refuses to run in a
process that would set it up: `TORCH_SYMM_MEM_DISABLE_MULTICAST=1` must be in the environment.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from strobe.attention.tree.comm.group import CollectiveCall, Comm
from strobe.core.errors import ImplUnavailableError
from strobe.core.settings import read_settings


class _Workspace:
    """Symmetric memory of one message a rank, with two barriers for each gather.

    The barrier before the write waits for the readers of the last call, the one after it for all writers. Both are part of a
    captured graph, so every replay is as safe as the first call.
    """

    def __init__(self, comm: Comm, num_bytes: int, device: torch.device) -> None:
        import torch.distributed._symmetric_memory as symmetric_memory

        self.num_bytes = num_bytes
        self._memory = symmetric_memory.empty(num_bytes, dtype=torch.uint8, device=device)
        self._handle = symmetric_memory.rendezvous(self._memory, comm.group.group_name)

    def gather(self, message: Tensor, num_ranks: int, timeout_s: float) -> list[Tensor]:
        """Write the message, then view every rank's. A barrier over the timeout ends the process, in a captured graph too."""
        self._handle.barrier(channel=0, timeout_ms=round(timeout_s * 1e3))
        self._memory[: message.numel()] = message
        self._handle.barrier(channel=1, timeout_ms=round(timeout_s * 1e3))
        return [self._handle.get_buffer(rank, (message.numel(),), torch.uint8) for rank in range(num_ranks)]


_WORKSPACES: WeakKeyDictionary[Comm, _Workspace] = WeakKeyDictionary()


def refuses(device_type: str) -> str | None:
    """Return the reason for which symmetric memory cannot be used in this process, or None."""
    if device_type != "cuda":
        return "symmetric memory needs CUDA devices"
    if not read_settings().multicast_disabled:
        return "set TORCH_SYMM_MEM_DISABLE_MULTICAST=1: torch would set up NVLink multicast"
    return None


def gather_symmetric(call: CollectiveCall, tensor: Tensor) -> list[Tensor]:
    """Gather every rank's tensor of one shape, in rank order, as views of the peers' memory, valid until the next call.

    Raises:
        ImplUnavailableError: no CUDA device, or multicast is not switched off.
    """
    reason = refuses(tensor.device.type)
    if reason is not None:
        raise ImplUnavailableError("symmetric", reason, ["allgather"])
    call.meet()
    message = tensor.reshape(-1).view(torch.uint8)
    workspace = _WORKSPACES.get(call.comm)
    if workspace is None or workspace.num_bytes < message.numel():
        num_bytes = 1 << max(16, (message.numel() - 1).bit_length())  # every rank grows at the same call: all messages are equal
        workspace = _WORKSPACES[call.comm] = _Workspace(call.comm, num_bytes, tensor.device)
    return [each.view(tensor.dtype).view(tensor.shape) for each in workspace.gather(message, call.size, call.timeout_s)]
