"""The public API of tree attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from strobe.attention.tree.comm import comm_of, reached
from strobe.attention.tree.placement import KVShards, Mask, split, whole_number, whole_numbers
from strobe.attention.tree.plan import Links, RankLengths, TreePlan, assumed_links, decide, measure
from strobe.attention.tree.redistribute import run
from strobe.attention.tree.request import Options, begin, check_words, choose, make_request, seconds_of
from strobe.attention.tree.spec import DTYPES, Placement, TreeSpec, check_choice, check_heads
from strobe.attention.types import AttentionOutput, outside_graphs
from strobe.core.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def tree_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    group: ProcessGroup | None = None,
    mesh: DeviceMesh | None = None,
    shards: KVShards | None = None,
    strategy: str = "auto",
    q_placement: Placement = "replicated",
    kv_placement: Placement = "sequence",
    out_placement: Placement = "replicated",
    q_lengths: Sequence[int] | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: int = 0,
    q_start: int | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    links: Links | None = None,
    timeout: float | timedelta = 30.0,
) -> AttentionOutput:
    """Attend from every query to keys that are spread across ranks. All ranks of the group call it together.

    With `out_r, L_r` attention over the keys of rank r and its lse: `L = log sum_r exp(L_r)`, `out = sum_r exp(L_r - L) out_r`.
    Differentiable in q, k and v; gradients are placed like the tensors, and those of replicated tensors are whole on every rank
    (each must bring the same gradient of a replicated result). All ranks ask for gradients, or none. A second backward raises.
    torch.compile breaks its graph at the call, which waits for other processes.

    Args:
        q: `[B, S_q, H, D]`, float64, float32, bfloat16 or float16; which rows and heads, `q_placement` says.
        k: this rank's `[B, S_r, H_kv, D]`, `H` a multiple of `H_kv`; `S_r` may differ between ranks and be 0; None for no keys.
        v: `[B, S_r, H_kv, Dv]`; `Dv` may differ from `D`.
        group: the ranks; default all.
        mesh: instead of a group: 1-D, or 2-D `(tree, heads)`, where the second dimension spreads heads and the first keys.
        shards: which positions each rank's rows are, in rank order (one entry per row of a 2-D mesh with `kv_placement="heads"`).
            Not needed where positions do not matter; else, without it, runs of equal length in rank order.
        strategy: `auto`, `allgather`, `alltoall`, `allreduce3`, `ring` or `ulysses`.
        q_placement: `replicated`; `sequence`: a run of rows on each rank, in rank order; `heads`: all rows, the heads of a column
            of the mesh.
        kv_placement: `sequence`: this rank's rows, all heads; `heads`: the rows of a row of the mesh, the heads of its column.
        out_placement: as for q; `heads` on a plain group is a run of the heads on each rank.
        q_lengths: rows of q on each rank for `q_placement="sequence"`, where they differ.
        causal: query i sees key j only if `j <= i`, by global position.
        window: query i sees key j only if `|i - j| < window`.
        sinks: keys `j < sinks` are in every window.
        q_start: global position of query 0; default: the queries are the last positions.
        softmax_scale: default `D ** -0.5`.
        return_lse: also return the natural-log softmax denominator, float32 `[B, H, S_q]`, placed like the result.
        links: of `measure_links`, for `auto`; all ranks must give the same. Default: assumed orders of magnitude.
        timeout: how long to wait for the other ranks at any one point, seconds.

    Returns:
        `out` `[B, S_q, H, Dv]` in the dtype of q; a query that sees no key has out 0 and lse -inf.

    Raises:
        ShapeError: the arguments of this rank do not fit together; the other ranks then find this one missing.
        ConfigError: a word is not among the allowed ones, or the strategy cannot do this call.
        CollectiveError: ranks disagree, or one of them is gone or does not answer in time; all that are alive raise it.

    Source: arXiv 2408.04093; the merge of arXiv 1805.02867.
    """
    return _attend(
        q, k, v, return_lse, seconds_of(timeout), group=group, mesh=mesh, shards=shards, strategy=strategy,
        q_placement=q_placement, kv_placement=kv_placement, out_placement=out_placement, q_lengths=q_lengths, causal=causal,
        window=window, sinks=sinks, q_start=q_start, softmax_scale=softmax_scale, links=links,
    )  # fmt: skip


def _run_call(q: Tensor, k: Tensor | None, v: Tensor | None, return_lse: bool, seconds: float, **options: Any) -> AttentionOutput:
    request = make_request(q, k, v, Options(**options))
    if k is not None:
        choose(request)  # what it refuses, it refuses before anything is sent
    flow = begin(request, q, seconds)
    if k is None or v is None:
        k, v = (q.new_empty(q.shape[0], 0, flow.spec.num_kv_heads, dim) for dim in (q.shape[3], flow.spec.head_dim_v))
    state = run(flow, q, k, v, lambda: begin(replace(request, spec=flow.spec), None, seconds))
    return AttentionOutput(out=state.out, lse=state.lse if return_lse else None)


_attend = outside_graphs(_run_call, "tree attention waits for other processes")


def explain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> TreePlan:
    """Say which strategy `tree_attention` would run for these arguments and what each would cost. Nothing runs, nothing is sent.

    The arguments are those of `tree_attention`.
    """
    request = make_request(q, k, v, Options(**options))
    exact = decide(request.spec, request.ranks, request.requested, request.links)
    return replace(exact, strategy=choose(request).strategy)


def plan(
    *,
    q_len: int,
    lengths: Sequence[int],
    num_heads: int,
    head_dim: int,
    num_head_ranks: int = 1,
    num_kv_heads: int | None = None,
    head_dim_v: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    device_type: str = "cuda",
    strategy: str = "auto",
    q_placement: Placement = "replicated",
    kv_placement: Placement = "sequence",
    out_placement: Placement = "replicated",
    links: Links | None = None,
) -> TreePlan:
    """Predict a call on ranks that need not exist: no tensor, no process group.

    Args:
        q_len: queries of all ranks together.
        lengths: keys of each rank (of each row of the grid with `kv_placement="heads"`).
        num_head_ranks: columns of a 2-D mesh.
        num_kv_heads: default `num_heads`.
        head_dim_v: default `head_dim`.
        links: default: assumed orders of magnitude.

    Raises:
        ConfigError: the strategy cannot do this call.
        ShapeError: the number of heads or lengths does not fit.
    """
    check_words(strategy, q_placement, kv_placement, out_placement)
    check_choice("device_type", device_type, ("cuda", "cpu"))
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: got {dtype}, expected torch.float64, torch.float32, torch.bfloat16 or torch.float16")
    if links is not None and not isinstance(links, Links):
        raise ConfigError(f"links: got {type(links).__name__}, expected what measure_links returns")
    num_kv_heads, head_dim_v = num_heads if num_kv_heads is None else num_kv_heads, head_dim if head_dim_v is None else head_dim_v
    counts = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v}
    for name, given in (counts | {"num_head_ranks": num_head_ranks, "batch": batch, "q_len": q_len}).items():
        whole_number(name, given, least=0 if name in ("batch", "q_len") else 1)
    check_heads(num_heads, num_kv_heads)
    if not (lengths := whole_numbers("lengths", lengths)):
        raise ShapeError("lengths: got none, expected one for each rank")
    tree = len(lengths) if kv_placement == "heads" else len(lengths) // num_head_ranks
    ranks = RankLengths(num_tree_ranks=tree, num_head_ranks=num_head_ranks, lengths=tuple(lengths), known=True)
    if kv_placement == "sequence" and ranks.size != len(lengths):
        raise ShapeError(f"lengths: got {len(lengths)}, expected one per rank, a multiple of num_head_ranks {num_head_ranks}")
    spec = TreeSpec(
        batch=batch,
        q_len=q_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        device_type=device_type,
        softmax_scale=head_dim**-0.5,
        mask=Mask(),
        q_placement=q_placement,
        kv_placement=kv_placement,
        out_placement=out_placement,
        rows=split(q_len, ranks.size),
    )
    return decide(spec, ranks, strategy, links or assumed_links("nccl" if device_type == "cuda" else "gloo", ranks.size))


def measure_links(
    group: ProcessGroup | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    timeout: float = 30.0,
) -> Links:
    """Time messages and local attention on this group, all ranks together, in about a second; every rank gets the same numbers.

    Args:
        group: default all ranks.
        device: where the tensors will be.
        dtype: of the keys.
        timeout: of each message, seconds.

    Raises:
        CollectiveError: a rank is gone or does not come.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: got {dtype}, expected torch.float64, torch.float32, torch.bfloat16 or torch.float16")
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: got {device!r}, expected cpu, cuda or cuda:N") from error
    return measure(comm_of(group), place, dtype, seconds_of(timeout))


@contextmanager
def deadline(what: str, *, group: ProcessGroup | None = None, timeout: float = 30.0) -> Iterator[None]:
    """Give the work that the block queues on this GPU a deadline, which a replayed CUDA graph with tree attention lacks.

    If it has not ended in time, this process does, and says which rank did not answer (`CollectiveError`) on stderr and, under
    `torchrun`, in the launcher's report. Nobody waits. All ranks call it together. Nothing on a CPU, where messages time out.

    Args:
        what: is queued, in words.
        group: of the calls; default all ranks.
        timeout: from when the GPU comes to the block, or from the end of the block if that is later, seconds.

    Raises:
        CollectiveError: an earlier call on this group has failed.
    """
    timeout = seconds_of(timeout)
    call = comm_of(group).begin(what, 0, timeout)
    begun = reached() if torch.cuda.is_initialized() else lambda: True
    yield
    if torch.cuda.is_initialized():
        call.comm.watch.add(reached(), call.late, timeout, begun=begun)
