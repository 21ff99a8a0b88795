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

from strobe.attention.sparse.coarse import Forced, budget
from strobe.attention.sparse.layout import tile_layout
from strobe.attention.types import expect
from strobe.core.errors import ConfigError, StrobeError
from strobe.integrations.diffusers.families import FAMILIES, Family, Layer, family_of
from strobe.integrations.diffusers.forward import Arguments, Forward, SparseOptions, Triple, grid_of, numbers_of
from strobe.integrations.diffusers.gates import NAME as GATE
from strobe.integrations.diffusers.gates import Gates, GateSource, find_gates, trained_sparsity
from strobe.integrations.diffusers.processors import SparseProcessor
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
    forced: Forced = _FREE,
) -> SparseHandle:
    """Make the video self-attention of a diffusers pipeline, or of one transformer, sparse, until `restore()`.

    Wan 2.1 and 2.2 (both experts), LTX-2, HunyuanVideo and HunyuanVideo 1.5. It goes through attention processors and a forward
    pre-hook; whatever else the pipeline has, LoRA, offload, compilation, tiling of the VAE, stays as it is.

    Args:
        pipe: a pipeline, or a transformer.
        sparsity: share of the key tiles that a sparse layer skips; `auto`: what the gates were trained with, 0.9 without gates. 0
            is dense attention by strobe, for HunyuanVideo without the text's padding.
        tile: as in `video_sparse_attention`; None: (4, 4, 4) with gates, `auto` without.
        impl: of the fine stage, as in `video_sparse_attention`.
        gates: trained gates: `auto` looks where the transformer was loaded from; None takes none; else the checkpoint's folder, a
            `.safetensors` file, or tensors by name; for a pipeline with several transformers also a mapping by component.
        dense_steps: denoise steps, counted from 0, in which all layers are dense: the first so many, or those listed.
        dense_layers: layers, counted from 0, that are always dense: the first so many, or those listed. With gates a dense layer
            still adds the gated coarse output, as it was trained.
        forced: key tiles that are selected whatever they score.

    Raises:
        ConfigError: no supported transformer, one that is sparse already, or an option that is not possible.
        WeightsError: gates that do not fit, or that would not be used.
    """
    expect("forced", forced, Forced, "a strobe.Forced")
    found = _transformers(pipe)
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
        if options.dense_steps and not hasattr(pipe, "scheduler"):
            raise ConfigError("dense_steps: needs the pipeline, whose scheduler counts the steps; got a transformer alone")
        plans.append((name, transformer, family, source, options))
    made: list[_Part] = []
    try:
        for plan in plans:
            made.append(_Part(pipe, *plan))
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

    Raises:
        ConfigError: no supported transformer.
    """
    for transformer, _ in _transformers(pipe).values():
        part: _Part | None = getattr(transformer, _PART, None)
        if part is not None:
            part.undo()


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


def _transformers(pipe: Any) -> dict[str, tuple[nn.Module, Family]]:
    """Return a pipeline's transformers that can become sparse, by component; a single transformer has an empty name."""
    components: Any = getattr(pipe, "components", None)
    given = components if isinstance(components, Mapping) else {"": pipe}
    found = {}
    for name, component in given.items():
        module = getattr(component, "_orig_mod", component)  # what torch.compile wrapped
        family = family_of(module)
        if family is not None:
            found[name] = (module, family)
    if not found:
        names = sorted({type(each).__name__ for each in given.values() if isinstance(each, nn.Module)}) or [type(pipe).__name__]
        known = ", ".join(family.model.__name__ for family in FAMILIES)
        raise ConfigError(f"sparsify: found no transformer it knows among {', '.join(names)}; it knows {known}")
    return found


def _processor(layer: Layer) -> Any:
    attn: Any = layer.attn
    return attn.processor


class _Part:
    """One sparse transformer of a pipeline."""

    def __init__(
        self, pipe: Any, component: str, transformer: Any, family: Family, source: GateSource | None, options: SparseOptions
    ) -> None:
        self.component, self.transformer, self.family = component, transformer, family
        self.layers = family.layers(transformer)
        self.forward = Forward(options)
        self.gates = None if source is None else Gates(source, self.layers)
        self.processors: dict[str, SparseProcessor] = {}
        for number, layer in enumerate(self.layers):
            processor = family.processor(layer.name, _processor(layer), self.forward, dense=number in options.dense_layers)
            processor.gate_owner = None if self.gates is None else self.gates.owners[number]
            self.processors[layer.name] = processor
        places, steps, forward, config = family.places(), options.dense_steps, self.forward, transformer.config

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            family.enter(forward, config, Arguments(places, args, kwargs))
            if steps:
                forward.dense = _step_of(pipe.scheduler) in steps
            if forward.dense:  # written, never read: a compiler guards on what is read
                forward.ran_dense = True
            else:
                forward.ran_sparse = True

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            forward.leave()

        self.hooks = (transformer.register_forward_pre_hook(before, with_kwargs=True), transformer.register_forward_hook(after))
        self.put(self.processors)
        self.undone = False
        setattr(transformer, _PART, self)

    def put(self, processors: Mapping[str, Any]) -> None:
        """Set processors by name; the others stay."""
        self.transformer.set_attn_processor({**self.transformer.attn_processors, **processors})

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
        return tuple(self._layer(layer, self.forward.grid if grid is None else grid) for layer in self.layers)

    def _layer(self, layer: Layer, grid: Triple | None) -> LayerReport:
        processor, options = self.processors[layer.name], self.forward.options
        sparsity = processor.usual_sparsity
        dense = sparsity == 0 and self.gates is None
        impl, tile, selected, tiles = "", None, None, None
        if grid is not None:
            impl = processor.explain(layer.attn, grid).impl.name
            if not dense:
                layout = tile_layout(grid, options.tile)
                tile, tiles = layout.tile, layout.num_tiles
                selected = budget(None, sparsity, 1, tiles)[0]
        return LayerReport(
            component=self.component,
            layer=_name(layer),
            runs="dense" if sparsity == 0 else "sparse",
            impl=impl,
            tile=tile,
            selected=selected,
            tiles=tiles,
            gated=self.gates is not None,
        )


