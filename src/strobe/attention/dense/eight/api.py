"""The public API of dense attention in eight bits, and its implementations with what each refuses."""

from __future__ import annotations

from functools import lru_cache, partial
from importlib import import_module
from typing import Final

import torch
from torch import Tensor

from strobe.attention.around import ambient
from strobe.attention.dense.eight.impl import reference
from strobe.attention.dense.eight.impl.reference import QUERIES
from strobe.attention.impls import MISSING, Choice, Impl, hash_of, no_card_for, select, short
from strobe.attention.types import AttentionOutput, AttentionSpec, TensorMeta, check, expect
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.eightbit.rounded import BLOCK, Arriving, BlockBudget, RoundedKeys, RoundedQueries, hadamard, unfilled
from strobe.eightbit.rounding import RoundingImpl, round_queries, store


def _refuses_kernels(name: str, spec: AttentionSpec) -> str | None:
    if reason := no_card_for(spec, "eightbit", name) or MISSING[name]:
        return reason
    if spec.dtype not in (torch.bfloat16, torch.float16):
        return f"it takes bfloat16 and float16, not {short(spec.dtype)}"
    if spec.head_dim != 128:
        return f"it has head_dim 128, not {spec.head_dim}"
    if spec.num_heads != spec.num_kv_heads:
        return f"it needs as many key heads as query heads, not {spec.num_kv_heads} and {spec.num_heads}"
    if 0 in (spec.batch, spec.q_len, spec.kv_len):
        return "it takes at least one query and one key"
    if spec.softmax_scale <= 0:
        return f"it takes a positive softmax_scale, not {spec.softmax_scale}"
    return None


def _run_kernels(
    name: str, q: RoundedQueries, kept: RoundedKeys, spec: AttentionSpec, blocks: Tensor | None = None
) -> AttentionOutput:
    found: AttentionOutput = import_module(f"strobe.attention.dense.eight.impl.{name}").run(q, kept, spec, blocks)
    return found


def _kernels(name: str, *sources: str) -> Impl[AttentionSpec]:
    """Describe an impl whose gate stands for the sources that all share, and for its own."""
    refuses, run = partial(_refuses_kernels, name), partial(_run_kernels, name)
    return Impl(name=name, refuses=refuses, run=run, operator="eightbit", kernel=hash_of(*sources, *_SHARED))


_FOLDER: Final = "dense/eight"
_SHARED: Final = (
    f"{_FOLDER}/impl/triton.py",
    f"{_FOLDER}/impl/reference.py",
    "../eightbit/rounded.py",
    "../eightbit/impl/rounding_triton.py",
)
REFERENCE: Final[Impl[AttentionSpec]] = Impl(
    name="reference", refuses=lambda _: None, run=reference.run, operator="eightbit", slow=True
)
IMPLS: Final = (_kernels("gluon", f"{_FOLDER}/impl/gluon.py"), _kernels("triton"), REFERENCE)


def choose(spec: AttentionSpec, impl: str) -> Choice[AttentionSpec]:
    """Choose the named implementation, or the fastest; on a GPU never the reference, which is slower than plain attention.

    Raises:
        ConfigError: no implementation has that name.
        ImplUnavailableError: a gradient is asked for; none that is fit, or the named one cannot run this call.
    """
    if spec.needs_grad:
        reason = "attention in eight bits has no gradients; call it under torch.no_grad()"
        raise ImplUnavailableError("eightbit_attention", reason, ["dense_attention"], what="backward of")
    choice = select(spec, IMPLS, impl)
    if impl == "auto" and choice.impl is REFERENCE and spec.device.type != "cpu":
        reasons = "; ".join(f"{other}: {why}" for other, why in choice.passed_over)
        able = [each.name for each in IMPLS if each.refuses(spec) is None]
        raise ImplUnavailableError("auto", f"only the reference is left, which is slow ({reasons})", able)
    return choice


_choose = lru_cache(maxsize=256)(choose)


