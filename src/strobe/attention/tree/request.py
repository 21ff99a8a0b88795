"""The arguments of a call, checked on this rank alone before anything is sent, and the agreement of the ranks on them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from strobe.attention.tree.comm import UNKNOWN, Agreement, CollectiveCall, Comm, comm_of, comms_of_mesh
from strobe.attention.tree.placement import KVShards, Mask, Segment, in_short, split, whole_number, whole_numbers
from strobe.attention.tree.plan import Links, RankLengths, TreePlan, assumed_links, decide
from strobe.attention.tree.redistribute import Redistribution, owned_segments
from strobe.attention.tree.spec import MOVES_KEYS, STRATEGIES, Placement, TreeSpec, check_choice, check_heads, check_tensors
from strobe.core.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The arguments of a call besides its tensors."""

    group: ProcessGroup | None = None
    mesh: DeviceMesh | None = None
    shards: KVShards | None = None
    strategy: str = "auto"
    q_placement: Placement = "replicated"
    kv_placement: Placement = "sequence"
    out_placement: Placement = "replicated"
    q_lengths: Sequence[int] | None = None
    causal: bool = False
    window: int | None = None
    sinks: int = 0
    q_start: int | None = None
    softmax_scale: float | None = None
    links: Links | None = None

    def __post_init__(self) -> None:
        for name, given, kind, example in (
            ("shards", self.shards, KVShards, "strobe.attention.tree.KVShards, such as KVShards.contiguous([300, 212])"),
            ("links", self.links, Links, "what measure_links returns"),
        ):
            if given is not None and not isinstance(given, kind):
                raise ConfigError(f"{name}: got {in_short(given)}, expected {example}")
        if not isinstance(self.causal, bool):
            raise ConfigError(f"causal: got {in_short(self.causal)}, expected True or False")
        for name, least in (("window", 1), ("sinks", 0), ("q_start", None)):
            if name == "sinks" or getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), least, ConfigError))
        if self.q_lengths is not None:
            object.__setattr__(self, "q_lengths", tuple(whole_numbers("q_lengths", self.q_lengths)))
        if self.softmax_scale is not None:
            object.__setattr__(self, "softmax_scale", finite_number("softmax_scale", self.softmax_scale))
        check_words(self.strategy, self.q_placement, self.kv_placement, self.out_placement)


def finite_number(what: str, given: Any) -> float:
    """Check a number and return it as a float.

    Raises:
        ConfigError: it is none, or not finite.
    """
    try:
        number = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{what}: got {in_short(given)}, expected a finite number")
    return number


def seconds_of(timeout: float | timedelta) -> float:
    """Convert a timeout to seconds.

    Raises:
        ConfigError: it is not more than 0, or not finite.
    """
    seconds = finite_number("timeout", timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)
    if seconds <= 0:
        raise ConfigError(f"timeout: got {timeout}, expected more than 0 seconds")
    return seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeRequest:
    """A call as far as this rank knows it; a rank without keys does not know their shape."""

    spec: TreeSpec
    ranks: RankLengths
    tree: Comm
    heads: Comm
    shards: KVShards | None
    requested: str
    links: Links


def check_words(strategy: str, q_placement: str, kv_placement: str, out_placement: str) -> None:
    """Refuse words that are not among the allowed ones."""
    check_choice("strategy", strategy, ("auto", *STRATEGIES))
    check_choice("q_placement", q_placement, get_args(Placement))
    check_choice("kv_placement", kv_placement, ("sequence", "heads"))
    check_choice("out_placement", out_placement, get_args(Placement))


def make_request(q: Tensor, k: Tensor | None, v: Tensor | None, options: Options) -> TreeRequest:
    """Check the arguments as far as this rank can alone, and make the request."""
    check_tensors(q, k, v)
    if options.group is not None and options.mesh is not None:
        raise ConfigError("group and mesh: got both, expected one of them")
    tree, heads = comms_of_mesh(options.mesh) if options.mesh is not None else (comm_of(options.group), None)
    columns = 1 if heads is None else heads.size
    if k is None and columns > 1:
        raise ShapeError("k and v: got None on a 2-D mesh, expected tensors; a rank without keys gives [B, 0, H_kv, D]")
    heads = Comm(None) if heads is None else heads
    num_heads = q.shape[2] * (columns if options.q_placement == "heads" else 1)
    num_kv_heads = UNKNOWN if k is None else k.shape[2] * (columns if options.kv_placement == "heads" else 1)
    if k is not None:
        check_heads(num_heads, num_kv_heads)
    rank, num_ranks = tree.rank * columns + heads.rank, tree.size * columns
    rows = _rows(q, options, rank, num_ranks)
    hides = options.causal or options.window is not None
    kv_len = 0 if k is None else k.shape[1]
    num_buffers = tree.size if options.kv_placement == "heads" else num_ranks
    spreads_keys = options.strategy in MOVES_KEYS or (columns > 1 and options.kv_placement == "sequence")
    shards = options.shards
    if shards is None and (hides or spreads_keys):
        shards = KVShards.contiguous([kv_len] * num_buffers)
    elif shards is not None:
        if len(shards.ranks) != num_buffers:
            raise ShapeError(f"shards: got {len(shards.ranks)} entries, expected {num_buffers}")
        own = shards.lengths[tree.rank if options.kv_placement == "heads" else rank]
        if own > kv_len:
            raise ShapeError(f"k: got {kv_len} rows, expected at least the {own} that shards gives this rank")
    spec = TreeSpec(
        batch=q.shape[0],
        q_len=rows[-1][1],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=q.shape[3],
        head_dim_v=UNKNOWN if v is None else v.shape[3],
        dtype=q.dtype,
        device_type=q.device.type,
        softmax_scale=q.shape[3] ** -0.5 if options.softmax_scale is None else options.softmax_scale,
        mask=_mask(options, rows[-1][1], shards),
        q_placement=options.q_placement,
        kv_placement=options.kv_placement,
        out_placement=options.out_placement,
        rows=rows,
        needs_grad=torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (q, k, v)),
        symmetric_kv_len=kv_len if options.shards is None and shards is not None else None,
    )
    return TreeRequest(
        spec=spec,
        ranks=RankLengths(
            num_tree_ranks=tree.size,
            num_head_ranks=columns,
            lengths=(kv_len,) if shards is None else tuple(sum(e.length for e in owned_segments(each)) for each in shards.ranks),
            known=shards is not None,
        ),
        tree=tree,
        heads=heads,
        shards=shards,
        requested=options.strategy,
        links=options.links or assumed_links(tree.backend(q.device.type), num_ranks),
    )


