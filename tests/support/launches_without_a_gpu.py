"""All launches as on a GPU, without one: Triton's own binder and front end for compute capability 9.0; nothing runs.

The interpreter compiles nothing and takes arguments as they are; here each variant must pass Triton's type rules, and a launch
of a kept variant must hand over what its signature says. Each call is made twice, so that the second takes what was kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from strobe.attention.impls import Choice, Impl
from strobe.attention.sparse import history, video, video_plan
from strobe.attention.sparse.coarse import Estimator, Forced
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.impl import triton as fine
from strobe.attention.sparse.impl.entries_triton import kept_on_gpu
from strobe.attention.sparse.impl.padding_triton import settle_on_gpu_
from strobe.attention.sparse.impls import IMPLS
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.stages.impl import triton as stages
from strobe.attention.sparse.stages.types import Tiled
from strobe.attention.state import api as state_api
from strobe.attention.state.impl import triton as merging
from strobe.attention.types import AttentionOutput
from strobe.models.wan.kernels.impl import triton as wan

TARGET = GPUTarget("cuda", 90, 32)
launched: Counter[tuple[str, bool]] = Counter()


def driver_of(target: GPUTarget) -> Any:
    """Return a Triton driver with one imaginary device."""
    answers = {"get_current_device": lambda: 0, "get_current_stream": lambda _: 0, "get_current_target": lambda: target}
    return SimpleNamespace(**answers)


class Variant:
    """A stand-in for a compiled kernel, launched by Triton, which describes a launch and calls `run`, or directly."""

    function = packed_metadata = None

    def __init__(self, source: ASTSource) -> None:
        self.source, self.described = source, False

    def launch_metadata(self, *_: object) -> None:
        self.described = True

    def run(self, *arguments: Any) -> None:
        direct, self.described = not self.described, False
        self.check(arguments[9:], direct)  # after the grid, the stream, the function, its metadata and the hooks

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        assert len(grid) == 3
        return lambda *arguments: self.check(arguments, direct=True)

    def check(self, arguments: tuple[Any, ...], direct: bool) -> None:
        names = self.source.fn.arg_names
        for place, (name, given) in enumerate(zip(names, arguments, strict=True)):
            kind = self.source.signature[name]
            if kind == "constexpr":
                assert given == self.source.constants[(place,)], (name, given)
            elif kind.startswith("tensordesc"):
                assert type(given).__name__ == "TensorDescriptor", (name, given)
            else:
                wanted = (int, torch.Tensor) if kind[0] == "*" else float if kind == "fp32" else int
                assert isinstance(given, wanted), (name, kind, given)
        launched[self.source.fn.fn.__name__, direct] += 1


def compiled_by(target: GPUTarget, lower: Callable[..., None] = lambda *_: None) -> Callable[..., Variant]:
    """Return a replacement for Triton's compile step: its front end for a target, which checks the types, and then `lower`."""

    def compile_one(
        kernel: JITFunction[Any], key: str, signature: Any, device: int, constants: Any, options: Any, attributes: Any, _: bool
    ) -> Variant:
        source, backend, context = kernel.ASTSource(kernel, signature, constants, attributes), make_backend(target), ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        made = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
        lower(source, backend, options, made)
        found = kernel.device_caches[device][0][key] = Variant(source)
        return found

    return compile_one


def whole_operator(heads: int, block: int, layout: str, parts: int, gated: bool, own: bool) -> None:
    """Call the whole video operator once: all stages, and the forward kernel between them."""
    grid, tile = ((5, 9, 10), {64: (4, 4, 4), 128: (2, 8, 8)}[block]) if heads > 1 else ((4, 4, 4), (4, 4, 4))
    rows = tile_layout(grid, tile).num_rows if layout == "tiled" else grid[0] * grid[1] * grid[2]
    q, k, v, gate = (torch.zeros(1, rows, number, 64, dtype=torch.bfloat16) for number in (heads, 1, 1, heads))
    rope = (torch.zeros(rows, 32), torch.zeros(rows, 32)) if own else None
    options: dict[str, Any] = {"gate": gate if gated else None, "rope": rope, "estimator": Estimator(parts=parts)}
    options |= {"topk": 1 if heads == 1 else (1, 2), "forced": Forced(own=own), "q_layout": layout, "kv_layout": layout}
    video.video_sparse_attention(q, k, v, grid=grid, tile=tile, **options)


