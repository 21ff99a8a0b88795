"""`sparsify`, and the handle that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from strobe.attention.explain import components_of
from strobe.attention.sparse.coarse import Forced, budget
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.types import expect
from strobe.core.errors import ConfigError, StrobeError
from strobe.integrations.diffusers.families import Layer, TransformerFamily
from strobe.integrations.diffusers.find import bare, find_transformers, is_known
from strobe.integrations.diffusers.forward import Pass, Seen, SparseOptions, Triple, begin, begun, grid_of, numbers_of
from strobe.integrations.diffusers.gates import NAME as GATE
from strobe.integrations.diffusers.gates import Gates, GateSource, find_gates, trained_sparsity
from strobe.integrations.diffusers.processors import SparseProcessor
from strobe.integrations.diffusers.report import LayerReport, SparseReport
from strobe.integrations.diffusers.steps import name_of, step_of

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
    forced: Forced = _FREE,
) -> SparseHandle:
    """Make the video self-attention of a diffusers pipeline, or of one transformer, sparse, until `restore()`.

    Wan 2.1 and 2.2 (both experts), LTX-2, HunyuanVideo and HunyuanVideo 1.5. It goes through attention processors and two hooks;
    whatever else the pipeline has, LoRA, offload, compilation, tiling of the VAE, stays as it is.

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
        forced: key tiles that are selected whatever they score.

    Raises:
        ConfigError: no supported transformer, one that is sparse already, or an option that is not possible.
        WeightsError: gates that do not fit, or that would not be used.
    """
    expect("forced", forced, Forced, "a strobe.Forced")
    found = find_transformers(pipe)
    for name, (transformer, family) in found.items():
        for layer in family.layers(transformer):
            if isinstance(_processor(layer), SparseProcessor):
                raise ConfigError(
                    f"{name or type(transformer).__name__} is sparse already; call restore() on the handle of the first "
                    "sparsify, or without it strobe.integrations.diffusers.restore(pipe)"
                )
    parts = {name: (transformer, family.layers(transformer)) for name, (transformer, family) in found.items()}
    sources = find_gates(gates, parts)
    plans = []
    for name, (transformer, family) in found.items():
        source, layers = sources[name], parts[name][1]
        if source is None and any(hasattr(layer.block, GATE) for layer in layers):
            raise ConfigError(f"gates: {name or 'the transformer'} holds a {GATE} that would not be used; load it without")
        if source is not None and not family.gated:
            raise ConfigError(f"gates: {family.model.__name__} has no place for those of {source.where}; give gates=None")
        options = SparseOptions(
            sparsity=_sparsity(sparsity, source, layers),
            tile=_tile(tile, source),
            impl=impl,
            forced=forced,
            dense_steps=numbers_of("dense_steps", dense_steps),
            dense_layers=numbers_of("dense_layers", dense_layers, len(layers)),
        )
        plans.append((name, transformer, family, source, options))
    made: list[_SparsePart] = []
    try:
        for plan in plans:
            made.append(_SparsePart(name_of(pipe), *plan))
    except StrobeError:
        for part in made:
            part.undo()
        raise
    handle = SparseHandle(pipe, tuple(made))
    if handle.unmeasured:
        warnings.warn_explicit(f"quality {UNMEASURED}", UserWarning, "strobe", 0)  # one line: there is no source to quote
    return handle


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
    ) -> None:
        self.kind, self.component, self.transformer, self.family, self.options = kind, component, transformer, family, options
        self.layers, self.names = family.layers(transformer), family.names()
        self.seen = Seen()
        self.queries, self.recalls = 0, dict[str, list[Tensor]]()
        self.gates = None if source is None else Gates(source, self.layers)
        self.processors: dict[str, SparseProcessor] = {}
        for number, layer in enumerate(self.layers):
            dense = number in options.dense_layers
            processor = family.processor(layer.name, _processor(layer), options, self.seen, dense=dense)
            processor.gate_owner = None if self.gates is None else self.gates.owners[number]
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
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        grid, text_lengths = self.family.facts(module.config, given)
        if grid != self.seen.grid:
            self.options.check_tile(grid)
            self.options.check_forced(grid)
        steps = self.options.dense_steps
        dense = bool(steps) and step_of(module, given.get("attention_kwargs"), kind=self.kind) in steps
        self.seen.saw(grid, given["hidden_states"].device, dense=dense)
        begin(Pass(grid, text_lengths, dense=dense, queries=self.queries, recalls=self.recalls))

    def turned(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Put the pass that has begun in the place of the rotary embedding, which all blocks receive."""
        running = begun()
        if running is None:
            return output
        running.pair = tuple(output)
        running.rope = self.family.processor.rope_of(running.pair)
        return running

    @property
    def others(self) -> dict[str, str]:
        """Layers whose processor somebody replaced since, and the class of the new one."""
        return {
            _name(layer): type(_processor(layer)).__name__
            for layer in self.layers
            if not isinstance(_processor(layer), SparseProcessor)
        }

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
        """Restore the transformer, once."""
        if self.undone:
            return
        self.undone = True
        delattr(self.transformer, _PART)
        for hook in self.hooks:
            hook.remove()
        self.take_back()
        if self.gates is not None:
            self.gates.remove()

    def report(self, grid: Triple | None) -> tuple[LayerReport, ...]:
        """Report what every layer runs over a grid."""
        return tuple(self._layer(layer, self.seen.grid if grid is None else grid) for layer in self.layers)

    def _layer(self, layer: Layer, grid: Triple | None) -> LayerReport:
        processor, options = _processor(layer), self.options
        ours = isinstance(processor, SparseProcessor)
        sparsity = processor.usual_sparsity if ours else 0.0
        dense = sparsity == 0 and self.gates is None
        impl, tile, selected, tiles = "" if ours else type(processor).__name__, None, None, None
        if grid is not None and ours:
            impl = processor.explain(layer.attn, grid).impl.name
            if not dense:
                layout = tile_layout(grid, options.tile)
                tile, tiles = layout.tile, layout.num_tiles
                selected = budget(None, sparsity, 1, tiles)[0]
        return LayerReport(
            component=self.component,
            layer=_name(layer),
            runs="replaced" if not ours else "dense" if sparsity == 0 else "sparse",
            impl=impl,
            tile=tile,
            selected=selected,
            tiles=tiles,
            gated=ours and self.gates is not None,
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

    @property
    def _restored(self) -> bool:
        return any(part.undone for part in self._parts)

    def _check(self) -> None:
        if self._restored:
            raise ConfigError("handle: the pipeline was restored; call sparsify again")

    def _check_processors(self) -> None:
        self._check()
        others = {f"{part.component}.{name}".lstrip("."): kind for part in self._parts for name, kind in part.others.items()}
        if others:
            layer, kind = next(iter(others.items()))
            raise ConfigError(
                f"handle: {len(others)} of {len(self.layers)} layers are not sparse any more: other processors were set since "
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
        return any(part.gates is None and part.options.sparsity > 0 for part in self._parts)

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
        seen = [part.seen for part in self._parts]
        nothing = any(each.ran_dense for each in seen) and not any(each.ran_sparse for each in seen)
        steps = sorted({step for part in self._parts for step in part.options.dense_steps})
        known = [each.grid for each in seen if each.grid is not None]
        return SparseReport(
            layers=tuple(row for part in self._parts for row in part.report(asked)),
            grid=asked or (known[0] if known else None),
            dense_steps=tuple(steps),
            note="every step so far was dense: no sparse layer has run; " if nothing else "",
            quality=UNMEASURED if self.unmeasured else "that of the trained gates" if self._gated else "that of dense attention",
        )

    @property
    def _gated(self) -> bool:
        return any(part.gates is not None for part in self._parts)

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Run the layers by diffusers' own processors inside this context.

        The whole transformer is, in every thread.

        Raises:
            ConfigError: the pipeline was restored, or other processors were set since.
        """
        self._check_processors()
        ran = [(part.seen.ran_dense, part.seen.ran_sparse) for part in self._parts]
        taken = [{layer.name: _processor(layer) for layer in part.layers} for part in self._parts]
        for part in self._parts:
            part.take_back()
        try:
            yield
        finally:
            for part, processors, before in zip(self._parts, taken, ran, strict=True):
                part.seen.ran_dense, part.seen.ran_sparse = before
                if not part.undone:
                    now = {layer.name: _processor(layer) for layer in part.layers}
                    part.put({name: each for name, each in processors.items() if now[name] is each.replaced})

    @contextmanager
    def recalls(self, queries: int) -> Iterator[dict[str, list[Tensor]]]:
        """Measure, inside this context, the share of dense attention's mass in the selected tiles, `[B, H]` per sparse call.

        Compiled layers run uncompiled meanwhile: each adds to a list of its own, so no two could share a graph.

        Args:
            queries: of every head that it is measured with, evenly spaced.

        Raises:
            ConfigError: the pipeline was restored, or other processors were set since.
        """
        self._check_processors()
        found: dict[str, list[Tensor]] = {}
        for part in self._parts:
            part.queries, part.recalls = queries, {}
        try:
            with torch.compiler.set_stance("force_eager"):
                yield found
        finally:
            for part in self._parts:
                names = {layer.name: _key(part, layer) for layer in part.layers}
                found |= {names[name]: calls for name, calls in part.recalls.items()}
                part.queries, part.recalls = 0, {}

    def __enter__(self) -> SparseHandle:
        self._check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def _name(layer: Layer) -> str:
    return layer.name.removesuffix(".processor")


def _key(part: _SparsePart, layer: Layer) -> str:
    return f"{part.component}.{_name(layer)}" if part.component else _name(layer)
