"""Work for real processes; each function runs on every rank of a group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import tree_cases
from strobe.attention.tree import KVShards, Links, deadline, explain, measure_links, redistribute, tree_attention
from strobe.attention.tree.comm import UNKNOWN, Agreement, comm_of
from strobe.attention.tree.plan import assumed_links
from strobe.attention.types import AttentionOutput
from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode
from strobe.core.errors import ConfigError, ImplUnavailableError
from tree_cases import PATIENT_S, Case

SHORT_S = 1.5
"""Timeout of a call that is meant to wait in vain: the ranks that are alive must all come to it in that time."""


def home() -> torch.device:
    """Return the device of this rank's tensors: its GPU if the group has NCCL."""
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend_config() else torch.device("cpu")


def attend(rank: int, case: Case) -> AttentionOutput:
    """Call tree attention on all ranks."""
    return tree_cases.attend(rank, case, home())


def differentiate(rank: int, case: Case) -> list[Tensor]:
    """Compute gradients of this rank's tensors."""
    return tree_cases.differentiate(rank, case, home())


def warmed(call: Callable[[], Any]) -> Any:
    """Call three times beside the current stream, so that the ranks agree and kernels are made; return the last result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = [call() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return found[-1]


def replay(rank: int, case: Case) -> list[tuple[Tensor, Tensor]]:
    """Capture a call in a CUDA graph and replay it with other tensors in the same places: `(replayed, eager)` of each."""
    q, k, v = case.of(rank, home())

    def call() -> Tensor:
        return tree_attention(q, k, v, timeout=PATIENT_S, **case.arguments()).out

    warmed(call)
    graph = torch.cuda.CUDAGraph()
    with deadline("a capture", timeout=PATIENT_S):  # something that the watch asks for meanwhile
        pass
    with torch.cuda.graph(graph):
        out = call()
        time.sleep(0.2)
    found = []
    for _ in range(3):
        for each in (q, k, v):
            each.mul_(-0.75)
        graph.replay()
        found.append((out.cpu(), call().cpu()))
    return found


def capture_another(rank: int) -> tuple[list[str], bool]:
    """Return the strategies of a call with a slow host, eager and then captured, and whether both results agree."""
    given = assumed_links("nccl", 2)
    slow = replace(given, exchange=replace(given.exchange, host_s=1e-2))
    torch.manual_seed(rank)
    q, k, v = (torch.randn(1, rows, 12, 128, device="cuda", dtype=torch.bfloat16) for rows in (2340, 9360, 9360))
    spread: dict[str, Any] = {"q_placement": "sequence", "out_placement": "sequence", "q_lengths": [2340, 2340]}
    spread["shards"] = KVShards.even(18720, 2)
    chosen, original = [], redistribute.combine

    def noted(call: Any, strategy: str, *rest: Any) -> Any:
        chosen.append(strategy)
        return original(call, strategy, *rest)

    def call() -> Tensor:
        return tree_attention(q, k, v, links=slow, timeout=PATIENT_S, **spread).out

    redistribute.combine = noted
    eager, graph = warmed(call), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    redistribute.combine = original
    return chosen, bool(((out - eager).abs().max() <= 0.01).item())


def attend_in_groups(rank: int, case: Case) -> AttentionOutput | None:
    """Run the case on the ranks 3 and 1 in their own group, in turn with a call on all ranks and with a third group."""
    pair, other = dist.new_group([1, 3]), dist.new_group([0, 1, 2])
    q, ks, vs = case.draw()
    whole = torch.ones(1, 1, 1, 4)
    found = None
    for _ in range(2):
        everyone = tree_attention(whole, whole * rank, whole * rank, timeout=PATIENT_S).out
        if rank in (1, 3):
            place = dist.get_group_rank(pair, rank)
            found = tree_attention(q, ks[place], vs[place], group=pair, timeout=PATIENT_S, **case.arguments())
        if rank in (0, 1, 2):
            assert torch.equal(tree_attention(whole, whole, whole * 5, group=other, timeout=PATIENT_S).out, whole * 5)
        assert (everyone - 2.75).abs().max() < 0.2  # values 0 to 3 with weights e^(2 rank)
    return found


def attend_without_keys(rank: int, case: Case) -> AttentionOutput:
    """Call tree attention with None for the keys on ranks without any."""
    q, ks, vs = case.draw()
    k, v = (ks[rank], vs[rank]) if ks[rank].shape[1] else (None, None)
    return tree_attention(q, k, v, strategy=case.strategy, return_lse=True, timeout=PATIENT_S)


def decode(rank: int, steps: int) -> list[AttentionOutput]:
    """Decode with a causal cache that grows by one key a step, on the ranks in turn: every step is another layout."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, steps, heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    found = []
    for step in range(1, steps + 1):
        mine = slice(rank, step, dist.get_world_size())
        shards = KVShards.interleaved(step, dist.get_world_size())
        last = q[:, step - 1 : step]
        found.append(tree_attention(last, k[:, mine], v[:, mine], shards=shards, causal=True, return_lse=True, timeout=20))
    return found


