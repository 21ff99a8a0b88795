"""Timing your own attention call with the guide's `Timer`, on every rank, and what its numbers can and cannot say.

    torchrun --nproc-per-node 2 examples/custom_profiling.py
    torchrun --nproc-per-node 2 examples/custom_profiling.py --seq-len 4096 --calls 50

`Timer` and the profiled call are the guide's, from `strobe.compat.assert_tree_attn`.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode


def measure(seq_len: int, calls: int) -> tuple[Timer, Timer]:
    """Time calls of one query over `seq_len` keys, 8 heads of 64, free-running and serialised in turns."""
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if use_cuda else torch.device("cpu")
    generator = torch.Generator(device).manual_seed(0)  # the same tensors on every rank
    q, k, v = (torch.randn(1, 8, rows, 64, generator=generator, device=device) for rows in (1, seq_len, seq_len))
    free, serialised = Timer(use_cuda=use_cuda), Timer(use_cuda=use_cuda, serialised=True)
    for number in range(3 + calls):
        for timer in (free, serialised):
            if number < 3:
                profiled_tree_attn_decode(q, k, v, timer, warmup=True)
                continue
            with timer.time_block("my_attention"):  # around the others: shown apart, and not summed with them
                profiled_tree_attn_decode(q, k, v, timer)
    return free, serialised


def run() -> None:
    """Free-running for the truth, serialised for what belongs to whom; rank 0 says both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--calls", type=int, default=20)
    chosen = parser.parse_args()
    if torch.cuda.is_available():
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("gloo")
    free, serialised = measure(chosen.seq_len, chosen.calls)
    if dist.get_rank() == 0:
        free.print_stats(rank=0)
        serialised.print_stats(rank=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