def _rows(q: Tensor, options: Options, rank: int, num_ranks: int) -> tuple[tuple[int, int], ...]:
    """Return the rows `[start, stop)` of each rank, where queries or results are spread by rows."""
    if options.q_placement != "sequence":
        if options.q_lengths is not None:
            raise ConfigError('q_lengths: only with q_placement="sequence"; the rows of a replicated q are split evenly')
        return split(q.shape[1], num_ranks)
    lengths = options.q_lengths if options.q_lengths is not None else (q.shape[1],) * num_ranks
    if len(lengths) != num_ranks or lengths[rank] != q.shape[1]:
        raise ShapeError(
            f"q_lengths: got {lengths}, expected {num_ranks} numbers, {q.shape[1]} (the rows of q here) for rank {rank}"
        )
    stops = list(accumulate(lengths, initial=0))
    return tuple(pairwise(stops))


def _mask(options: Options, q_len: int, shards: KVShards | None) -> Mask:
    if options.window is None and options.sinks:
        raise ConfigError(f"sinks: got {options.sinks} without a window, expected 0; without a window every key is in reach")
    if not (options.causal or options.window is not None):
        return Mask()
    assert shards is not None
    q_start = shards.end - q_len if options.q_start is None else options.q_start
    return Mask(causal=options.causal, window=options.window, sinks=options.sinks, q_start=q_start)


def begin(request: TreeRequest, q: Tensor | None, seconds: float) -> Redistribution:
    """Begin the call: number it on every group that it uses, describe it to the other ranks, and choose its strategy.

    Args:
        request: of the way back: with the spec of the way there, whose strategy it keeps.
        q: None on the way back.
        seconds: timeout of each wait.
    """
    spec = request.spec
    digest = _digest(request, q is None)
    keys, device = (spec.num_kv_heads, spec.head_dim_v), torch.device(spec.device_type)
    text = spec.describe(request.requested) + (" backward" if q is None else "")
    calls: list[CollectiveCall] = []
    for comm, same in ((request.tree, ("replicated", "heads")), (request.heads, ("replicated",))):
        call = comm.begin(text, digest, seconds)
        agreement = Agreement(call, digest, q if spec.q_placement in same else None, keys, device)
        call.first = agreement.wait
        if spec.num_kv_heads == UNKNOWN and not calls:  # without keys of its own, and so on no mesh
            spec = _learn(spec, call, agreement)
        calls.append(call)
    tree, heads = calls
    if spec.strategy == "auto":
        spec = replace(spec, strategy=choose(replace(request, spec=spec)).strategy)
    if spec.strategy == "ulysses":  # the ranks are one row of the grid
        tree, heads = heads, tree
    shards = request.shards
    segments = ((Segment(start=0, length=request.ranks.lengths[0]),),) if shards is None else shards.ranks
    return Redistribution(spec=spec, tree=tree, heads=heads, segments=segments)


def _learn(spec: TreeSpec, call: CollectiveCall, agreement: Agreement) -> TreeSpec:
    """Complete the spec on a rank without keys by the keys' shape, which other ranks know."""
    call.first = None
    num_kv_heads, head_dim_v = agreement.wait()
    if num_kv_heads == UNKNOWN:
        raise ShapeError(
            "k and v: got None on every rank, expected tensors on one at least; [B, 0, H_kv, D] says what the result is"
        )
    return replace(spec, num_kv_heads=num_kv_heads, head_dim_v=head_dim_v)


def _digest(request: TreeRequest, is_backward: bool) -> int:
    """Hash all that must be equal; on a GPU, where ranks compare once per kind of call, without what differs between calls."""
    spec = replace(request.spec, num_kv_heads=UNKNOWN, head_dim_v=UNKNOWN)
    shards = request.shards
    if spec.device_type != "cpu":
        spec, shards = replace(spec, mask=replace(spec.mask, q_start=0), symmetric_kv_len=None), None
    return _crc(spec, shards, request.requested, request.links, is_backward)


@lru_cache(maxsize=64)
def _crc(*what: object) -> int:
    return zlib.crc32(repr(what).encode())


def choose(request: TreeRequest) -> TreePlan:
    """Plan a call; lengths are rounded, so that a growing cache is not planned anew at every step.

    A call that is being captured is planned without its host's time; the ranks' agreement on its kind holds for it too.
    """
    spec = replace(request.spec, mask=replace(request.spec.mask, q_start=0), symmetric_kv_len=None)
    lengths = tuple(round_up(length) for length in request.ranks.lengths)
    captured = spec.device_type == "cuda" and torch.cuda.is_current_stream_capturing()
    links = request.links.in_a_graph() if captured else request.links
    return decide(spec, replace(request.ranks, lengths=lengths), request.requested, links)


def round_up(length: int) -> int:
    """Return the next number with 3 significant bits."""
    step = 1 << max(0, length.bit_length() - 3)
    return -(-length // step) * step
