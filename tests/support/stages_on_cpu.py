"""The fused stages, compared with the plain ones in Triton's interpreter: `TRITON_INTERPRET=1 python stages_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. On a GPU: `python stages_on_cpu.py cuda`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from strobe.attention.impls import MISSING
from strobe.attention.sparse import launch as launching
from strobe.attention.sparse import video, video_plan
from strobe.attention.sparse.coarse import Estimator, Forced, select_blocks
from strobe.attention.sparse.impl import triton as fine_stage
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.stages.impl import prepared
from strobe.attention.sparse.stages.impl import triton as stages
from strobe.attention.sparse.stages.impl.triton import take
from strobe.attention.sparse.stages.types import SelectionSpec
from strobe.attention.sparse.tiled import fuses, rotate
from strobe.attention.sparse.video import VideoAttentionOutput, video_sparse_attention
from strobe.attention.sparse.video_plan import VideoOptions, filled, plan_of, written
from strobe.core.errors import StrobeError
from strobe.core.tolerances import tolerance

CASES: tuple[dict[str, Any], ...] = (
    {"grid": (3, 5, 6), "topk": 2},
    {"grid": (3, 5, 6), "topk": (1, 2, 3, 2, 1, 4), "gated": True, "rotated": True, "forced": Forced(own=True), "heads": (6, 6)},
    {"grid": (5, 6, 7), "topk": 3, "coarse": True, "estimator": Estimator(parts=4), "heads": (6, 2)},
    {"grid": (4, 5, 9), "tile": (2, 8, 8), "topk": 2, "gated": True, "layout": "tiled"},
    {"grid": (3, 5, 6), "topk": 1, "layout": "tiled"},
    {"grid": (2, 5, 6), "kv_grid": (5, 5, 6), "topk": 3, "gated": True, "forced": Forced(first_frames=1, last_frames=1)},
    {"grid": (6, 9, 9), "tile": "auto", "topk": 5, "rotated": True, "sliced": True},
    {"grid": (4, 9, 17), "tile": (4, 8, 8), "topk": 2, "gated": True, "rotated": True},
    {"grid": (5, 6, 7), "topk": 2, "pool_skipped": True, "rotated": True, "heads": (4, 2)},
    {"grid": (3, 5, 6), "topk": 1, "pool_skipped": True, "layout": "tiled", "estimator": Estimator(parts=4)},
    {"grid": (4, 9, 17), "tile": (4, 8, 8), "topk": 6, "pool_skipped": True, "sliced": True},
)
SHARES: tuple[dict[str, Any], ...] = (
    {"grid": (5, 6, 7), "share": 0.4, "gated": True, "rotated": True, "forced": Forced(own=True), "heads": (4, 2)},
    {"grid": (3, 5, 6), "share": 0.6, "layout": "tiled", "estimator": Estimator(parts=4), "pool_skipped": True},
)
"""Calls whose counts no host knows, so that a compiler takes their stages apart."""
AGAIN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"grid": (2, 5, 6), "kv_grid": (3, 5, 6), "topk": 2, "gated": True, "forced": Forced(last_frames=1)}, "reference"),
    ({"grid": (3, 4, 5), "topk": 1, "gated": True, "rotated": True, "sliced": True, "forced": Forced(own=True)}, "triton"),
    ({"grid": (3, 4, 5), "topk": 2, "rotated": True, "heads": (4, 2), "return_lse": False}, "triton"),
    ({"grid": (3, 4, 4), "topk": (1, 2), "coarse": True, "tile": (2, 4, 4)}, "reference"),
    ({"grid": (3, 4, 4), "topk": 1, "estimator": Estimator(parts=4)}, "reference"),
    ({"grid": (3, 4, 4), "topk": 1, "layout": "tiled", "gated": True}, "reference"),
)
"""Calls that are made more than once, and their fine stage."""


def run(
    case: dict[str, Any], device: str, dtype: torch.dtype, *, fused: bool, through: Callable[..., Any] = video_sparse_attention,
    probe: int = 3, seed: int = 0, impl: str = "reference",
) -> VideoAttentionOutput:  # fmt: skip
    """Run one call through a function; with a gradient asked for, the plain stages run."""
    usual = {"heads": (2, 2), "layout": "raster", "gated": False, "rotated": False, "sliced": False, "wide": 32}
    options, names = {"tile": (4, 4, 4), "return_lse": True} | usual | case, usual.keys()
    heads, layout, gated, rotated, sliced, width = (options.pop(name) for name in names)
    generator = torch.Generator().manual_seed(len(str(case)) + seed)
    layouts = [tile_layout(options["grid"], options["tile"])] * 2
    rows = [found.num_rows if layout == "tiled" else found.num_tokens for found in layouts]
    if "kv_grid" in options:
        rows[1] = options["kv_grid"][0] * options["kv_grid"][1] * options["kv_grid"][2]

    def draw(length: int, number: int) -> torch.Tensor:
        wide = torch.randn(2, length, number, 2 * width if sliced else width, generator=generator).to(device, dtype)
        return wide[..., :width] if sliced else wide

    q, k, v = draw(rows[0], heads[0]), draw(rows[1], heads[1]), draw(rows[1], heads[1])
    if layout == "tiled":
        padding = layouts[0].tokens(device) == layouts[0].num_tokens
        q[:, padding] = float("nan")
        k[:, padding], v[:, padding] = 7.0, -3.0
    gate = draw(rows[0], heads[0]) if gated else None
    angles = torch.rand(rows[0], width // 2, generator=generator).to(device) * 6
    if sliced:  # tables as diffusers' Wan has them: every angle twice
        angles = angles.repeat_interleave(2, dim=1)
    rope = (angles.cos()[:, :: 1 + sliced], angles.sin()[:, sliced :: 1 + sliced]) if rotated else None
    q.requires_grad_(not fused)
    options |= {"q_layout": layout, "kv_layout": layout, "gate": gate, "rope": rope, "impl": impl}
    return through(q, k, v, **options, probe=probe)


def compare(case: dict[str, Any], device: str, dtype: torch.dtype) -> None:
    """Check that both select the same tiles, and agree up to the rounding of the dtype."""
    found, expected = (run(case, device, dtype, fused=fused) for fused in (True, False))
    assert expected.out.requires_grad and not found.out.requires_grad
    assert torch.equal(found.selection.counts, expected.selection.counts), case
    pairs = zip(found.selection.indices.unbind(-1), expected.selection.indices.unbind(-1), strict=True)
    for place, (got, want) in enumerate(pairs):
        used = place < expected.selection.counts
        assert torch.equal(got[used], want[used]), case
    limit = {torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 4e-2}[dtype]
    for got, want in ((found.out, expected.out), (found.lse, expected.lse), (found.recall, expected.recall)):
        torch.testing.assert_close(got, want.detach(), atol=limit, rtol=limit)


def compare_compiled(case: dict[str, Any], device: str) -> None:
    """Check that a compiled call is one operator in one graph, and gives what the call gives uncompiled, bit by bit."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(video_sparse_attention, fullgraph=True, backend=backend)
    found, expected = (
        run(case, device, torch.float32, fused=True, through=each, probe=0) for each in (compiled, video_sparse_attention)
    )
    assert len(graphs) == 1 and torch.ops.strobe.video_sparse_attention.default in graphs[0], graphs
    assert torch.ops.strobe.block_sparse_forward.default not in graphs[0], graphs
    assert torch.equal(found.out, expected.out) and torch.equal(found.lse, expected.lse), case
    assert torch.equal(found.selection.counts, expected.selection.counts), case
    used = torch.arange(found.selection.indices.shape[-1], device=device) < expected.selection.counts[..., None]
    assert torch.equal(found.selection.indices[used], expected.selection.indices[used]), case
    assert found.selection.uniform_count == expected.selection.uniform_count