def eightbit_attention(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, impl: str = "auto", return_lse: bool = False
) -> AttentionOutput:
    """Round q, k and v to eight bits and attend: `out = softmax(q k^T * softmax_scale) v`, forward only.

    Queries and keys are int8, weights and values FP8. Keys that are attended to more than once are rounded once by `round_keys`.

    Args:
        q: `[B, S_q, H, D]`.
        k: `[B, S_kv, H_kv, D]`, `H` a multiple of `H_kv`.
        v: like k.
        softmax_scale: default `D ** -0.5`.
        impl: `auto`, `gluon`, `triton` or `reference`; a named impl runs or raises.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.

    Raises:
        ShapeError: q, k, v do not fit together.
        ImplUnavailableError: the named impl cannot run this call, or a gradient is asked for.
    """
    spec = check(q, k, v, softmax_scale, return_lse)
    choice = _choose(spec, impl)
    try:
        return _run_on(q, _round(k, v, 1.0, choice.impl), choice.impl, spec)
    finally:
        if not torch.compiler.is_dynamo_compiling() and torch._C._len_torch_dispatch_stack():
            hadamard.cache_clear()  # a matrix of fake numbers is not to be kept


def round_keys(k: Tensor, v: Tensor, *, room: float = 1.0, impl: str = "auto") -> RoundedKeys:
    """Round keys and values to eight bits, to attend to them many times; means and scales are measured on them.

    Args:
        k: `[B, S_kv, H_kv, D]`.
        v: like k.
        room: how many times larger than these those may be that `store_rounded` brings later.
        impl: as of `eightbit_attention`; all of them round to the same numbers.

    Raises:
        ShapeError: k and v do not fit together.
        ConfigError: `room` is not positive.
        ImplUnavailableError: the named impl cannot run on these tensors, or a gradient is asked for.
    """
    if not room > 0:
        raise ConfigError(f"room: got {room}, expected a positive number, such as 1.25")
    return _round(k, v, float(room), _choose(check(k, k, v, None, False), impl).impl)


def store_rounded(kept: RoundedKeys, k: Tensor, v: Tensor, start: int, *, impl: str = "auto") -> None:
    """Round keys and values into rows `start` and on of `kept`, in place, with the means and scales that it has.

    What is beyond its scales takes the largest number of the format.

    Args:
        kept: of `round_keys`.
        k: `[B, T, H_kv, D]`, T at least 1.
        v: like k.
        start: the first row that is replaced.
        impl: as of `eightbit_attention`.

    Raises:
        ShapeError: they do not fit into `kept`.
        ImplUnavailableError: the named impl cannot run on these tensors, or a gradient is asked for.
    """
    spec = check(k, k, v, None, False)
    batch, heads, rows, dim = _shape(kept)
    if (spec.batch, spec.num_kv_heads, spec.head_dim) != (batch, heads, dim) or spec.device != kept.keys.device:
        raise ShapeError(
            f"k: got shape {tuple(k.shape)} on {k.device}, expected [{batch}, T, {heads}, {dim}] on {kept.keys.device} like kept"
        )
    if not 0 <= start < start + spec.kv_len <= rows:
        raise ShapeError(f"start: got rows {start} to {start + spec.kv_len}, expected at least one, within 0 to {rows}")
    with ambient(k):
        where = torch.arange(start, start + spec.kv_len, device=k.device)
        store(kept, Arriving(k=k, v=v, rows=where, run=spec.kv_len), impl=_rounding(_choose(spec, impl).impl))


