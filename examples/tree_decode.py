"""The check that ring-attention-pytorch documents for its `tree_attn_decode`, with one import changed: ranks against one process.

    python examples/tree_decode.py --world-size 4 --seq-len 31
    python examples/tree_decode.py --world-size 8 --use-cuda

Every rank has the same query and the whole keys, each attends a chunk of them, and all have the whole result. Written for
`from ring_attention_pytorch import tree_attn_decode`; the call is the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor

from strobe.compat import tree_attn_decode

ALLOWED = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 2e-2}


def whole_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in one process, in float64."""
    scores = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    return scores.softmax(dim=-1) @ v.double()


def run_rank(rank: int, meeting: str, chosen: argparse.Namespace) -> None:
    """What each process does; rank 0 says what came out."""
    use_cuda, dtype = chosen.use_cuda, getattr(torch, chosen.dtype)
    if use_cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if use_cuda else "gloo", init_method=meeting, rank=rank, world_size=chosen.world_size)
    lengths = (1, chosen.seq_len, chosen.seq_len)
    tensors = [torch.randn(chosen.batch, chosen.heads, length, chosen.dim).to(dtype) for length in lengths]
    q, k, v = (each.cuda() if use_cuda else each for each in tensors)
    for each in (q, k, v):
        dist.broadcast(each, src=0)  # the same on every rank
    found = tree_attn_decode(q, k, v)
    error = (found.double() - whole_decode(q, k, v)).abs().max().reshape(1)
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    if rank == 0:
        verdict = "the same" if error.item() <= ALLOWED[dtype] else "NOT the same"
        sys.stdout.write(f"{chosen.world_size} ranks and one process are {verdict}: largest error {error.item():.2g}\n")
    dist.destroy_process_group()
    if error.item() > ALLOWED[dtype]:
        raise SystemExit(1)


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("world-size", 8), ("dim", 64), ("heads", 8), ("batch", 1), ("seq-len", 31)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=[str(dtype).removeprefix("torch.") for dtype in ALLOWED], default="float16")
    parser.add_argument("--use-cuda", action="store_true")
    chosen = parser.parse_args()
    if min(chosen.world_size, chosen.dim, chosen.heads, chosen.batch, chosen.seq_len) < 1:
        parser.error("--world-size, --dim, --heads, --batch and --seq-len are 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, args=(f"file://{folder}/ranks", chosen), nprocs=chosen.world_size)


if __name__ == "__main__":
    main()