def given_selection(
    dtype: torch.dtype,
    count: int | None,
    ragged: bool,
    width: int = 64,
    block: int = 64,
    bounds: Sequence[int | None] = (None, 3),
) -> None:
    """Call the forward and backward kernels for a given selection."""
    q, k, v = (torch.zeros(1, 3 * block, heads, width, dtype=dtype) for heads in (2, 1, 1))
    counts, sizes = torch.full((1, 2, 3), count or 0, dtype=torch.int32), torch.full((3,), block, dtype=torch.int32)
    edges = {"q_sizes": sizes, "kv_sizes": sizes} if ragged else {}
    indices = torch.zeros(1, 2, 3, 2, dtype=torch.int32)
    for bound in bounds:
        known: dict[str, Any] = {"known_count": count, "known_bound": bound}
        selection = BlockSelection(indices=indices, counts=counts, block=block, **known, **edges)
        state = fine.forward(q, k, v, selection, 0.3)
        fine.backward(state, q, k, v, state, selection, 0.3)


def merged(dtype: torch.dtype, parts: int, ranked: bool, width: int, lse: bool) -> None:
    """Merge partial results of several parts; the last one is read at other rows."""
    states = [(torch.zeros(1, 100, 2, width, dtype=dtype), torch.zeros(1, 2, 100), None) for _ in range(parts)]
    rows = torch.arange(37) if ranked else None
    whole = states[-1][0][:, : 37 if ranked else 100], states[-1][1][:, :, : 37 if ranked else 100]
    states = [(out[:, : whole[0].shape[1]], some[:, :, : whole[0].shape[1]], None) for out, some, _ in states[:-1]]
    merging.merge([*states, (torch.zeros(1, 100, 2, width, dtype=dtype), torch.zeros(1, 2, 100), rows)], None, lse)
    merging.merge([(*whole, None)], AttentionOutput(out=whole[0], lse=whole[1]), lse)


def over_a_history(dtype: torch.dtype, kv_heads: int, block: int, parts: int) -> None:
    """Attend from two frames over `parts` dense parts and two slots of a ring."""
    layout, q_tiles = (tile_layout((frames, 9, 10), "auto", block) for frames in (1, 2))
    q = torch.zeros(1, 180, 2, 64, dtype=dtype)
    dense = [(torch.zeros(1, 90, kv_heads, 64, dtype=dtype),) * 2] * parts
    keys, tiles = torch.zeros(1, 2 * layout.num_rows, kv_heads, 64, dtype=dtype), 2 * layout.num_tiles
    means, sizes = torch.zeros(1, kv_heads, tiles, 64), layout.sizes().repeat(2)
    past = History(keys=keys, values=keys, means=means, sizes=sizes, num_tiles=tiles, block=block)
    history_attention(q, dense, past, q_tiles=q_tiles, sparsity=0.5)


def by_means(dtype: torch.dtype, width: int, ragged: bool) -> None:
    """Add the means of the tiles that are skipped."""
    q, k = (torch.zeros(1, 384, heads, width, dtype=dtype) for heads in (2, 1))
    sizes, means = torch.full((3,), 128, dtype=torch.int32), (torch.zeros(1, heads, 3, width) for heads in (2, 1, 1))
    indices, counts = torch.zeros(1, 2, 3, 1, dtype=torch.int32), torch.ones(1, 2, 3, dtype=torch.int32)
    selection = BlockSelection(indices=indices, counts=counts, block=128, q_sizes=sizes if ragged else None)
    fine = AttentionOutput(out=q, lse=torch.zeros(1, 2, 384))
    stages.add_skipped(fine, Tiled(q=q, k=k, v=k, means=tuple(means)), selection, 0.3)  # type: ignore[arg-type]


def turned(dtype: torch.dtype, heads: int) -> None:
    """Norm and rotate queries and keys of a pass: returned, and written to a cache."""
    packed, weight, rope = (torch.zeros(shape, dtype=dtype) for shape in ((1, 6, 3 * heads * 64), (heads * 64,), (6, 32, 2)))
    buffers, rows = [torch.zeros(1, 9, heads, 64, dtype=dtype) for _ in "kv"], torch.arange(6)
    wan.turn(packed, weight, weight, rope.float(), heads, 1e-6)
    wan.turn_and_write(packed[..., heads * 64 :].contiguous(), None, weight, rope.float(), *buffers, rows, 1e-6)
    wan.turn_and_write(packed, weight, weight, rope.float(), *buffers, rows, 1e-6)