class Addressed:
    """An interpreted kernel whose first launch gives a variant, as that of a compiled one: it is launched by addresses alone."""

    launches = 0

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, num_warps: int) -> Any:
            self.kernel[grid](*arguments, num_warps=num_warps)
            tensors = [getattr(each, "base", each) for each in arguments]
            return Addressed.Variant(self.kernel, [each.dtype if isinstance(each, torch.Tensor) else None for each in tensors])

        return launch

    class Variant:
        function = packed_metadata = None

        def __init__(self, kernel: Any, kinds: list[torch.dtype | None]) -> None:
            self.kernel, self.kinds = kernel, kinds

        def run(self, *_: Any) -> None:
            raise AssertionError("only Triton itself launches so")

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any) -> None:
                Addressed.launches += 1
                found = list(arguments)
                for place, kind in enumerate(self.kinds):
                    given = found[place]
                    if kind is not None and given is not None:
                        address = given if isinstance(given, int) else given.base.data_ptr()
                        there = torch.frombuffer((ctypes.c_char * 16).from_address(address), dtype=kind)
                        found[place] = (
                            there
                            if given is address
                            else launching.descriptor(there, (given.shape, given.strides), given.block_shape)
                        )
                self.kernel[grid](*found, num_warps=1)

            return launch


@contextmanager
def kept_variants() -> Iterator[None]:
    """Within it interpreted kernels are kept and launched as compiled ones are."""
    launchers = (stages.TILE, stages.SCORE, stages.COARSE, stages.SELECT, stages.FINISH, fine_stage._FORWARD)
    kernels, known = [each._kernel for each in launchers], launching.known_triton
    launching.known_triton = lambda: False
    for each, kernel in zip(launchers, kernels, strict=True):
        each._kernel = Addressed(kernel)
    try:
        yield
    finally:
        launching.known_triton = known
        for each, kernel in zip(launchers, kernels, strict=True):
            each._kernel = kernel
            each._variants.clear()