def again(rank: int, init: str, case: Case) -> AttentionOutput:
    """Run a case after the default group is destroyed and made anew with the ranks in reverse order."""
    number = dist.get_world_size()
    attend(rank, case)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=init, rank=number - 1 - rank, world_size=number)
    return attend(number - 1 - rank, case)


def plan_with_links(rank: int) -> tuple[Links, str]:
    """Measure links, and return them with the plan that they give."""
    links = measure_links(device=home(), timeout=PATIENT_S)
    q, k = (torch.ones(1, rows, 8, 64, device=home()) for rows in (1, 64))
    tree_attention(q, k, k, links=links, timeout=PATIENT_S)
    return links, str(explain(q, k, k, links=links))


def small(rank: int, changes: dict[int, dict[str, Any]] | None = None, timeout: float = SHORT_S) -> float:
    """Run a small call, with other arguments on some ranks; return the largest value of the result."""
    given: dict[str, Any] = {"heads": 2, "dim": 8, "dtype": torch.float32, "rows": 1, "value": 1.0, "options": {}, "flip": []}
    given |= (changes or {}).get(rank, {})
    q = torch.full((1, given["rows"], given["heads"], given["dim"]), given["value"], dtype=given["dtype"], device=home())
    q = (q + torch.arange(given["dim"], device=home())).flip(given["flip"]).to(given["dtype"])  # no q changes values of ones
    k = torch.ones(1, 5, given["heads"], given["dim"], dtype=given["dtype"], device=home())
    return round(float(tree_attention(q, k, k, timeout=timeout, **given["options"]).out.max()), 3)


def patient(rank: int, changes: dict[int, dict[str, Any]] | None = None) -> float:
    """Run a small call with a long timeout."""
    return small(rank, changes, timeout=PATIENT_S)


def late_and_other(rank: int, seconds: float) -> float:
    """Run a small call with other arguments on rank 1, whose local attention takes so much longer."""
    module = import_module("strobe.attention.tree.redistribute")  # the package has a function of this name
    attend = module.local_attention

    def slowly(*arguments: Any) -> AttentionOutput:
        time.sleep(seconds if rank == 1 else 0.0)
        found: AttentionOutput = attend(*arguments)
        return found

    with patch.object(module, "local_attention", slowly):
        return patient(rank, {1: {"options": {"softmax_scale": 0.5}}})


def refused(rank: int) -> str:
    """Run a strategy that no rank can run, and then a call that all can."""
    try:
        small(rank, {rank: {"options": {"strategy": "ulysses", "q_placement": "heads"}}})
    except ConfigError as error:
        return f"{error}, then {patient(rank)}"
    return ""


def calls(rank: int, timeout: float, *rows: dict[int, int]) -> None:
    """Run small calls, with these rows of queries on some ranks; where there are to be none, the rank leaves the call out."""
    for number in (each.get(rank, 1) for each in rows):
        if number:
            small(rank, {rank: {"rows": number}}, timeout)


def after(rank: int, seconds: dict[int, float]) -> float:
    """Run a call with a long timeout; some ranks sleep, and end their process."""
    if rank in seconds:
        time.sleep(seconds[rank])
        os._exit(7)
    return patient(rank)


def exit_in_call(rank: int, victim: int, strategy: str, hang_s: float, behind: int | None = None) -> None:
    """End (or hang) one rank between the agreement and its message; another comes behind when that has long ended."""
    patient(rank, {rank: {"options": {"strategy": strategy}}})
    if rank in (victim, behind):
        original = redistribute.combine

        def ends(call: Any, *rest: Any) -> Any:
            call.meet()
            if rank == behind:
                time.sleep(1.0)
            elif hang_s:
                time.sleep(hang_s)
            else:
                os._exit(7)
            return original(call, *rest)

        redistribute.combine = ends
    in_time = hang_s or home().type == "cuda"  # NCCL does not see that a rank has ended
    small(rank, {rank: {"options": {"strategy": strategy}}}, timeout=SHORT_S if in_time else PATIENT_S)


def exchange_of_cuda_tensors(rank: int) -> str:
    """Return the error of a gloo group that is to exchange GPU tensors, which need not exist."""
    call = comm_of(None).begin("an exchange", 0, SHORT_S)
    with FakeTensorMode():
        rows = torch.empty(call.size, 3, device="cuda")
        try:
            call.exchange(list(rows), [(3,)] * call.size)
        except ConfigError as error:
            return str(error)
    return "nothing refused"


