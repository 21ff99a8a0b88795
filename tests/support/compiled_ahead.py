"""Compilation of kernels for a card that is not here, with a check of the shared memory: `compiled_ahead.py CARD KERNELS...`.

Everything is launched as on that card, in its configurations for that card, and Triton compiles it for that card. Fails if a
kernel does not compile, or asks for more shared memory than the card gives a program. Writes each kernel and what it asks for.
With `whole` among the kernels they are compiled down to the machine's instructions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from typing import Any, Final

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import launches_without_a_gpu as launches
from strobe.attention.dense.eight.api import IMPLS as EIGHTBIT
from strobe.attention.dense.eight.impl import triton as eight
from strobe.attention.sparse.impl import triton as fine
from strobe.attention.sparse.stages.impl import triton as stages
from strobe.attention.tree.impl import triton as messages
from strobe.attention.types import check
from strobe.core.device import Card
from strobe.eightbit.impl import triton as eightbit
from strobe.eightbit.rounded import Arriving, BlockBudget, unfilled
from strobe.eightbit.rounding import round_queries
from strobe.eightbit.rows import FP8_CAPABILITY
from strobe.eightbit.types import Quantized
from strobe.models.wan.kernels.impl import triton as wan


def nvidia(major: int, minor: int, shared_kib: int) -> tuple[GPUTarget, Card]:
    name, shared = f"sm_{major}{minor}", shared_kib << 10
    card = Card(vendor="nvidia", architecture=name, capability=(major, minor), name="not here", shared_bytes=shared)
    return GPUTarget("cuda", 10 * major + minor, 32), card


def amd(architecture: str, wave: int) -> tuple[GPUTarget, Card]:
    card = Card(vendor="amd", architecture=architecture, name="not here", shared_bytes=64 << 10)
    return GPUTarget("hip", architecture, wave), card


CARDS: Final = {
    "sm_80": nvidia(8, 0, 163), "sm_86": nvidia(8, 6, 99), "sm_89": nvidia(8, 9, 99), "sm_90": nvidia(9, 0, 227),
    "sm_100": nvidia(10, 0, 227), "sm_120": nvidia(12, 0, 99), "gfx90a": amd("gfx90a", 64), "gfx942": amd("gfx942", 64),
    "gfx1100": amd("gfx1100", 32),
}  # fmt: skip
"""Targets of Triton and their cards; what a program may take of shared memory is in CUDA's programming guide, table of compute
capabilities, and in AMD's, local data share."""
DTYPES: Final = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
asked: dict[str, int] = {}


def lowered_for(target: GPUTarget, card: Card, whole: bool) -> Callable[..., None]:
    """Return the passes behind Triton's front end, in memory; `whole`: down to machine instructions."""

    def lower(source: Any, backend: Any, options: Any, made: Any) -> None:
        metadata: dict[str, Any] = {"target": target, **options.__dict__}
        passes: dict[str, Callable[..., Any]] = {}
        backend.add_stages(passes, options, source.language)
        for name, each in passes.items():
            made = each(made, metadata)
            if name == "llir" and not whole:
                break
        name, shared = f"{'gluon' * source.fn.is_gluon()}{source.fn.fn.__name__}", metadata["shared"]
        told = f"{name} {source.constants}: {shared} bytes of shared memory, {card} has {card.shared_bytes}"
        assert shared <= card.shared_bytes, told
        asked[name] = max(asked.get(name, 0), shared)

    return lower


def around(card: Card, dtype: str) -> None:
    """Launch the stages around the fine stage, over a clip and a history, merging, and the kernels for libraries' results."""
    for gated, parts in ((True, 1), (False, 4)):
        launches.whole_operator(2, 128 if gated else 64, "raster", parts, gated=gated, own=gated)
    launches.over_a_history(DTYPES[dtype], kv_heads=1, block=64, parts=1)
    launches.by_means(DTYPES[dtype], 128, True)
    launches.merged(DTYPES[dtype], 4, True, 128, lse=True)
    launches.settled()
    out = torch.zeros(1, 3, 2, 128, dtype=DTYPES[dtype])
    messages.pack_message(out, torch.zeros(1, 2, 3), 136)


def layers(card: Card, dtype: str) -> None:
    """Launch the kernels of a Wan layer, with those in FP8 where the card has the format."""
    launches.turned(DTYPES[dtype], heads=12)
    launches.to_a_text(DTYPES[dtype], heads=2)
    launches.turned_by_time(DTYPES[dtype], layers=2, tokens=10)
    q, text = torch.zeros(1, 130, 2, 128, dtype=DTYPES[dtype]), torch.zeros(1, 100, 2, 128, dtype=DTYPES[dtype])
    wan.text_attention(q, text, text, torch.ones(1, dtype=torch.int32))
    x, row = torch.zeros(1, 8, 1536, dtype=DTYPES[dtype]), torch.zeros(1, 1, 1536, dtype=DTYPES[dtype])
    wan.rms_norm(x, torch.zeros(1536), 1e-6)
    formats = [torch.int8]
    if card.capability >= FP8_CAPABILITY:
        formats.append(torch.float8_e4m3fn)
        wan.gelu_quantize(torch.zeros(1, 8, 8960, dtype=DTYPES[dtype]))
    for fp8 in (False, True)[: len(formats)]:
        wan.norm(x, x, row, row, row, True, 1e-6, fp8)
    for each in formats:
        eightbit.quantize_rows(x, each)
        kept = Quantized(values=torch.zeros(2, 1, 9, 3, 128, dtype=each), scale=torch.zeros(2, 1, 9, 3, 1))
        token = torch.zeros(1, 4, 3, 128, dtype=DTYPES[dtype])
        eightbit.store_rows((token, token), torch.arange(4), kept)
        eightbit.expand_rows(kept, torch.zeros(2, 1, 9, 3, 128, dtype=DTYPES[dtype]))


def in_eight_bits(card: Card, dtype: str) -> None:
    """Launch attention in eight bits by both of its kernels, with all keys at once and in parts, and by lists of blocks."""
    q, k, v = (torch.zeros(1, length, 2, 128, dtype=DTYPES[dtype]) for length in (300, 600, 600))
    kept = unfilled(k, v, 1.0)
    new = Arriving(k=k, v=v, rows=torch.arange(600), run=600)
    for with_lse in (False, True):
        spec = check(q, k, v, None, with_lse)
        rounded = round_queries(q, kept, spec.softmax_scale, new=new, with_taken=with_lse, impl="triton")
        for each, blocks in product(EIGHTBIT[:2], (None, torch.zeros(1, 2, 3, 2, dtype=torch.int32))):
            each.run(rounded, kept, spec, blocks)
    eight.best_blocks(rounded, kept, BlockBudget(number=2, always=torch.zeros(5, dtype=torch.bool)))


def main(name: str, *kernels: str) -> None:
    target, card = CARDS[name]
    driver.set_active(launches.driver_of(target))
    launches.pretend(launches.compiled_by(target, lowered_for(target, card, "whole" in kernels)))
    for place in (fine, stages):
        place.card_of = lambda _: card  # type: ignore[attr-defined]
    for each in kernels:
        what, *options = each.split(":")
        if what == "fine":
            dtype, width, block, kind = options
            given = (None, True) if kind == "ragged" else (2, False)
            launches.given_selection(DTYPES[dtype], *given, int(width), int(block), (None,))
        elif what == "around":
            around(card, *options)
        elif what == "layers":
            layers(card, *options)
        elif what == "eight":
            in_eight_bits(card, *options)
    for kernel, shared in sorted(asked.items()):
        sys.stdout.write(f"{kernel} {shared}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
