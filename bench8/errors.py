# ruff: noqa: T201 -- a program that prints
"""Print the error of each recipe on real-like and on plain inputs, in float64 on a CPU: `python errors.py [FRAMES]`."""

from __future__ import annotations

import sys

import torch
from inputs import Shape, plain, real_like
from reference import Recipe, attend, error, exact, prepare

_RECIPES: dict[str, Recipe] = {
    "bf16 all": Recipe(qk="bf16", p="bf16", v="bf16", smooth_k=False, rotated=False),
    "QK int8 token/block, as it comes": Recipe(p="bf16", v="bf16", smooth_k=False, rotated=False),
    "QK int8 token/block, smoothed": Recipe(p="bf16", v="bf16", rotated=False),
    "QK int8 token/block, rotated": Recipe(p="bf16", v="bf16", smooth_k=False),
    "QK int8 token/token": Recipe(p="bf16", v="bf16", k_scale="token"),
    "QK int8 token/block 64": Recipe(p="bf16", v="bf16", block=64),
    "QK int8 token/block 128": Recipe(p="bf16", v="bf16"),
    "QK int8 block 64/block 128": Recipe(p="bf16", v="bf16", q_scale="block"),
    "QK int8 token/head": Recipe(p="bf16", v="bf16", k_scale="head"),
    "QK fp8 token/token, as it comes": Recipe(qk="fp8", p="bf16", v="bf16", k_scale="token", smooth_k=False, rotated=False),
    "QK fp8 token/token": Recipe(qk="fp8", p="bf16", v="bf16", k_scale="token"),
    "QK fp8 token/head": Recipe(qk="fp8", p="bf16", v="bf16", k_scale="head"),
    "P fp16, V fp16": Recipe(qk="bf16", p="fp16", v="fp16"),
    "P fp8, V bf16": Recipe(qk="bf16", v="bf16"),
    "P bf16, V fp8 not smoothed": Recipe(qk="bf16", p="bf16", smooth_v=False),
    "P bf16, V fp8": Recipe(qk="bf16", p="bf16"),
    "P fp8, V fp8 not smoothed": Recipe(qk="bf16", smooth_v=False),
    "P fp8, V fp8": Recipe(qk="bf16"),
    "P fp8, V fp8, exact sum": Recipe(qk="bf16", own_sum=False),
    "P bf16, V int8": Recipe(qk="bf16", p="bf16", v="int8"),
    "P int8 of row, V int8": Recipe(qk="bf16", p="int8", v="int8", local=False),
    "P int8 of block 128, V bf16": Recipe(qk="bf16", p="int8", v="bf16"),
    "P int8 of block 64, V int8": Recipe(qk="bf16", p="int8", v="int8", block=64),
    "P int8 of block 128, V int8": Recipe(qk="bf16", p="int8", v="int8"),
    "P int8 of block 128, V int8, exact sum": Recipe(qk="bf16", p="int8", v="int8", own_sum=False),
    "P int8 of block 128, V int8 not smoothed": Recipe(qk="bf16", p="int8", v="int8", smooth_v=False),
    "all: int8 token/token, P int8, V int8": Recipe(p="int8", v="int8", k_scale="token"),
    "all: int8 token/block, P int8, V int8": Recipe(p="int8", v="int8"),
    "all: int8 token/block, P fp8, V fp8": Recipe(),
    "all: int8 token/block, P fp8, V fp8, as it comes": Recipe(smooth_k=False, smooth_v=False, rotated=False),
    "all: fp8 token/head, P fp8, V fp8": Recipe(qk="fp8", k_scale="head"),
    "all: fp8 token/head, as it comes": Recipe(qk="fp8", k_scale="head", smooth_k=False, smooth_v=False, rotated=False),
}


def main() -> None:
    """Print one line per recipe: error of all heads on each kind of input, and of each head on the real-like one."""
    torch.set_num_threads(1)
    shape = Shape(frames=int(sys.argv[1]) if len(sys.argv) > 1 else 2, own=1, height=30, width=52, heads=5)
    cases = {}
    for name, draw in (("real", real_like), ("plain", plain)):
        q, k, v = (x[0] for x in draw(shape))
        q = q[::13].contiguous()
        expected, lse = exact(q, k, v, shape.dim**-0.5)
        cases[name] = (q, k, v, expected)
        s = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * shape.dim**-0.5
        p = (s - lse[..., None]).exp()
        few = (1 / p.square().sum(-1)).median(-1).values.tolist()
        spread = s.std(-1).mean(-1).tolist()
        share = (expected.norm(dim=(0, 2)) / v.double().norm(dim=(0, 2)) * (v.shape[0] / q.shape[0]) ** 0.5).tolist()
        print(f"{name}: {k.shape[0]} keys; by head: logits' std {_row(spread)}; keys seen {_row(few)}; |out|/|v| {_row(share)}")
    print(f"{'recipe':48} {'real %':>7} {'plain %':>7}   by head, real %")
    for name, recipe in _RECIPES.items():
        found, heads = [], []
        for q, k, v, expected in cases.values():
            out, _ = attend(prepare(q, k, v, recipe), recipe, shape.dim**-0.5)
            found.append(100 * error(out, expected))
            heads.append([100 * error(out[:, h], expected[:, h]) for h in range(shape.heads)])
        print(f"{name:48} {found[0]:7.2f} {found[1]:7.2f}   {_row(heads[0])}", flush=True)


def _row(numbers: list[float]) -> str:
    return " ".join(f"{number:.2f}" for number in numbers)


if __name__ == "__main__":
    main()