def attend_rounded(
    q: Tensor | RoundedQueries,
    kept: RoundedKeys,
    *,
    blocks: Tensor | None = None,
    softmax_scale: float | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> AttentionOutput:
    """Round q to eight bits and attend to keys and values that are rounded already, as `eightbit_attention` does.

    With `blocks` each tile of 128 queries attends to K blocks of 128 keys alone, of which the last may be shorter.

    Args:
        q: `[B, S_q, H, D]`; or queries that were rounded for `kept`, which have a softmax_scale.
        kept: of `round_keys`.
        blocks: int32 `[B, H, ceil(S_q / 128), K]`, K at least 1: numbers of blocks of keys, ascending, each once. Whether
            they are is not checked, for that would wait for the device. None: all.
        softmax_scale: default `D ** -0.5`.
        impl: as of `eightbit_attention`; whichever rounded the keys.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`.

    Raises:
        ShapeError: q or `blocks` does not fit `kept`.
        ConfigError: the lse of queries that were rounded without what it needs.
        ImplUnavailableError: the named impl cannot run this call, or a gradient is asked for.
    """
    batch, heads, rows, dim = _shape(kept)
    if isinstance(q, RoundedQueries):
        if return_lse and q.taken is None:
            raise ConfigError("return_lse: these queries were rounded without `taken`, which the lse needs; round them with it")
        shape, softmax_scale = (batch, q.values.shape[2], q.values.shape[1], dim), q.softmax_scale
        given = TensorMeta(shape=shape, dtype=q.dtype, device=kept.keys.device, requires_grad=False)
    else:
        given = TensorMeta.of("q", q)
    keys = TensorMeta(shape=(batch, rows, heads, dim), dtype=given.dtype, device=kept.keys.device, requires_grad=False)
    spec = check(given, keys, keys, softmax_scale, return_lse)
    if blocks is not None:
        _check_blocks(blocks, spec)
        blocks = blocks.contiguous()
    return _run_on(q, kept, _choose(spec, impl).impl, spec, blocks)


def _check_blocks(blocks: Tensor, spec: AttentionSpec) -> None:
    expect("blocks", blocks, Tensor, "an int32 tensor [B, H, ceil(S_q / 128), K]")
    wanted, most = [spec.batch, spec.num_heads, -(-spec.q_len // QUERIES)], -(-spec.kv_len // BLOCK)
    fits = blocks.dim() == 4 and list(blocks.shape[:3]) == wanted and 0 < blocks.shape[3] <= most
    if not fits or blocks.dtype != torch.int32 or blocks.device != spec.device:
        raise ShapeError(
            f"blocks: got {short(blocks.dtype)} {list(blocks.shape)} on {blocks.device}, expected int32 "
            f"[{', '.join(map(str, wanted))}, K] on {spec.device}, K from 1 to {most}"
        )


def best_blocks(q: RoundedQueries, kept: RoundedKeys, budget: BlockBudget, *, impl: RoundingImpl = "auto") -> Tensor:
    """Select for each tile of 128 queries the blocks of 128 keys of largest score: int32 `[B, H, N_q, number]`, ascending.

    The score is the product of the mean query of the tile and the mean key of the block, as they are rounded: the vector per head
    that all keys lost adds the same to every score of a row. Ties go to the lowest number.

    Args:
        q: rounded for `kept`, with as many heads.
        budget: of so many keys.
        impl: "triton" runs on a GPU; "auto" takes it there.

    Source: the selection of Video Sparse Attention, arXiv 2505.13389.
    """
    fused = impl == "triton" or (impl == "auto" and kept.keys.is_cuda)
    home = import_module("strobe.attention.dense.eight.impl.triton") if fused else reference
    with ambient(kept.keys):
        found: Tensor = home.best_blocks(q, kept, budget)
    return found


def explain_eightbit(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, impl: str = "auto", return_lse: bool = False
) -> Choice[AttentionSpec]:
    """Say which implementation `eightbit_attention` would run for these tensors, and why each other was passed over."""
    return _choose(check(q, k, v, softmax_scale, return_lse), impl)


def _shape(kept: RoundedKeys) -> tuple[int, ...]:
    """Return batch, heads, rows and channels."""
    expect("kept", kept, RoundedKeys, "the result of round_keys")
    return tuple(kept.keys.shape)


def _round(k: Tensor, v: Tensor, room: float, impl: Impl[AttentionSpec]) -> RoundedKeys:
    with torch.no_grad(), ambient(k):
        kept = unfilled(k, v, room)
        if k.numel():
            count = k.shape[1]
            store(kept, Arriving(k=k, v=v, rows=torch.arange(count, device=k.device), run=count), impl=_rounding(impl))
    return kept


def _rounding(impl: Impl[AttentionSpec]) -> RoundingImpl:
    """Return what an implementation rounds with: those with kernels share one."""
    return "reference" if impl is REFERENCE else "triton"


def _run_on(
    q: Tensor | RoundedQueries, kept: RoundedKeys, impl: Impl[AttentionSpec], spec: AttentionSpec, blocks: Tensor | None = None
) -> AttentionOutput:
    with torch.no_grad(), ambient(kept.keys):
        if isinstance(q, Tensor):
            q = round_queries(q, kept, spec.softmax_scale, with_taken=spec.return_lse, impl=_rounding(impl))
        return impl.run(q, kept, spec, blocks)
