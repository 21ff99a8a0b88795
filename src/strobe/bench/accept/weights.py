"""Checks of weights as they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from strobe.bench.accept.verdict import judged
from strobe.core.printable import first_of
from strobe.engine.model import Model
from strobe.perf.records.record import Check

_NAMED = 3


def check_weights(model: Model) -> Iterator[Check]:
    """Count the tensors of transformer and autoencoder that hold a number that is not finite, and the matrices of zeros."""
    tensors = [
        (f"{part} {name}", tensor)
        for part, module in (("transformer", model.dit), ("autoencoder", model.vae))
        for name, tensor in module.named_parameters()
    ]
    broken = [name for name, tensor in tensors if not _finite(tensor)]
    empty = [name for name, tensor in tensors if tensor.dim() > 1 and not tensor.any()]
    yield judged(
        "weights",
        "tensors_not_finite",
        len(broken),
        f"tensors of {len(tensors)} that hold NaN or infinity",
        "fact: a product with NaN is NaN",
        bounds=(None, 0),
        detail=first_of(broken, _NAMED),
    )
    yield judged(
        "weights",
        "matrices_of_zeros",
        len(empty),
        "matrices and convolutions all of whose numbers are 0",
        "fact: the gradient of a trained matrix moved it; only an untrained output or the B of an untrained LoRA is all 0",
        bounds=(None, 0),
        detail=first_of(empty, _NAMED),
    )


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.sum(dtype=tensor.dtype).isfinite()) or bool(tensor.isfinite().all())