def to_a_text(dtype: torch.dtype, heads: int) -> None:
    """Attend to a text, in one round and in several."""
    for rows, width in ((64, 64), (100, 24)):
        q, k, v = (torch.zeros(2, number, heads, width, dtype=dtype) for number in (130, rows, rows))
        wan.text_attention(q, k, v, torch.ones(2, dtype=torch.int32))


def turned_by_time(dtype: torch.dtype, layers: int, tokens: int) -> None:
    """Rotate the sink keys of all layers into the first rows of a ring, and in place."""
    keys, ring = (torch.zeros(layers, 1, number, 3, 128, dtype=dtype) for number in (tokens, 2 * tokens))
    wan.turn_keys(keys, torch.zeros(22, 2), ring[:, :, :tokens])
    wan.turn_keys(keys, torch.zeros(22, 2), keys)


def settled() -> None:
    """Keep the entries that a library takes, and settle the padding of its results."""
    sizes, seen = torch.full((3,), 64, dtype=torch.int32), torch.zeros(1, 2, 3, dtype=torch.int32)
    kept_on_gpu(torch.zeros(1, 2, 3, 5, dtype=torch.int32), seen, 4)
    for some, hidden in ((sizes, None), (None, (seen, seen)), (sizes, (seen, seen))):
        settle_on_gpu_(torch.zeros(1, 192, 2, 96), torch.zeros(1, 2, 192), some, 64, hidden)


def pretend(compiled: Callable[..., Any]) -> None:
    """Launch everything that a GPU would run, with `compiled` in place of Triton's compile step."""
    kernels = next(impl for impl in IMPLS if impl.name == "triton")
    none = Impl(
        name="none", refuses=lambda _: None, run=lambda q, *_: AttentionOutput(out=q, lse=q[..., 0].transpose(1, 2).float())
    )
    for place, name, instead in (
        (JITFunction, "_do_compile", compiled),
        (video_plan, "fuses", lambda *_: True),
        (history, "fuses", lambda *_: True),
        (state_api, "_runs", lambda *_: True),
        (video_plan, "chosen_impl", lambda *_: Choice(impl=kernels, passed_over=())),
        (history, "chosen_impl", lambda *_: Choice(impl=none, passed_over=())),
    ):
        setattr(place, name, instead)


if __name__ == "__main__":
    driver.set_active(driver_of(TARGET))
    pretend(compiled_by(TARGET))
    for _ in range(2):
        whole_operator(2, 64, "raster", 1, gated=False, own=False)
        whole_operator(2, 128, "raster", 1, gated=True, own=True)
        whole_operator(2, 64, "tiled", 1, gated=False, own=False)
        whole_operator(2, 64, "tiled", 4, gated=True, own=False)
        whole_operator(2, 64, "raster", 4, gated=False, own=False)
        whole_operator(1, 64, "raster", 1, gated=False, own=False)
        for dtype, count, ragged in ((torch.bfloat16, 2, True), (torch.float32, None, True), (torch.float16, 1, False)):
            given_selection(dtype, count, ragged)
        settled()
        for dtype, parts, ranked in ((torch.bfloat16, 3, True), (torch.float32, 4, False), (torch.float16, 1, True)):
            over_a_history(dtype, kv_heads=1 + parts % 2, block=128 if ranked else 64, parts=parts - 1)
            by_means(dtype, 128 if ranked else 32, ranked)
            turned(dtype, heads=parts)
            to_a_text(dtype, heads=parts)
            turned_by_time(dtype, layers=parts, tokens=5 * parts)
            merged(dtype, parts, ranked, 128 if ranked else 24, lse=parts > 1)
    by_triton = {"_turn_kernel", "_text_attention_kernel", "_turn_keys_kernel"}  # every launch is Triton's own
    names = {name for name, _ in launched}
    assert len(names) == 18 and all(launched[name, False] > 0 for name in names), launched
    assert all(launched[name, True] >= launched[name, False] for name in names - by_triton), launched