def _step_of(scheduler: Any) -> int:
    """Return the number of denoise steps that a scheduler has done since it began; no tensor is read."""
    begin = scheduler.begin_index or 0
    return 0 if scheduler.step_index is None else scheduler.step_index - begin


class SparseHandle:
    """A sparse pipeline, until `restore()` or, as a context manager, until the end of the block.

    Args:
        pipe: what `sparsify` was given.
        parts: its transformers.
    """

    def __init__(self, pipe: Any, parts: tuple[_Part, ...]) -> None:
        self.pipe, self._parts = pipe, parts

    @property
    def _restored(self) -> bool:
        return any(part.undone for part in self._parts)

    def _check(self) -> None:
        if self._restored:
            raise ConfigError("handle: the pipeline was restored; call sparsify again")

    @property
    def compiled(self) -> bool:
        """Whether a transformer, or any module of one, is compiled."""
        components: Any = getattr(self.pipe, "components", None)
        given = components.values() if isinstance(components, Mapping) else (self.pipe,)
        modules = (module for part in self._parts for module in part.transformer.modules())
        return any(hasattr(each, "_orig_mod") for each in given) or any(each._compiled_call_impl is not None for each in modules)

    @property
    def unmeasured(self) -> bool:
        """Whether any layer is sparse without trained gates, so that its effect on quality was never measured."""
        return any(part.gates is None and part.forward.options.sparsity > 0 for part in self._parts)

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
        """
        asked = None if grid is None else grid_of(grid)
        ran = [part.forward for part in self._parts]
        note = "restored: the pipeline is dense, call sparsify again; it was: " if self._restored else ""
        if any(each.ran_dense for each in ran) and not any(each.ran_sparse for each in ran):
            note += "every step so far was dense: no sparse layer has run; "
        steps = sorted({step for part in self._parts for step in part.forward.options.dense_steps})
        known = [part.forward.grid for part in self._parts if part.forward.grid is not None]
        return SparseReport(
            layers=tuple(row for part in self._parts for row in part.report(asked)),
            grid=asked or (known[0] if known else None),
            dense_steps=tuple(steps),
            note=note,
            quality=UNMEASURED if self.unmeasured else "that of the trained gates" if self._gated else "that of dense attention",
        )

    @property
    def _gated(self) -> bool:
        return any(part.gates is not None for part in self._parts)

    @contextmanager
    def dense(self) -> Iterator[None]:
        """Run the layers by diffusers' own processors inside this context.

        Raises:
            ConfigError: the pipeline was restored.
        """
        self._check()
        ran = [(part.forward.ran_dense, part.forward.ran_sparse) for part in self._parts]
        for part in self._parts:
            part.take_back()
        try:
            yield
        finally:
            for part, before in zip(self._parts, ran, strict=True):
                part.forward.ran_dense, part.forward.ran_sparse = before
                if not part.undone:
                    part.put(part.processors)

    @contextmanager
    def recalls(self, queries: int) -> Iterator[dict[str, list[Tensor]]]:
        """Measure, inside this context, the share of dense attention's mass in the selected tiles, `[B, H]` per sparse call.

        Compiled layers run uncompiled meanwhile: each adds to a list of its own, so no two could share a graph.

        Args:
            queries: of every head that it is measured with, evenly spaced.

        Raises:
            ConfigError: the pipeline was restored.
        """
        self._check()
        found: dict[str, list[Tensor]] = {}
        for part in self._parts:
            part.forward.probe, part.forward.recalls = queries, {}
        try:
            with torch.compiler.set_stance("force_eager"):
                yield found
        finally:
            for part in self._parts:
                names = {layer.name: _key(part, layer) for layer in part.layers}
                found |= {names[name]: calls for name, calls in part.forward.recalls.items()}
                part.forward.probe, part.forward.recalls = 0, {}

    def __enter__(self) -> SparseHandle:
        self._check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def _name(layer: Layer) -> str:
    return layer.name.removesuffix(".processor")


def _key(part: _Part, layer: Layer) -> str:
    return f"{part.component}.{_name(layer)}" if part.component else _name(layer)
