# ruff: noqa: T201 -- a program that prints
"""Print the error when scales come from the first half of the keys, as a stream would set them, with `room` for larger ones."""

from __future__ import annotations

import torch
from inputs import Shape, plain, real_like
from reference import LIMIT, Prepared, Recipe, attend, error, exact, hadamard, rounded


def main() -> None:
    """Print one line per kind of inputs, format and room."""
    torch.set_num_threads(1)
    shape = Shape(frames=6, own=3, height=30, width=52, heads=5)
    for name, draw in (("real", real_like), ("plain", plain)):
        q, k, v = (x[0].double() for x in draw(shape))
        first, scale = k.shape[0] // 2, shape.dim**-0.5
        q = q[::39].contiguous()
        expected, _ = exact(q, k, v, scale)
        q, k = (x @ hadamard(shape.dim) for x in (q, k))
        k = k - k[:first].mean(0, keepdim=True)
        q_scale = q.abs().amax(-1, keepdim=True) / 127
        for pv in ("int8", "fp8", "bf16"):
            limit = LIMIT.get(pv)
            v_mean = v[:first].mean(0, keepdim=True) * (limit is not None)
            for room in (1.0, 1.25, 1.5, 2.0):
                k_scale = room * k[:first].abs().amax((0, 2), keepdim=True) / 127
                v_scale = torch.ones_like(v_mean)
                if limit:
                    v_scale = room * (v - v_mean)[:first].abs().amax(0, keepdim=True) / limit
                small = (rounded(q / q_scale, "int8"), rounded(k / k_scale, "int8"), rounded((v - v_mean) / v_scale, pv))
                given = Prepared(*small, q_scale, k_scale.expand(k.shape[0], -1, 1), v_scale, v_mean)
                out, _ = attend(given, Recipe(p=pv, v=pv, own_sum=False), scale)
                heads = " ".join(f"{100 * error(out[:, head], expected[:, head]):.2f}" for head in range(shape.heads))
                print(f"{name:5} {pv:4} room {room:4}: {100 * error(out, expected):.2f} %; by head {heads}", flush=True)


if __name__ == "__main__":
    main()