def profiled_decode(rank: int) -> tuple[Tensor, Tensor]:
    """Run eight queries and one key on two ranks with other memory layouts of messages; return the result and the key."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, length, 8, generator=generator) for length in (8, 1, 1))
    return profiled_tree_attn_decode(q, k, v, Timer()), v


def penalise(rank: int, case: Case) -> list[str]:
    """Return the errors of a second backward through q, through k and v, through an lse, and through the incoming gradient."""
    leaves = [each.detach().requires_grad_() for each in case.of(rank)]
    told = []
    for leaf in (*leaves, None):
        state = tree_attention(leaves[0], leaves[1], leaves[2], timeout=PATIENT_S, **case.arguments())
        d_out = torch.ones_like(state.out).requires_grad_()
        outputs, given = ([state.out], [d_out]) if leaf is None else ([state.out, state.lse], [state.out, state.lse])
        slopes = torch.autograd.grad(outputs, leaves, given, create_graph=True)
        if leaf is not None:
            state = tree_attention(leaves[0], leaves[1], leaves[2], timeout=PATIENT_S, **case.arguments())
            plain = torch.autograd.grad((state.out**2).sum() / 2 + (state.lse**2).sum() / 2, leaves)
            torch.testing.assert_close(plain, slopes)
        source = d_out if leaf is None else leaf
        penalty = sum((each**2).sum() for each in slopes) + (source**3).sum()
        try:
            torch.autograd.grad(penalty, source)
            told.append("nothing")
        except ImplUnavailableError as error:
            told.append(str(error))
    return told


def reduce_strided(rank: int) -> tuple[Tensor, str]:
    """Sum tensors with another memory layout on each rank, and return the error for one sent without being contiguous."""
    order = ((0, 1, 2), (2, 0, 1), (1, 2, 0))[rank]
    tensor = (torch.arange(24.0).view(2, 3, 4) * 10**rank).permute(order).contiguous()
    call = comm_of(None).begin("a sum", 0, PATIENT_S)
    back = [order.index(dim) for dim in range(3)]
    total = call.all_reduce(tensor.permute(back))
    try:
        call._start(partial(dist.barrier, async_op=True), [tensor.transpose(0, 1)], None)
    except AssertionError as error:
        return total, str(error)
    return total, ""


def wrong_shape(rank: int, odd: int) -> None:
    """Give one rank tensors that do not fit together."""
    if rank == odd:
        tree_attention(torch.ones(1, 1, 2, 8), torch.ones(1, 5, 2, 9), torch.ones(1, 5, 2, 9), timeout=timedelta(seconds=1))
    small(rank)


def agree_in_store(rank: int, odd: int, absent: int) -> tuple[int, int]:
    """Run the agreement of GPU calls through the store, once for each kind of call, without a GPU."""
    comm = comm_of(None)
    call = comm.begin(f"a call of {rank}", 5, PATIENT_S if absent < 0 else SHORT_S)
    if rank == absent:
        time.sleep(PATIENT_S)
        return 0, 0
    found = Agreement(call, 6 if rank == odd else 5, None, (2, 8) if rank else (UNKNOWN, UNKNOWN), torch.device("cuda")).wait()
    again = Agreement(call, 5, None, (2, 8) if rank else (UNKNOWN, UNKNOWN), torch.device("cuda"))
    assert again.wait() == found and again._tokens is None
    return found


def repeat_in_store(rank: int, odd: int) -> None:
    """Repeat a kind of call that all ranks but one know, as on NCCL with blocking waits.

    The rank with a new kind waits in the store for the others, while they wait for it on their GPU: half a second longer than
    their timeout.
    """
    agree_in_store(rank, -1, -1)
    comm = comm_of(None)
    call = comm.begin(f"a call of {rank}", 6 if rank == odd else 5, SHORT_S)
    Agreement(call, call.digest, None, (2, 8) if rank else (UNKNOWN, UNKNOWN), torch.device("cuda")).wait()
    time.sleep(SHORT_S + 0.5)
    raise call.failure([], True, "timed out in blocking wait")


def report_to(rank: int, report: str) -> None:
    """Set the file in which `torchrun` expects rank 0's error."""
    if rank == 0:
        os.environ["TORCHELASTIC_ERROR_FILE"] = report


def queued_for_ever(rank: int, report: str, ends_process: bool) -> None:
    """Queue work on rank 0's GPU that never ends, and return what happens to it and to the call after it."""
    report_to(rank, report)
    if rank == 0:
        comm = comm_of(None)
        call = comm.begin("a replayed graph", 0, SHORT_S, ends_process=ends_process)
        comm.watch.add(lambda: False, call.late, SHORT_S)
        while ends_process or comm.error is None:
            time.sleep(0.01)
        call.all_reduce(torch.ones(1))


def graph_that_waits(rank: int, report: str, victim: int) -> None:
    """Replay a graph with a call in it on all ranks but one."""
    report_to(rank, report)
    q = torch.ones(1, 1, 2, 64, device="cuda", dtype=torch.bfloat16)
    call = partial(tree_attention, q, q, q, timeout=PATIENT_S)
    warmed(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    with deadline("a replayed graph", timeout=PATIENT_S):
        graph.replay()
    torch.cuda.synchronize()
    if rank == victim:
        time.sleep(PATIENT_S)
    with deadline("a replayed graph", timeout=SHORT_S):
        graph.replay()
    torch.cuda.synchronize()
