"""Attention of other libraries as contestants; each is imported only when asked for.

Facts about their interfaces: fastvideo-kernel 0.3.2, flash-attn-4 4.0.0b36, nvidia-cudnn-frontend 1.32.0.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from strobe.bench.attention.contestant import BoundContestant, Call, CellTensors, Found, Kind, parsed
from strobe.core.device import Card, card_of
from strobe.core.errors import ImplUnavailableError


class Peer(NamedTuple):
    """An attention function of another library.

    Args:
        capabilities: compute capabilities that its kernels are built for, by their first number.
        refuses: why it cannot compute this cell, or None if it can; imports nothing.
        build: binds it to the tensors of a cell, given the imported module.
    """

    package: str
    module: str
    capabilities: tuple[int, ...]
    refuses: Callable[[CellTensors], str | None]
    build: Callable[[str, CellTensors, Any], BoundContestant]
    dense: bool = False

    def installed(self) -> bool:
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None

    def no_card(self, card: Card) -> str | None:
        if card.capability[0] in self.capabilities:
            return None
        return f"it runs on compute capability {', '.join(f'{major}.x' for major in self.capabilities)}, not on {card}"


def build(name: str, inputs: CellTensors) -> BoundContestant:
    """Import a peer and bind it to the tensors of a cell.

    Raises:
        ImplUnavailableError: it is not installed, or cannot compute this cell.
    """
    peer = PEERS[parsed(name)[1]]
    if not peer.installed():
        raise ImplUnavailableError(name, f"{peer.package} is not installed")
    if inputs.device.type != "cuda":
        raise ImplUnavailableError(name, f"it runs on a GPU, the tensors are on {inputs.device}")
    reason = peer.no_card(card_of(inputs.device)) or peer.refuses(inputs)
    if reason is not None:
        raise ImplUnavailableError(name, reason)
    found = peer.build(name, inputs, importlib.import_module(peer.module))
    remark = f", {found.impl}" if found.impl != name else ""
    try:
        version = importlib.metadata.version(peer.package)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return replace(found, impl=f"{peer.package} {version}{remark}")


def _contestant(name: str, kind: Kind, inputs: CellTensors, call: Callable[..., Found]) -> BoundContestant:
    leaves = tuple(tensor.transpose(1, 2).contiguous() for tensor in inputs.tiled)  # `[B, H, rows, D]`; the copy is not timed
    return BoundContestant(name=name, kind=kind, impl=name, leaves=leaves, call=call, heads_first=True, tiled=True)


def _half(inputs: CellTensors, *dtypes: torch.dtype) -> str | None:
    allowed = dtypes or (torch.bfloat16, torch.float16)
    if inputs.q.dtype not in allowed:
        words = " and ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        return f"it computes {words}, not {str(inputs.q.dtype).removeprefix('torch.')}"
    return None


def _refuses_fastvideo(inputs: CellTensors) -> str | None:
    if inputs.tiles.block != 64:
        return f"its fine stage on this GPU has blocks of 64, not {inputs.tiles.block}"
    return _half(inputs, torch.bfloat16)


def _fastvideo_kernels() -> str:
    """Name the kernels that FastVideo runs: it silently falls back to Triton if its compiled ones do not load."""
    try:
        importlib.import_module("fastvideo_kernel._C.fastvideo_kernel_ops")
    except ImportError:
        return "Triton kernels"
    return "compiled kernels"


def _fastvideo_fine(name: str, inputs: CellTensors, module: Any) -> BoundContestant:
    selection, sizes = inputs.selection, inputs.tiles.sizes(inputs.device)

    def call(*leaves: Tensor, lse: bool) -> Found:
        return Found(out=module.block_sparse_attn_from_indices(*leaves, selection.indices, selection.counts, sizes)[0])

    return replace(_contestant(name, "fine", inputs, call), impl=_fastvideo_kernels())


def _fastvideo_whole(name: str, inputs: CellTensors, module: Any) -> BoundContestant:
    sizes, topk = inputs.tiles.sizes(inputs.device), inputs.cell.selected(inputs.tiles)

    def call(*leaves: Tensor, lse: bool) -> Found:
        return Found(out=module.video_sparse_attn(*leaves, sizes, sizes, topk, block_size=(4, 4, 4)))

    whole = _contestant(name, "tiled", inputs, call)
    return replace(whole, impl=_fastvideo_kernels(), coarse=True, close=True)


def _refuses_cudnn(inputs: CellTensors) -> str | None:
    if inputs.tiles.block not in (64, 128):
        return f"it has blocks of 64 and 128, not {inputs.tiles.block}"
    if inputs.cell.backward and inputs.q.shape[-1] != 128:
        return f"its backward pass has head_dim 128, not {inputs.q.shape[-1]}"
    return _half(inputs, torch.bfloat16) if inputs.cell.backward else _half(inputs)


def _cudnn(name: str, inputs: CellTensors, module: Any) -> BoundContestant:
    selection, block = inputs.selection, inputs.tiles.block
    count = selection.indices.shape[-1]
    sizes = None if inputs.tiles.whole else inputs.tiles.sizes(inputs.device)
    options = {"block_sizes": sizes, "sparse_block_size": block}

    def call(*leaves: Tensor, lse: bool) -> Found:
        found = module.BSA.block_sparse_attention_forward(*leaves, selection.indices, count, **options)
        return Found(out=found["o_tensor"], lse=found["lse_tensor"])

    def gradient(found: Found, upstream: Tensor) -> Callable[[], tuple[Tensor, ...]]:
        def run() -> tuple[Tensor, ...]:
            given = (upstream, *own.leaves, found.out, found.lse)
            grads = module.BSA.block_sparse_attention_backward(*given, selection.indices, count, **options)
            return grads["dq_tensor"], grads["dk_tensor"], grads["dv_tensor"]

        return run

    own = _contestant(name, "fine", inputs, call)
    return replace(own, gradient=gradient)


def _refuses_fa4_sparse(inputs: CellTensors) -> str | None:
    if not inputs.tiles.whole:
        return (
            "tiles at the edge of the grid are not whole; its lists of full blocks know none such, and a mask function is not raw"
        )
    if inputs.cell.backward:
        return "its backward pass needs lists by key block, which it does not build"
    return _half(inputs)


def _fa4_call(module: Any, **options: Any) -> Call:
    def call(*leaves: Tensor, lse: bool) -> Found:
        found = module.flash_attn_func(*leaves, **options, return_lse=lse)
        out, *rest = found if isinstance(found, tuple) else (found,)
        return Found(out=out, lse=rest[0] if lse else None)

    return call


def _fa4_dense(name: str, inputs: CellTensors, module: Any) -> BoundContestant:
    leaves = (inputs.q, inputs.k, inputs.v)
    return BoundContestant(name=name, kind="dense", impl=name, leaves=leaves, call=_fa4_call(module))


def _fa4_sparse(name: str, inputs: CellTensors, module: Any) -> BoundContestant:
    lists = importlib.import_module("flash_attn.cute.block_sparsity").BlockSparseTensorsTorch
    selection, block = inputs.selection, inputs.tiles.block
    none = torch.zeros_like(selection.counts)  # blocks that a mask would cut
    call = _fa4_call(
        module,
        block_sparse_tensors=lists(none, selection.indices, selection.counts, selection.indices, block_size=(block, block)),
    )
    return BoundContestant(name=name, kind="fine", impl=name, leaves=inputs.tiled, call=call, tiled=True)


_SINCE_AMPERE: Final = (8, 9, 10, 11, 12)
PEERS: Final = {
    "fastvideo-fine": Peer("fastvideo-kernel", "fastvideo_kernel", _SINCE_AMPERE, _refuses_fastvideo, _fastvideo_fine),
    "fastvideo": Peer("fastvideo-kernel", "fastvideo_kernel", _SINCE_AMPERE, _refuses_fastvideo, _fastvideo_whole),
    "cudnn-bsa": Peer("nvidia-cudnn-frontend", "cudnn", (9,), _refuses_cudnn, _cudnn),
    "fa4-dense": Peer("flash-attn-4", "flash_attn.cute", _SINCE_AMPERE, lambda inputs: _half(inputs), _fa4_dense, dense=True),
    "fa4-sparse": Peer("flash-attn-4", "flash_attn.cute", (9, 10, 11), _refuses_fa4_sparse, _fa4_sparse),
}
"""Peers by the name that follows `peer:`."""
