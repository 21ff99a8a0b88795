"""This package's operators as contestants."""

from __future__ import annotations

from torch import Tensor

from strobe.attention.dense.api import IMPLS as DENSE
from strobe.attention.dense.api import dense_attention, explain_dense
from strobe.attention.explain import explain
from strobe.attention.impls import Choice
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impls import IMPLS as SPARSE
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.video import video_sparse_attention
from strobe.attention.types import AttentionSpec
from strobe.bench import gate
from strobe.bench.attention.contestant import Contestant, Found, Kind, group_and_impl
from strobe.bench.attention.inputs import Inputs
from strobe.core.errors import ImplUnavailableError

SLOW = "reference"
"""Name of the reference impl, which materialises all scores; it is measured only if named."""


KINDS = ("dense", "fine", "tiled", "raster")
"""Dense attention, the fine stage of a given selection, and the whole operator on tokens in tile and in raster order."""


def names() -> tuple[str, ...]:
    """Return every implementation as `kind:impl`."""
    return tuple(f"{kind}:{impl.name}" for kind in KINDS for impl in (DENSE if kind == "dense" else SPARSE))


def build(name: str, inputs: Inputs) -> Contestant:
    """Bind an implementation to the tensors of a cell.

    Raises:
        ImplUnavailableError: it cannot run this cell here, or its gate has not been run on this card: no number without it.
    """
    group, impl = group_and_impl(name)
    if group == "dense":
        return _dense(name, impl, inputs)
    return _fine(name, impl, inputs) if group == "fine" else _whole(name, impl, inputs, raster=group == "raster")


def _as_asked(inputs: Inputs, tensors: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v as the choice of an impl must see them: with gradients where those are measured."""
    q, k, v = (tensor.detach().requires_grad_(inputs.cell.backward) for tensor in tensors)
    return q, k, v


def _admit(choice: Choice[AttentionSpec] | Choice[SparseSpec], inputs: Inputs) -> None:
    held = gate.recorded(choice, inputs.device)
    if not held.passed:
        raise ImplUnavailableError(choice.impl.name, f"no number is taken of it here: {held.detail}")


def _words(choice: Choice[AttentionSpec] | Choice[SparseSpec]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in choice.passed_over)


def _dense(name: str, impl: str, inputs: Inputs) -> Contestant:
    leaves = (inputs.q, inputs.k, inputs.v)
    choice = explain_dense(*_as_asked(inputs, leaves), impl=impl)
    _admit(choice, inputs)

    def call(*leaves: Tensor, lse: bool) -> Found:
        found = dense_attention(*leaves, impl=impl, return_lse=lse)
        return Found(out=found.out, lse=found.lse)

    return Contestant(name=name, kind="dense", impl=choice.impl.name, leaves=leaves, call=call, reason=_words(choice))


def _fine(name: str, impl: str, inputs: Inputs) -> Contestant:
    choice = explain(*_as_asked(inputs, inputs.tiled), inputs.selection, impl=impl)
    _admit(choice, inputs)

    def call(*leaves: Tensor, lse: bool) -> Found:
        q, k, v = leaves
        found = block_sparse_attention(q, k, v, inputs.selection, impl=impl, return_lse=lse)
        return Found(out=found.out, lse=found.lse)

    return Contestant(
        name=name, kind="fine", impl=choice.impl.name, leaves=inputs.tiled, call=call, tiled=True, reason=_words(choice)
    )


def _whole(name: str, impl: str, inputs: Inputs, *, raster: bool) -> Contestant:
    kind: Kind = "raster" if raster else "tiled"
    choice = explain(*_as_asked(inputs, inputs.tiled), inputs.selection, impl=impl)
    _admit(choice, inputs)
    topk = inputs.cell.selected(inputs.tiles)
    order = "raster" if raster else "tiled"
    rope = (inputs.cos, inputs.sin) if raster else None

    def call(*leaves: Tensor, lse: bool) -> Found:
        q, k, v, *gate = leaves
        found = video_sparse_attention(
            q,
            k,
            v,
            grid=inputs.tiles.grid,
            tile=inputs.tiles.tile,
            topk=topk,
            gate=gate[0] if gate else None,
            coarse=True,
            rope=rope,
            q_layout=order,  # type: ignore[arg-type]
            kv_layout=order,  # type: ignore[arg-type]
            impl=impl,
            return_lse=lse,
        )
        return Found(out=found.out, lse=found.lse, selection=found.selection)

    leaves = (inputs.q, inputs.k, inputs.v, inputs.gate) if raster else inputs.tiled
    ran, reason = choice.impl.name, _words(choice)
    return Contestant(name=name, kind=kind, impl=ran, leaves=leaves, call=call, tiled=not raster, coarse=True, reason=reason)
