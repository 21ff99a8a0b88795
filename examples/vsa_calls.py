"""Time the two ways to call video-sparse attention against each other, in one run: `python examples/vsa_calls.py --device cuda`.

Both get the same tokens in tile order and compute coarse plus fine: `strobe.video_sparse_attention`, and FastVideo's call
`strobe.compat.video_sparse_attn`. They share everything behind their arguments, so their times should be the same.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch

import strobe
from strobe.compat import video_sparse_attn


def main() -> None:
    """Draw tokens, check that both calls agree, time them and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", default="20x48x80", help="tokens in time, height and width")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--impl", default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()

    grid = tuple(int(size) for size in options.grid.split("x"))
    tiles = strobe.tile_layout(grid, (4, 4, 4))
    topk = max(1, round((1 - options.sparsity) * tiles.num_tiles))
    dtype = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    shape = (1, tiles.num_rows, options.heads, options.head_dim)
    q, k, v, gate = (torch.randn(shape, device=options.device, dtype=dtype) for _ in range(4))
    theirs = [tensor.transpose(1, 2).contiguous() for tensor in (q, k, v, gate)]  # [B, H, S, D], as FastVideo has them
    ours = [tensor.transpose(1, 2) for tensor in theirs]  # the same memory as [B, S, H, D]
    sizes = None if tiles.whole else tiles.sizes(options.device)

    def operator() -> torch.Tensor:
        found = strobe.video_sparse_attention(
            *ours[:3], grid=grid, topk=topk, gate=ours[3], q_layout="tiled", kv_layout="tiled", impl=options.impl
        )
        return found.out

    def foreign() -> torch.Tensor:
        return video_sparse_attn(
            *theirs[:3], sizes, sizes, topk=topk, block_size=(4, 4, 4), compress_attn_weight=theirs[3], impl=options.impl
        )

    torch.testing.assert_close(foreign().transpose(1, 2), operator())  # whose layouts differ
    functions = {"strobe.video_sparse_attention": operator, "strobe.compat.video_sparse_attn": foreign}
    found = strobe.compare(functions, rounds=options.rounds, device=options.device, tolerance=math.inf)
    for row in found:
        sys.stdout.write(f"{row.name:34} {row.min_ns / 1e6:8.3f} ms\n")
    row = found["strobe.compat.video_sparse_attn"]
    interval = "" if row.ratio_low is None else f" ({row.ratio_low:.3f} to {row.ratio_high:.3f})"
    sys.stdout.write(f"time of the operator / time of the foreign call: {row.ratio:.3f}{interval}, {row.verdict}\n")


if __name__ == "__main__":
    main()
