"""One rank of a cell of tree attention: its tensors, its strategies checked, timed and predicted. Run as a program."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from strobe.attention.tree import KVShards, Links, explain, measure_links, tree_attention
from strobe.attention.tree.placement import split
from strobe.attention.tree.plan import KINDS, Message, Rate, StrategyCost
from strobe.bench.cells import Attempt
from strobe.bench.runner import timed_span
from strobe.bench.tree.request import PEER, TASK, RankedCall, RankErrors, RankResult, Task, TreeSettings
from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode
from strobe.core.device import synchronize
from strobe.core.errors import ImplUnavailableError, StrobeError
from strobe.core.files import write_whole
from strobe.core.libraries import broken
from strobe.core.spans import recording
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.timing import TimingRecorder, palindrome
from strobe.perf.records import record as grids
from strobe.perf.records.record import MEETING, MESSAGE, Clip, Collective, LinkRate, Mode, RankCall, SentMessage

CHECKED_ROWS: Final = 64
"""Queries of every head that are compared with float64, evenly spaced."""
_ROUNDING: Final = {torch.float64: 0.0, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_HALF_LSE: Final = 2.0**-13
"""Allowance for the lse of 16-bit tensors: the approximate error of exp in torch's CPU kernel."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankShare:
    """One rank's share.

    Args:
        q: `[B, S_q, H, D]`, all queries, or this rank's rows.
        k, v: this rank's keys, `[B, S_r, H_kv, D]`, the rows of a head side by side.
        rows: rows of the result on this rank: `[start, stop)` of all queries.
        expected, expected_lse: float64, of the checked rows `[B, R, H, D]` and `[B, H, R]`.
        checked: rows of this rank's result that are checked.
        largest_v: absolute, of all keys.
    """

    shape: RankedCall
    q: Tensor
    k: Tensor
    v: Tensor
    shards: KVShards
    rows: tuple[int, int]
    checked: Tensor
    expected: Tensor
    expected_lse: Tensor
    largest_v: float

    def options(self, links: Links | None) -> dict[str, Any]:
        """Return the arguments of the call beside its tensors; with links the strategy may be chosen by them."""
        shape = self.shape
        lengths = [stop - start for start, stop in split(shape.q_len, shape.world_size)]
        return {
            "shards": self.shards,
            "q_placement": shape.placement,
            "out_placement": shape.placement,
            "q_lengths": None if shape.placement == "replicated" else lengths,
            "links": links,
        }


def draw(shape: RankedCall, rank: int, device: torch.device, seed: int) -> RankShare:
    """Draw the tensors, the same on every rank, and keep this rank's share and its expected result."""
    dtype = getattr(torch, shape.dtype)
    generator = torch.Generator(device).manual_seed(seed)

    def normal(rows: int, heads: int) -> Tensor:
        size = (shape.batch, heads, rows, shape.dim)
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype)

    q, k, v = normal(shape.q_len, shape.heads), normal(shape.seq_len, shape.kv_heads), normal(shape.seq_len, shape.kv_heads)
    spread = shape.placement == "sequence"
    rows = split(shape.q_len, shape.world_size)[rank] if spread else (0, shape.q_len)
    count = min(CHECKED_ROWS, rows[1] - rows[0])
    checked = torch.linspace(0, max(0, rows[1] - rows[0] - 1), count, device=device).round().long()
    expected, lse = exact(q[:, :, rows[0] : rows[1]][:, :, checked], k, v)
    start, stop = split(shape.seq_len, shape.world_size)[rank]
    queries = q[:, :, rows[0] : rows[1]] if spread else q
    return RankShare(
        shape=shape,
        q=queries.transpose(1, 2).contiguous(),
        k=k[:, :, start:stop].contiguous().transpose(1, 2),
        v=v[:, :, start:stop].contiguous().transpose(1, 2),
        shards=KVShards.even(shape.seq_len, shape.world_size),
        rows=rows,
        checked=checked,
        expected=expected.transpose(1, 2),
        expected_lse=lse,
        largest_v=float(v.abs().max()),
    )