def poisoned(device: torch.device) -> Callable[..., torch.Tensor]:
    """Allocate as prepared calls do; what is not written then is NaN, or a number that no index may be."""
    empty = launching.empty_on(device)

    def filled(*place: Any) -> torch.Tensor:
        found = empty(*place)
        return found.fill_(float("nan") if found.dtype.is_floating_point else 1 << 29)

    return filled


def compare_prepared(case: dict[str, Any], device: str, impl: str) -> None:
    """Check that a call that was prepared gives, of other values, what the same call gives without, bit by bit.

    Whether it was prepared must be as expected: not in tile order, nor with several parts of a tile.
    """

    def called(seed: int) -> VideoAttentionOutput:
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        with torch.no_grad():
            return run(case, device, dtype, fused=True, probe=0, seed=seed, impl=impl)

    prepares, expected, found = video.prepare, [], []
    calls = []
    for keep in (False, True):
        video_plan._SEEN.clear()
        video_plan._kept.cache_clear()
        calls = []
        video.prepare = lambda *given: calls.append(prepares(*given)) or calls[-1] if keep else None  # noqa: B023
        empty_on, prepared.empty_on = prepared.empty_on, poisoned
        try:
            expected, found = found, [called(seed) for seed in (0, 1, 0)]
        finally:
            video.prepare, prepared.empty_on = prepares, empty_on
    assert len(calls) == 1, "a call that is found again is prepared once"
    is_prepared = any(each is not None for each in calls)
    assert is_prepared == (case.get("layout") != "tiled" and "estimator" not in case), (case, calls)
    for place, each in enumerate(found):
        want = expected[place]
        assert torch.equal(each.out, want.out), (case, place)
        assert (each.lse is None and want.lse is None) if "return_lse" in case else torch.equal(each.lse, want.lse), (case, place)
        used = torch.arange(want.selection.indices.shape[-1], device=device) < want.selection.counts[..., None]
        assert torch.equal(each.selection.indices[used], want.selection.indices[used]), (case, place)
        assert torch.equal(each.selection.counts, want.selection.counts)
        assert each.selection.uniform_count == want.selection.uniform_count
        assert each.selection.index_bound == want.selection.index_bound


