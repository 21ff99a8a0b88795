"""`sparsify`, and the handle that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from strobe.attention.explain import components_of
from strobe.attention.sparse.coarse import Forced, budget, forced_blocks
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.types import expect, traced
from strobe.core.device import uncompiled
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers.families import Layer, TransformerFamily, find_transformers, is_known
from strobe.integrations.diffusers.forward import (
    TOLD,
    Pass,
    Seen,
    SparseOptions,
    Triple,
    bare,
    begin,
    begun,
    grid_of,
    name_of,
    numbers_of,
    step_of,
)
from strobe.integrations.diffusers.gates import NAME as GATE
from strobe.integrations.diffusers.gates import GateSource, find_gates, put_gates, trained_sparsity
from strobe.integrations.diffusers.keep import (
    Calibration,
    model_hash,
    place_of,
    read_calibration,
    tiles_that_keep,
    write_calibration,
)
from strobe.integrations.diffusers.processors import SparseProcessor, heads_of
from strobe.integrations.diffusers.report import LayerReport, SparseReport

UNMEASURED = "not measured: sparse attention without trained gates; compare with the dense pipeline before you rely on it"
_FREE = Forced()
_PART = "_strobe_part"
"""Attribute of a sparse transformer, for `restore`."""


def sparsify(
    pipe: Any,
    *,
    sparsity: float | Literal["auto"] = "auto",
    tile: Iterable[int] | int | Literal["auto"] | None = None,
    impl: str = "auto",
    gates: str | Path | Mapping[str, Any] | None = "auto",
    dense_steps: int | Iterable[int] = 0,
    dense_layers: int | Iterable[int] = 0,
    dense_frames: int | Iterable[int] = 0,
    forced: Forced = _FREE,
    keep: float | str | Path | None = None,
    pool_skipped: bool = False,
) -> SparseHandle:
    """Make the video self-attention of a diffusers pipeline, or of one transformer, sparse, until `restore()`.

    Wan 2.1 and 2.2 (both experts), LTX-2, HunyuanVideo, HunyuanVideo 1.5 and Cosmos. It goes through attention processors and two
    hooks; whatever else the pipeline has, LoRA, offload, compilation, tiling of the VAE, stays as it is.

    Args:
        pipe: a pipeline, or a transformer.
        sparsity: share of the key tiles that a sparse layer skips; `auto`: what the gates were trained with, 0.9 without gates. 0
            is dense attention by strobe, for HunyuanVideo without the text's padding.
        tile: as in `video_sparse_attention`; None: (4, 4, 4) with gates, `auto` without.
        impl: of the fine stage, as in `video_sparse_attention`.
        gates: trained gates: `auto` looks where the transformer was loaded from; None takes none; else the checkpoint's folder, a
            `.safetensors` file, or tensors by name; for a pipeline with several transformers also a mapping by component.
        dense_steps: denoise steps, counted from 0, in which all layers are dense: the first so many, or those listed. The
            scheduler of the pipeline that is calling counts; other callers tell the step, or are refused.
        dense_layers: layers, counted from 0, that are always dense: the first so many, or those listed. With gates a dense layer
            still adds the gated coarse output, as it was trained.
        dense_frames: frames of tokens whose queries attend to every token, counted from 0: the first so many, or those listed,
            where -1 is the last. That other queries see such frames, say with `forced`. Without gates.
        forced: key tiles that are selected whatever they score.
        keep: in place of `sparsity`, the share of the attention weight that `calibrate` wrote beside the checkpoint, or its file:
            a number of tiles for each head of a layer in a step, which the host knows. The tile and the forced tiles of the
            calibration are taken.
        pool_skipped: as in `video_sparse_attention`, without gates.

    Raises:
        ConfigError: no supported transformer, one that is sparse already, an option that is not possible, or a calibration of
            another model.
        WeightsError: gates that do not fit, or that would not be used.
    """
    expect("forced", forced, Forced, "a strobe.Forced")
    parts = _dense_parts(pipe)
    sources = find_gates(gates, {name: (transformer, layers) for name, (transformer, _, layers) in parts.items()})
    calibration = None
    if keep is not None:
        if sparsity != "auto" or any(sources.values()):
            given = f"sparsity={sparsity}" if sparsity != "auto" else "trained gates, which have a sparsity of their own"
            raise ConfigError(f"keep: got {keep} beside {given}; give sparsity='auto' and gates=None")
        calibration = _calibration(keep, parts)
        tile, forced = _as_calibrated(calibration, tile, forced)
    frames = numbers_of("dense_frames", dense_frames, backward=True)
    plans = []
    for name, (transformer, family, layers) in parts.items():
        source = sources[name]
        if source is None:
            _check_no_gate(name, layers)
        if source is not None and (pool_skipped or frames or not family.gated):
            who = family.model.__name__ if not family.gated else "pool_skipped" if pool_skipped else "dense_frames"
            raise ConfigError(f"gates: {who} has no place for those of {source.where}; give gates=None")
        options = SparseOptions(
            sparsity=_sparsity(sparsity, source, layers) if calibration is None else calibration.sparsity_of(name),
            tile=_tile(tile, source),
            impl=impl,
            forced=forced,
            dense_steps=numbers_of("dense_steps", dense_steps),
            dense_layers=numbers_of("dense_layers", dense_layers, len(layers)),
            dense_frames=frames,
            pool_skipped=pool_skipped,
            kept=None if calibration is None else calibration.selected[name],
            tiles=0 if calibration is None else calibration.tiles,
        )
        plans.append((name, transformer, family, source, options, calibration))
    handle = _put_in(pipe, plans)
    if handle.unmeasured:
        warnings.warn_explicit(f"quality {UNMEASURED}", UserWarning, "strobe", 0)  # one line: there is no source to quote
    return handle


def calibrate(
    pipe: Any,
    call: Callable[[], object],
    *,
    keep: float,
    tile: Iterable[int] | int | Literal["auto"] = "auto",
    forced: Forced = _FREE,
    file: str | Path | None = None,
) -> Calibration:
    """Measure how many key tiles keep a share of the attention weight, in each head and denoise step, and write it to a file.

    The pipeline runs dense. A pass is measured with 64 queries of each head over all keys; of joint models over those of the
    video. `sparsify(pipe, keep=...)` reads the file. Calls of other threads are not measured; they compute as without it.

    Args:
        pipe: as for `sparsify`.
        call: runs the pipeline in this thread, for a few prompts, at one size and with one number of steps; 10 steps serve 50, by
            their place.
        keep: share of the attention weight, above 0 to below 1.
        tile: tokens of a tile, as in `video_sparse_attention`.
        forced: key tiles that are always selected; they count.
        file: where to write; by default `strobe_keep_0.95.json`, of the share, beside the weights of the first transformer.

    Raises:
        ConfigError: an option or a model that is not possible, or a call that does not run each transformer at one size.
    """
    _check_share(keep)
    expect("forced", forced, Forced, "a strobe.Forced")
    options = SparseOptions(
        sparsity=0.0, tile=_tile(tile, None), impl="auto", forced=forced, dense_steps=frozenset(), dense_layers=frozenset(),
        thread=get_ident(),
    )  # fmt: skip
    given = _dense_parts(pipe)
    for name, (_, _, own) in given.items():
        _check_no_gate(name, own)
    models = {name: model_hash(transformer, own) for name, (transformer, _, own) in given.items()}
    first, (transformer, _, _) = next(iter(given.items()))
    place = place_of(keep, first, transformer) if file is None else Path(file)
    with _put_in(pipe, [(name, each, family, None, options, None) for name, (each, family, _) in given.items()]) as handle:
        parts = handle._parts
        call()
    sizes = set().union(*(part.sizes for part in parts))
    if len(sizes) != 1 or not all(part.held for part in parts):
        ran = ", ".join(f"{steps} steps of grid {grid}" for grid, steps in sorted(sizes)) or "nothing"
        raise ConfigError(f"calibrate: the call ran {ran}; expected one size and number of steps, and every transformer to run")
    grid, steps = sizes.pop()
    layout = tile_layout(grid, options.tile)
    must = forced_blocks(forced, layout, layout, (layout.num_tiles,))
    fewest = 1 if must is None else int(must.sum(dim=-1).max())
    selected: dict[str, dict[int, dict[str, tuple[int, ...]]]] = {}
    shares: list[Tensor] = []
    for part in parts:
        chosen = selected[part.component] = {}
        for step, layers in sorted(part.held.items()):
            found = {layer: tiles_that_keep(held, keep, fewest) for layer, held in layers.items()}
            chosen[step] = {layer: numbers for layer, (numbers, _) in found.items()}
            shares += [of_heads for _, of_heads in found.values()]
    every = torch.stack(shares)
    calibration = Calibration(
        keep=keep, kept=every.mean().item(), worst=every.min().item(), models=models, grid=grid, tile=layout.tile, forced=forced,
        tiles=layout.num_tiles, steps=steps, selected=selected,
    )  # fmt: skip
    write_calibration(calibration, place)
    return calibration


def _put_in(pipe: Any, plans: Iterable[tuple[Any, ...]]) -> SparseHandle:
    """Make every part of a pipeline as planned, or none."""
    made: list[_SparsePart] = []
    with ExitStack() as undoing:  # where memory ends too, or somebody interrupts
        for plan in plans:
            made.append(_SparsePart(name_of(pipe), *plan))
            undoing.callback(made[-1].undo)
        undoing.pop_all()
    return SparseHandle(pipe, tuple(made))


def _check_no_gate(name: str, layers: tuple[Layer, ...]) -> None:
    if any(hasattr(layer.block, GATE) for layer in layers):
        raise ConfigError(f"gates: {name or 'the transformer'} holds a {GATE} that would not be used; load it without")


def _dense_parts(pipe: Any) -> dict[str, tuple[nn.Module, TransformerFamily, tuple[Layer, ...]]]:
    found = {name: (each, family, family.layers(each)) for name, (each, family) in find_transformers(pipe).items()}
    for name, (transformer, _, layers) in found.items():
        if hasattr(transformer, _PART) or any(isinstance(_processor(layer), SparseProcessor) for layer in layers):
            raise ConfigError(
                f"{name or type(transformer).__name__} is sparse already; call restore() on the handle of the first "
                "sparsify, or without it strobe.integrations.diffusers.restore(pipe)"
            )
    return found


def _check_share(keep: object) -> None:
    if not (isinstance(keep, float) and 0 < keep < 1):
        raise ConfigError(f"keep: got {keep!r}, expected a share of the attention weight above 0 to below 1, such as 0.95")


def _calibration(
    keep: float | str | Path, parts: Mapping[str, tuple[nn.Module, TransformerFamily, tuple[Layer, ...]]]
) -> Calibration:
    expect("keep", keep, (float, str, Path), "a share such as 0.95, or the file that calibrate wrote")
    if isinstance(keep, float):
        _check_share(keep)
    first, (transformer, _, _) = next(iter(parts.items()))
    place = place_of(keep, first, transformer) if isinstance(keep, float) else Path(keep)
    heads = {name: {layer.name: heads_of(layer.attn)[0] for layer in layers} for name, (_, _, layers) in parts.items()}
    found = read_calibration(place, heads)
    if isinstance(keep, float) and found.keep != keep:
        raise ConfigError(f"keep: {place} keeps {found.keep}, not {keep}; calibrate again")
    found.check_model({name: model_hash(each, layers) for name, (each, _, layers) in parts.items()}, place)
    return found


def _as_calibrated(calibration: Calibration, tile: Any, forced: Forced) -> tuple[Triple, Forced]:
    """Return the tile and the forced tiles that were calibrated, unless others were asked for."""
    wanted = calibration.tile if tile is None else tile_layout(calibration.grid, _tile(tile, None)).tile
    if wanted != calibration.tile or forced not in (_FREE, calibration.forced):
        known = f"tile={calibration.tile}, forced={calibration.forced}"
        raise ConfigError(
            f"keep: got tile={tile}, forced={forced} and a calibration with {known}; leave both out or calibrate again"
        )
    return calibration.tile, calibration.forced


def restore(pipe: Any) -> None:
    """Put a pipeline, or a transformer, back as it was before `sparsify`, where its handle is lost; one that is dense stays.

    It also finds what was compiled, sharded or wrapped since, and a copy of a sparse model.

    Raises:
        ConfigError: no supported transformer.
    """
    given = components_of(pipe).values()
    for each in given:
        part: _SparsePart | None = getattr(bare(each), _PART, None)
        if part is not None:
            part.undo()
    if not any(is_known(each) for each in given):
        find_transformers(pipe)  # says what it knows


def _sparsity(given: float | Literal["auto"], source: GateSource | None, layers: tuple[Layer, ...]) -> float:
    if given == "auto":
        return 0.9 if source is None else trained_sparsity(source, layers)
    if isinstance(given, str):
        raise ConfigError(f"sparsity: got {given!r}, expected 0 (dense) to below 1, or 'auto'")
    budget(None, given, 1, 1)
    return float(given)


def _tile(given: Iterable[int] | int | Literal["auto"] | None, source: GateSource | None) -> Any:
    if given is None:
        return "auto" if source is None else (4, 4, 4)
    tile = given if isinstance(given, (str, int)) else tuple(given)
    tile_layout((1, 1, 1), tile)  # refuses what is no tile
    return tile


def _processor(layer: Layer) -> Any:
    attn: Any = layer.attn
    return attn.processor


@torch.compiler.disable(reason="keep: an error that a compiler would swallow")  # type: ignore[untyped-decorator]
def _refuse_compiled() -> None:
    raise ConfigError("keep: layers and steps skip different shares, and each would compile again; give sparsity=")


class _SparsePart:
    """One sparse transformer of a pipeline. It belongs to the transformer: a copy of the model has its own."""

    def __init__(
        self,
        kind: str,
        component: str,
        transformer: Any,
        family: TransformerFamily,
        source: GateSource | None,
        options: SparseOptions,
        calibration: Calibration | None,
    ) -> None:
        self.calibration = calibration
        # of the calls that a calibration measures, all of one thread: by step and layer, and the sizes and numbers of steps
        self.held: dict[int, dict[str, Tensor]] = {}
        self.sizes: set[tuple[Triple, int]] = set()
        self.kind, self.component, self.transformer, self.family, self.options = kind, component, transformer, family, options
        self.layers, self.names = family.layers(transformer), family.names()
        self.seen = Seen()
        self.asked: dict[int, tuple[int, dict[str, list[Tensor]]]] = {}  # by thread: queries of its recalls, and where they go
        self.gates = () if source is None else put_gates(source, self.layers)  # what holds the gate of each layer
        self.processors: dict[str, SparseProcessor] = {}
        for number, layer in enumerate(self.layers):
            dense = number in options.dense_layers
            processor = family.processor(layer.name, _processor(layer), options, self.seen, dense=dense)
            processor.gate_owner = self.gates[number] if self.gates else None
            self.processors[layer.name] = processor
        # methods, which a copy of the model takes along with the part that they belong to
        self.hooks = (
            transformer.register_forward_pre_hook(self.before, with_kwargs=True),
            transformer.rope.register_forward_hook(self.turned),
        )
        self.put(self.processors)
        self.undone = False
        setattr(transformer, _PART, self)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a forward pass with the facts of this call."""
        if self.options.thread is not None and self.options.thread != get_ident():
            return
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        grid, text_lengths = self.family.facts(module.config, given)
        if grid != self.seen.grid:
            self.options.check_grid(grid)
        options, step, selected, held = self.options, None, None, None
        if self.calibration is not None or options.thread is not None:
            step, selected, held = self.calibrated(grid, given.get("attention_kwargs"))
        elif options.dense_steps:
            step, _ = step_of(module, given.get("attention_kwargs"), kind=self.kind, option="dense_steps")
        self.seen.grid, self.seen.device = grid, given["hidden_states"].device
        queries, recalls = self.asked.get(get_ident(), (0, {})) if self.asked else (0, {})
        begin(Pass(
            grid=grid, text_lengths=text_lengths, dense=step in options.dense_steps, queries=queries, recalls=recalls,
            selected=selected, held=held, dense_rows=options.dense_rows(grid),
        ))  # fmt: skip

    def calibrated(self, grid: Triple, kwargs: Any) -> tuple[int, Mapping[str, tuple[int, ...]] | None, dict[str, Tensor] | None]:
        """Return the step of a pass, the tiles of each layer's heads in it, and, while it is calibrated, where results go."""
        modules = (self.transformer, *(layer.block for layer in self.layers))
        if traced() or any(each._compiled_call_impl is not None for each in modules):
            _refuse_compiled()
        step, steps = step_of(self.transformer, kwargs, kind=self.kind, option="keep")
        if steps is None:
            raise ConfigError("keep: it is not known how many steps there are; give the scheduler: " + TOLD)
        if self.options.thread is not None:
            self.sizes.add((grid, steps))
            return step, None, self.held.setdefault(step, {})
        calibration, kept = self.calibration, self.options.kept
        assert calibration is not None and kept is not None
        if grid != calibration.grid:
            told = f"calibrated for {calibration.grid} tokens in (time, height, width), this call has {grid}"
            raise ConfigError(f"keep: {told}; calibrate at this size")
        at = step * calibration.steps // steps  # a run of more steps has more of them at each noise level
        return step, kept[min(kept, key=lambda each: abs(each - at))], None

    def turned(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Put the pass that has begun in the place of the rotary embedding, which all blocks receive."""
        running = begun()
        if running is None:
            return output
        running.pair = tuple(output)
        running.rope = self.family.processor.rope_of(running.pair)
        return running

    def put(self, processors: Mapping[str, Any]) -> None:
        """Set processors by the name of the layer; the others stay."""
        for layer in self.layers:
            if layer.name in processors:
                attn: Any = layer.attn
                attn.set_processor(processors[layer.name])

    def take_back(self) -> None:
        """Put back the processors that were replaced, except where others were set meanwhile."""
        mine = {layer.name: _processor(layer) for layer in self.layers if isinstance(_processor(layer), SparseProcessor)}
        self.put({name: processor.replaced for name, processor in mine.items()})

    def undo(self) -> None:
        if self.undone:
            return
        self.undone = True
        delattr(self.transformer, _PART)
        for hook in self.hooks:
            hook.remove()
        self.take_back()
        for owner in self.gates:
            delattr(owner, GATE)

    def report(self, grid: Triple | None) -> tuple[LayerReport, ...]:
        return tuple(self._layer(layer, self.seen.grid if grid is None else grid) for layer in self.layers)

    def _layer(self, layer: Layer, grid: Triple | None) -> LayerReport:
        processor, options = _processor(layer), self.options
        ours = isinstance(processor, SparseProcessor)
        sparsity = processor.usual_sparsity if ours else 0.0
        dense = sparsity == 0 and not self.gates
        impl, tile, selected, tiles = "" if ours else type(processor).__name__, None, None, None
        if grid is not None and ours:
            impl = processor.explain(layer.attn, grid).impl.name
            if not dense:
                layout = tile_layout(grid, options.tile)
                tile, tiles = layout.tile, layout.num_tiles
                selected = round((1 - sparsity) * tiles, 1) if options.kept else budget(None, sparsity, 1, tiles)[0]
        return LayerReport(
            component=self.component,
            layer=_name(layer),
            runs="replaced" if not ours else "dense" if sparsity == 0 else "sparse",
            impl=impl,
            tile=tile,
            selected=selected,
            tiles=tiles,
            gated=ours and bool(self.gates),
            sparsity=sparsity,
        )


class SparseHandle:
    """A sparse pipeline, until `restore()` or, as a context manager, until the end of the block.

    Args:
        pipe: what `sparsify` was given.
        parts: its transformers.
    """

    def __init__(self, pipe: Any, parts: tuple[_SparsePart, ...]) -> None:
        self.pipe, self._parts = pipe, parts

    def _check(self) -> None:
        if any(part.undone for part in self._parts):
            raise ConfigError("handle: the pipeline was restored; call sparsify again")

    def _check_processors(self) -> None:
        self._check()
        set_now = {_key(part, layer): _processor(layer) for part in self._parts for layer in part.layers}
        others = {name: type(each).__name__ for name, each in set_now.items() if not isinstance(each, SparseProcessor)}
        if others:
            layer, kind = next(iter(others.items()))
            raise ConfigError(
                f"handle: {len(others)} of {len(set_now)} layers are not sparse any more: other processors were set since "
                f"sparsify, first a {kind} in {layer}; restore() and call sparsify again"
            )

    @property
    def compiled(self) -> bool:
        """Whether a transformer, or any module of one, is compiled."""
        given = components_of(self.pipe).values()
        modules = (module for part in self._parts for module in part.transformer.modules())
        return any(hasattr(each, "_orig_mod") for each in given) or any(each._compiled_call_impl is not None for each in modules)

    @property
    def unmeasured(self) -> bool:
        """Whether any layer is sparse without trained gates, so that its effect on quality was never measured."""
        return any(not part.gates and part.options.sparsity > 0 for part in self._parts)

    @property
    def layers(self) -> dict[str, nn.Module]:
        """Attention modules of the layers, by component and layer."""
        return {_key(part, layer): layer.attn for part in self._parts for layer in part.layers}

    def restore(self) -> None:
        """Put the pipeline back as it was: the processors that were replaced, no hook, no gate. A LoRA loaded since stays."""
        for part in self._parts:
            part.undo()

    def report(self, grid: Iterable[int] | None = None) -> SparseReport:
        """Say what every layer runs and which share of the key tiles it sees. Nothing runs.

        Args:
            grid: tokens in (time, height, width); by default those of the last forward.

        Raises:
            ConfigError: the pipeline was restored.
        """
        self._check()
        asked = None if grid is None else grid_of(grid)
        steps = sorted({step for part in self._parts for step in part.options.dense_steps})
        known = [part.seen.grid for part in self._parts if part.seen.grid is not None]
        return SparseReport(
            layers=tuple(row for part in self._parts for row in part.report(asked)),
            grid=asked or (known[0] if known else None),
            dense_steps=tuple(steps),
            dense_frames=tuple(sorted(self._parts[0].options.dense_frames)),
            quality=self._quality,
        )

    @property
    def _quality(self) -> str:
        calibration = self._parts[0].calibration
        if calibration is not None:
            return f"{calibration}; clips not compared: do that before you rely on it"
        gated = any(part.gates for part in self._parts)
        return UNMEASURED if self.unmeasured else "that of the trained gates" if gated else "that of dense attention"

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Run the layers by diffusers' own processors inside this context.

        The whole transformer is, in every thread.

        Raises:
            ConfigError: the pipeline was restored, or other processors were set since.
        """
        self._check_processors()
        taken = [{layer.name: _processor(layer) for layer in part.layers} for part in self._parts]
        for part in self._parts:
            part.take_back()
        try:
            yield
        finally:
            for part, processors in zip(self._parts, taken, strict=True):
                if not part.undone:
                    now = {layer.name: _processor(layer) for layer in part.layers}
                    part.put({name: each for name, each in processors.items() if now[name] is each.replaced})

    @contextmanager
    def recalls(self, queries: int) -> Iterator[dict[str, list[Tensor]]]:
        """Measure, inside this context, the share of dense attention's mass in the selected tiles, `[B, H]` per sparse call.

        Queries of dense frames count as their tiles select. The calls are this thread's; a context inside this one takes its own.
        Compiled layers run uncompiled meanwhile: each adds to a list of its own, so no two could share a graph.

        Args:
            queries: of every head that it is measured with, evenly spaced.

        Raises:
            ConfigError: the pipeline was restored, or other processors were set since.
        """
        self._check_processors()
        found: dict[str, list[Tensor]] = {}
        mine = get_ident()
        around = [part.asked.get(mine) for part in self._parts]
        for part in self._parts:
            part.asked[mine] = queries, {}
        try:
            with uncompiled():
                yield found
        finally:
            for part, outer in zip(self._parts, around, strict=True):
                names = {layer.name: _key(part, layer) for layer in part.layers}
                found |= {names[name]: calls for name, calls in part.asked.pop(mine)[1].items()}
                if outer is not None:
                    part.asked[mine] = outer

    def __enter__(self) -> SparseHandle:
        self._check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def _name(layer: Layer) -> str:
    return layer.name.removesuffix(".processor")


def _key(part: _SparsePart, layer: Layer) -> str:
    return f"{part.component}.{_name(layer)}" if part.component else _name(layer)