def exact(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute dense attention in float64 by its definition, one key head at a time; `[B, H, S, D]` in and out, and the lse."""
    groups = q.shape[1] // k.shape[1]
    outs, lses = [], []
    for head in range(q.shape[1]):
        keys, values = k[:, head // groups].double(), v[:, head // groups].double()
        scores = q[:, head].double() @ keys.transpose(1, 2) * q.shape[3] ** -0.5
        lse = scores.logsumexp(-1)
        outs.append(torch.exp(scores - lse.unsqueeze(-1)) @ values)
        lses.append(lse)
    return torch.stack(outs, 1), torch.stack(lses, 1)


Run = Callable[[], Tensor]
"""One call; the result in `[B, S, H, D]`."""


def bind(name: str, inputs: RankShare, timeout_s: float, links: Links | None = None) -> Run:
    """Bind a contestant to this rank's tensors; `auto` chooses by the links.

    Raises:
        ImplUnavailableError: the peer is not installed, or has no such call.
    """
    if name == PEER:
        return _peer(inputs)
    return lambda: _ours(name, inputs, timeout_s, links=links)[0]


def _ours(
    name: str, inputs: RankShare, timeout_s: float, return_lse: bool = False, links: Links | None = None
) -> tuple[Tensor, Tensor | None]:
    options = inputs.options(links)
    found = tree_attention(inputs.q, inputs.k, inputs.v, strategy=name, return_lse=return_lse, timeout=timeout_s, **options)
    return found.out, found.lse


def _peer(inputs: RankShare) -> Run:
    """Bind `tree_attn_decode` of ring-attention-pytorch: three all-reduces, on the default group."""
    if why := broken("ring_attention_pytorch.tree_attn_decoding"):
        raise ImplUnavailableError(PEER, why)
    if inputs.shape.placement != "replicated":
        raise ImplUnavailableError(PEER, "its queries are replicated")
    module = importlib.import_module("ring_attention_pytorch.tree_attn_decoding")
    q, k, v = (each.transpose(1, 2) for each in (inputs.q, inputs.k, inputs.v))

    def run() -> Tensor:
        out: Tensor = module.tree_attn_decode(q, k, v, shard_kv_seq=False)
        return out.transpose(1, 2)

    return run


def check(name: str, inputs: RankShare, timeout_s: float) -> RankErrors:
    """Run a contestant once and compare this rank's rows with float64.

    The rounding of a weight is that of its lse and grows with it: a flat tolerance would be wrong at both ends.
    """
    lse: Tensor | None = None
    with Attempt() as attempt:
        if name == PEER:
            out = bind(name, inputs, timeout_s)()
        else:
            out, lse = _ours(name, inputs, timeout_s, return_lse=True)
    if attempt.reason:
        return RankErrors(refused=f"{'refused' if attempt.refused else 'failed'}: {attempt.reason}", impossible=attempt.refused)
    shape, expected = inputs.shape, inputs.expected
    wanted = (shape.batch, inputs.rows[1] - inputs.rows[0], shape.heads, shape.dim)
    if tuple(out.shape) != wanted or out.dtype != inputs.q.dtype:
        return RankErrors(error=float("inf"), limit=0.0)
    largest = float(inputs.expected_lse.abs().max()) if len(inputs.checked) else 0.0
    lse_error = 8 * 2.0**-24 * max(1.0, largest)
    rounding = 4 * _ROUNDING[inputs.q.dtype]
    missed = (out[:, inputs.checked].double() - expected).abs()
    found = None
    if lse is not None and len(inputs.checked):
        found = float((lse[:, :, inputs.checked].double() - inputs.expected_lse).abs().max())
    return RankErrors(
        error=float(missed.max()) if missed.numel() else 0.0,
        limit=(lse_error + 2 * rounding) * inputs.largest_v,
        lse_error=found,
        lse_limit=lse_error + (_HALF_LSE if inputs.q.dtype.itemsize == 2 else 0.0),
        bits=zlib.crc32(out.contiguous().view(torch.uint8).cpu().numpy().tobytes()),
    )


def guide_blocks(
    inputs: RankShare, device: torch.device, how: TreeSettings, align: Callable[[], None]
) -> dict[Mode, dict[str, list[float]]]:
    """Measure every block on this rank, milliseconds by mode and block.

    `profiled_tree_attn_decode` takes the whole keys and cuts out its own; queries must be replicated.
    """
    if inputs.shape.placement != "replicated":
        return {}
    shape = inputs.shape
    q = inputs.q.transpose(1, 2)
    whole = (shape.batch, shape.kv_heads, shape.seq_len, shape.dim)
    generator = torch.Generator(device).manual_seed(how.seed)
    k, v = (torch.randn(whole, generator=generator, device=device, dtype=torch.float32).to(q.dtype) for _ in range(2))
    found: dict[Mode, dict[str, list[float]]] = {}
    for mode in get_args(Mode):
        timer = Timer(device.type == "cuda", serialised=mode == "serialised")
        for turn in range(2 + how.iterations):
            align()
            profiled_tree_attn_decode(q, k, v, timer, warmup=turn < 2)
        found[mode] = timer.times
    return found


_NO_CLIP: Final = Clip(variant="", clip=0, order=0, palindrome=None, phase="timed", num_spans=0)
"""Of regions before all ranks' calls are put together as one."""


class MarkRecorder(TimingRecorder):
    """Recorder of the regions of one call; without `meet` it waits for nothing.

    Args:
        meet: serialised: called before each collective, returns when all ranks are there; the device is drained before and after.
    """

    def __init__(self, device: torch.device, meet: Callable[[], object] | None = None) -> None:
        super().__init__(device, fine=True)
        self._meet = meet
        self._parts: dict[str, tuple[str, str]] = {}

    @contextmanager
    def __call__(self, name: str, index: int | None) -> Iterator[None]:
        """Mark the region of the body; `tree_message:gather` is the part `gather` of `tree_message`."""
        region, _, part = name.partition(":")
        self._parts[name] = region, part
        if self._meet is not None and region == MESSAGE:
            with super().__call__(MEETING, None):
                self._meet()
        self._drain()
        with super().__call__(name, index):
            yield
            self._drain()

    def _drain(self) -> None:
        if self._meet is not None:
            self.synchronize()

    def take(self, run: Callable[[], object]) -> RankCall:
        self.start_clip()
        with recording(self), super().__call__(grids.CALL, None):
            run()
            self._drain()
        found, parts = self.finish_clip(), self._parts | {MEETING: (MEETING, ""), grids.CALL: (grids.CALL, "")}
        whole = next(each for each in found if each.name == grids.CALL)
        return [
            timed_span(_NO_CLIP, name, None, each.value_ns, start_ns=each.start_ns - whole.start_ns, part=part)
            for each in (whole, *(each for each in found if each is not whole))
            for name, part in [parts[each.name]]
        ]


def links_line(links: Links, auto: str) -> grids.Links:
    """Return links as their record."""

    def line(kind: Collective, rate: Rate) -> LinkRate:
        return LinkRate(kind=kind, alpha_s=rate.alpha_s, bytes_per_s=rate.bytes_per_s, host_s=rate.host_s)

    return grids.Links(
        flops_per_s=links.flops_per_s,
        memory_bytes_per_s=links.memory_bytes_per_s,
        launch_s=links.launch_s,
        rates=(*(line(kind, links.rate(kind)) for kind in KINDS), line("merge", links.merge)),
        auto=auto,
    )


def predict(inputs: RankShare, links: Links) -> tuple[dict[str, grids.Prediction], str]:
    """Return predictions of every strategy that can do the call, and the one that `auto` takes."""
    plan = explain(inputs.q, inputs.k, inputs.v, **inputs.options(links))
    found: dict[str, grids.Prediction] = {}
    for each in plan.predictions:
        found[each.strategy] = grids.Prediction(
            variant=each.strategy,
            total_ns=each.seconds * 1e9,
            local_ns=each.local_s * 1e9,
            hidden_ns=each.hidden_s * 1e9,
            messages=tuple(_sent(message, links) for message in each.messages),
            bound=_bound(inputs, links, each),
        )
    return found, plan.strategy


def _sent(message: Message, links: Links) -> SentMessage:
    alpha_ns = min(links.rate(message.kind).alpha_s, message.seconds) * 1e9
    return SentMessage(
        payload=message.what,
        kind=message.kind,
        sent_bytes=message.sent_bytes,
        alpha_ns=alpha_ns,
        beta_ns=message.seconds * 1e9 - alpha_ns,
    )


def _bound(inputs: RankShare, links: Links, each: StrategyCost) -> Literal["flop", "memory"]:
    """Return whether local attention is bound by FLOPs or memory: a ring reads all keys, other strategies read a share."""
    shape = inputs.shape
    flops = 4 * shape.batch * shape.heads * shape.dim * shape.q_len * shape.seq_len / shape.world_size
    moved: float = 2 * shape.batch * shape.kv_heads * shape.dim * inputs.k.element_size() * shape.seq_len
    moved /= 1 if each.strategy == "ring" else shape.world_size
    return "flop" if flops / links.flops_per_s > moved / links.memory_bytes_per_s else "memory"


WARMUP: Final = 3
START_S: Final = 60.0
"""Least timeout for the ranks to start, s: they import torch before they meet."""


@record
def main() -> None:
    """Run this rank; an error is written to its result before it is raised."""
    folder = Path(sys.argv[1])
    task = msgspec.json.decode((folder / TASK).read_bytes(), type=Task)
    device = _begin(task)
    result = RankResult(rank=dist.get_rank())
    with Attempt() as attempt:
        _Rank(task, device, result).run(folder)
    result.error = attempt.reason
    write_whole(folder / f"rank{result.rank}.json", msgspec.json.encode(result))
    if attempt.reason:
        raise StrobeError(attempt.reason)
    dist.destroy_process_group()


def _begin(task: Task) -> torch.device:
    timeout = timedelta(seconds=max(START_S, task.timeout_s))
    if task.shape.device == "cpu":
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class _Rank:
    def __init__(self, task: Task, device: torch.device, result: RankResult) -> None:
        self._shape, self._how = task.shape, task.how
        self._device, self._result = device, result
        rank, held_ms = task.how.delay or (-1, 0.0)
        self._timeout_s, self._held = task.timeout_s, held_ms / 1e3 if rank == result.rank else 0.0

    def run(self, folder: Path) -> None:
        how, result = self._how, self._result
        inputs = draw(self._shape, result.rank, self._device, how.seed)
        names = self._gate(inputs)
        if result.rank == 0:
            order = tuple(names) or how.contestants
            result.header = describe_run(folder, self._device, order, how.rounds, "tree")
        with torch.inference_mode():
            measured = measure_links(device=self._device, dtype=inputs.q.dtype, timeout=self._timeout_s)
            result.predicted, choice = predict(inputs, measured)
            result.links = links_line(measured, choice)
            result.predicted["auto"] = msgspec.structs.replace(result.predicted[choice], variant="auto")
            runs = {name: bind(name, inputs, self._timeout_s, measured) for name in names}
            if runs:
                self._time(runs)
            if how.profile:
                self._take_apart(runs)
                result.blocks = guide_blocks(inputs, self._device, how, self._align)
        self._align()

    def _gate(self, inputs: RankShare) -> list[str]:
        result = self._result
        with torch.inference_mode():
            for name in self._how.contestants:
                self._align()
                result.checks[name] = check(name, inputs, self._timeout_s)
        everyone: list[dict[str, RankErrors]] = [{} for _ in range(self._shape.world_size)]
        dist.all_gather_object(everyone, result.checks)
        passed = [name for name in self._how.contestants if all(each[name].passed for each in everyone)]
        if PEER in passed:
            result.versions[PEER] = f"ring-attention-pytorch {importlib.metadata.version('ring-attention-pytorch')}"
        return passed

    def _align(self) -> None:
        synchronize(self._device)
        dist.barrier()
        synchronize(self._device)

    def _held_back(self, run: Callable[[], object]) -> object:
        if self._held:
            time.sleep(self._held)
        return run()

    def _time(self, runs: dict[str, Run]) -> None:
        """Time palindromes; every call begins when all ranks are there, and ends with this rank's result."""
        result, how = self._result, self._how
        for name, run in runs.items():
            for _ in range(WARMUP):
                run()
            result.laps[name] = []
        first, *rest = runs
        order = palindrome(first, rest) if rest else (first, first)
        for _ in range(how.rounds):
            taken: dict[str, list[int]] = {name: [] for name in runs}
            for name in order:
                taken[name] += [self._lap(runs[name]) for _ in range(how.calls)]
            for name, values in taken.items():
                result.laps[name].append(values)

    def _lap(self, run: Run) -> int:
        self._align()
        start = time.perf_counter_ns()
        self._held_back(run)
        synchronize(self._device)
        return time.perf_counter_ns() - start

    def _take_apart(self, runs: dict[str, Run]) -> None:
        """Record the regions of the same calls: free-running, then serialised; the peer has none."""
        modes: tuple[tuple[Mode, Callable[[], object] | None], ...] = (("free-running", None), ("serialised", dist.barrier))
        self._result.apart = {mode: {} for mode, _ in modes}
        for name, run in runs.items():
            for mode, meet in modes if name != PEER else ():
                recorder = MarkRecorder(self._device, meet)
                recorder.take(run)
                calls = self._result.apart[mode][name] = list[RankCall]()
                for _ in range(max(6, self._how.iterations)):
                    self._align()
                    calls.append(recorder.take(partial(self._held_back, run)))


if __name__ == "__main__":
    main()
