"""Cache rows of the tokens of a pass, on the device, in tensors that keep their addresses."""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.cache.policy import RingPolicy
from strobe.core.errors import ShapeError

Signature = tuple[int, ...]
"""Every Python value that a pass depends on besides its positions, and the identity of the cache whose tensors it uses."""


class TokenRows:
    """Cache rows of the tokens of a pass. A tensor per shape of pass is made once and filled again for every pass.

    Args:
        tokens_per_frame: rows of a slot.
        device: where the rows live.
        tiled: slots behind the sink begin at such a row and have so many rows each, in which a frame's tokens lie as this tensor
            `[N]` says.
    """

    def __init__(self, tokens_per_frame: int, device: torch.device, tiled: tuple[int, int, Tensor] | None = None) -> None:
        self._tokens, self._device = tokens_per_frame, device
        self._tiled = tiled
        self._kept: dict[tuple[int, int], Tensor] = {}

    def fill(self, policy: RingPolicy, first: int, num_frames: int, skip: int = 0, *, staged: bool = False) -> Tensor:
        """Fill in the rows of the frames from `first` on, counted from the sink's first: int64 `[F * N]`; -1 for `skip` frames.

        `policy` says which slot a frame has. `staged` frames lie one after the other behind those of the sink that come before
        them. Worked out on the device: plain ints go in, nothing is copied or waited for.
        """
        rows, tokens, sink = self._kept.get((num_frames, skip)), self._tokens, policy.sink
        if rows is None:
            with torch.inference_mode(False):  # later passes fill it again, in whatever mode
                rows = torch.full((num_frames * tokens,), -1, device=self._device)
            self._kept[num_frames, skip] = rows
        if staged:
            start = min(first, sink) * tokens
            return torch.arange(start, start + num_frames * tokens, out=rows)
        for source in range(skip, num_frames):
            slot, frame = policy.slot(first + source), rows[source * tokens : (source + 1) * tokens]
            if self._tiled is None or slot < sink:
                torch.arange(slot * tokens, (slot + 1) * tokens, out=frame)
            else:
                start, size, order = self._tiled
                torch.add(order, start + (slot - sink) * size, out=frame)
        return rows


def store(buffer: Tensor, rows: Tensor, new: Tensor, skipped: int) -> None:
    """Write the tokens of a pass, except the first `skipped`, into their rows of a buffer `[B, rows, H, D]`.

    Raises:
        ShapeError: they are not as many, or not as wide, as the cache expects.
    """
    expected = (buffer.shape[0], rows.shape[0], *buffer.shape[2:])
    if tuple(new.shape) != expected:
        raise ShapeError(f"keys and values of this pass have shape {tuple(new.shape)}; the cache expects {expected}")
    buffer.index_copy_(1, rows[skipped:], new[:, skipped:])


def graded(buffer: Tensor, rows: Tensor, new: Tensor, skipped: int) -> Tensor:
    """Return the buffer into which `new` was stored; if `new` wants gradients, a copy through which it gets them."""
    if not (torch.is_grad_enabled() and new.requires_grad):
        return buffer
    return buffer.index_copy(1, rows[skipped:].clone(), new[:, skipped:])