def compare_operator(case: dict[str, Any], device: str) -> None:
    """Check that the operator finds the call that it has prepared, by what its tensors are like, and that it gives the same."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def given(seed: int) -> tuple[list[torch.Tensor | None], VideoOptions]:
        def taken(*tensors: torch.Tensor, gate: Any, rope: Any, **options: Any) -> Any:
            return [*tensors, gate, *(rope or (None, None))], VideoOptions(**options)

        return run(case, device, dtype, fused=True, through=taken, probe=0, seed=seed, impl="triton")  # type: ignore[return-value]

    def compare(tensors: list[Any]) -> None:
        out, lse, indices = operator(*tensors, text)
        q, k, v, gate, cos, sin = tensors
        expected = video._attend(q, k, v, gate, None if cos is None else (cos, sin), options)
        assert torch.equal(out, expected.out) and torch.equal(indices, expected.selection.indices)
        assert lse.numel() == 0 if expected.lse is None else torch.equal(lse, expected.lse)

    operator, (first, options), (second, _), attend = (
        torch.ops.strobe.video_sparse_attention.default,
        given(0),
        given(1),
        video._attend,
    )
    q, k, v, gate, cos, sin = first
    asked = video._call_of(q, k, v, gate, None if cos is None else (cos, sin), options)  # type: ignore[arg-type]
    text = written(filled(asked.options, plan_of(asked, keep=True)))
    video._READY.clear()
    with torch.no_grad():
        for tensors in (first, first, second):
            compare(tensors)
        video._attend = lambda *_: 1 / 0  # type: ignore[assignment,return-value]
        operator(*second, text)
        video._attend = attend
        apart = [None if each is None else each.transpose(0, 1).contiguous().transpose(0, 1) for each in second[:4]]
        for tensors in ([*apart, cos, sin], [*apart, cos, sin], second):
            compare(tensors)
        compare([q, k, k, gate, cos, sin])
    with torch.inference_mode():
        compare(given(0)[0])
    with torch.autograd.forward_ad.dual_level(), suppress(StrobeError):
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))  # type: ignore[arg-type]
        out = operator(dual, k, v, gate, cos, sin, text)[0]
        raise AssertionError(f"no tangent, no word: {torch.autograd.forward_ad.unpack_dual(out).tangent}")
    ((*kept,),) = video._READY.values()
    assert len(kept) >= 2 and len({id(each[1]) for each in kept}) == 2, "one of each arrangement"


def compare_rotation(rows: int, heads: tuple[int, int], twice: bool, device: str) -> None:
    """Check that rotating both in one kernel gives what the plain rotation gives, which a gradient asks for."""
    generator = torch.Generator().manual_seed(rows)
    q, k = (torch.randn(2, rows, number, 32, generator=generator).to(device) for number in heads)
    angles = torch.rand(rows, 32 if twice else 16, generator=generator).to(device) * 6
    rope = (angles.cos()[:, :: 1 + twice], angles.sin()[:, twice :: 1 + twice])
    assert fuses(q.device, q.dtype, 32)
    found, expected = rotate(q, k, rope), rotate(q.requires_grad_(), k, rope)
    assert expected[0].requires_grad and not found[0].requires_grad
    limit = tolerance("rounding", "float32")
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want.detach(), atol=limit, rtol=limit)


def compare_selection(columns: int, device: str) -> None:
    """Check that scores with ties, infinities and NaN give the same tiles as a stable sort."""
    generator = torch.Generator().manual_seed(columns)
    scores = torch.randn(2, 3, 4, columns, generator=generator).mul(2).round().div(2)
    scores[0, 0, 1] = 0.0
    scores[0, 1, 0, ::3] = float("-inf")
    scores[0, 1, 1, columns // 2] = float("nan")
    scores[1, 2, 3, columns // 3] = float("inf")
    scores = torch.where(scores == 0.5, -0.0, scores).to(device)
    forced = (torch.rand(4, columns, generator=generator) < 0.1).to(device)
    for numbers in ((1, 1, 1), (1, max(1, columns // 2), columns)):
        for must in (None, forced):
            want, expected = select_blocks(scores, numbers, must)
            wish = SelectionSpec(softmax_scale=1.0, parts=1, per_head=numbers, counts=expected, forced=must, coarse=False)
            used = torch.arange(max(numbers), device=device) < expected[..., None]
            for given in (scores, torch.nn.functional.pad(scores, (0, 16 - columns % 16), value=float("inf"))):
                assert torch.equal(take(given, columns, wish)[used], want[used]), (columns, numbers, must is None)


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    if sys.argv[2:] == ["two"]:
        for case in CASES[:2]:
            compare(case, place, torch.float32)
        sys.exit()
    for case in (*CASES, *SHARES):
        compare(case, place, torch.float32)
    for dtype in (torch.float16,) if place == "cpu" else (torch.float16, torch.bfloat16):
        for case in CASES[1:2] if place == "cpu" else CASES:
            compare(case, place, dtype)
    for case in CASES:
        compare_compiled(case, place)
    if place == "cuda":
        for case, _ in AGAIN:
            for impl in (each for each in ("triton", "cudnn", "fa4") if MISSING[each] is None):
                compare_prepared(case | {"wide": 64}, place, impl)
        for case in (case for case, impl in AGAIN if impl == "triton"):
            compare_operator(case | {"wide": 64}, place)
    else:
        with kept_variants():
            for case, impl in AGAIN:
                compare_prepared(case, place, impl)
                if impl == "triton":
                    compare_operator(case, place)
        assert Addressed.launches > 50, Addressed.launches
    for rows, heads, twice in ((1, (2, 2), False), (63, (2, 1), True), (100, (1, 3), True), (256, (2, 2), False)):
        compare_rotation(rows, heads, twice, place)
    for columns in (1, 7, 65) if place == "cpu" else (1, 7, 65, 1025, 5000):
        compare_selection(columns, place)
