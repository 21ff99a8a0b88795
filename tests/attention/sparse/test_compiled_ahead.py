"""Every Triton kernel compiles for the cards it is said to run on, and asks for no more than they have; no GPU is needed.

`make hunt` compiles every combination down to the machine's instructions (half an hour); here are those that ask for most.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from forked import needs_triton, run
from strobe.attention.sparse.launch import precision_of
from strobe.core.device import NO_GPU, Card

SCRIPT = Path(__file__).parents[2] / "support" / "compiled_ahead.py"
pytestmark = needs_triton

MOST = {
    "sm_80": ("fine:bf16:128:64:ragged",),
    "sm_89": ("fine:f32:128:64:ragged", "layers:f32"),
    "sm_100": ("fine:bf16:128:64:ragged",),
    "sm_120": ("fine:f32:128:64:ragged",),
    "gfx90a": ("fine:bf16:128:64:ragged", "around:bf16"),
}
CARDS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx1100")
KINDS = ("bf16", "f16", "f32")
EVERYTHING = {
    f"{card}-{dtype}": (
        "whole",
        *(f"fine:{dtype}:{width}:{block}:{kind}" for width in (32, 64, 128) for block, kind in ((64, "ragged"), (256, "whole"))),
        f"around:{dtype}",
        f"layers:{dtype}",
    )
    for card in CARDS
    for dtype in KINDS
}
ASKED = EVERYTHING if os.environ.get("HYPOTHESIS_PROFILE") == "hunt" else MOST


@pytest.mark.few(1)
@pytest.mark.parametrize("which", ASKED)
def test_no_kernel_asks_for_what_a_card_has_not(which: str, tmp_path: Path) -> None:
    changes = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    result = run(SCRIPT, which.partition("-")[0], *ASKED[which], environment=changes)
    assert result.returncode == 0, result.stderr[-3000:]
    asked = dict(line.split() for line in result.stdout.splitlines())
    assert asked.keys() >= {"_forward_kernel", "_d_query_kernel", "_d_key_kernel"} and int(asked["_d_key_kernel"]) > 0


@pytest.mark.parametrize(
    ("card", "rows"),
    [
        (NO_GPU, 64),
        (Card(vendor="nvidia", capability=(8, 0)), 32),
        (Card(vendor="nvidia", capability=(8, 9)), 32),
        (Card(vendor="nvidia", capability=(9, 0)), 64),
        (Card(vendor="nvidia", capability=(10, 3)), 64),
        (Card(vendor="nvidia", capability=(12, 0)), 32),
        (Card(vendor="amd", architecture="gfx90a"), 32),
    ],
)
def test_tiles_follow_the_card(card: Card, rows: int) -> None:
    from strobe.attention.sparse.impl.triton import rows_of

    assert rows_of(torch.bfloat16, card) == rows_of(torch.float16, card) == 2 * rows_of(torch.float32, card) == rows


def test_no_card_is_asked_for_a_precision_that_it_has_not() -> None:
    hopper = Card(vendor="nvidia", capability=(9, 0))
    assert (precision_of(torch.float32, hopper), precision_of(torch.bfloat16, hopper)) == ("tf32x3", "tf32")
    assert {precision_of(dtype, Card(vendor="amd")) for dtype in (torch.float32, torch.bfloat16)} == {"ieee"}
