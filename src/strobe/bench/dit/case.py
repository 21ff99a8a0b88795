"""Case for the runner: forward passes of one transformer under several kinds of attention."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from strobe.bench import gate
from strobe.bench.cases import scoring
from strobe.bench.dit import fastvideo
from strobe.bench.dit.marks import listened, marked
from strobe.bench.dit.models import Loaded
from strobe.bench.gate import Held
from strobe.core import costs
from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice
from strobe.core.spans import ATTENTION_KERNEL, DENOISE_STEP, DIT_FORWARD, FRAME_BLOCK, span
from strobe.core.tolerances import tolerance
from strobe.engine.load import RANDOM
from strobe.integrations.diffusers import SparseHandle, sparsify
from strobe.perf.records import record

DENSE: Final = "dense"
OURS: Final = "dense-strobe"
SPARSE: Final = "vsa"
FASTVIDEO: Final = "fastvideo"
ATTENTIONS: Final = (DENSE, OURS, SPARSE, FASTVIDEO)
_STOCK: Final = ("", False)  # key of the output of diffusers' own attention
_ALL_TILES: Final = 1e-9  # sparsity at which every key tile is selected: the sparse kernels compute dense attention


@dataclass(frozen=True, kw_only=True, slots=True)
class Attends:
    """One variant: a kind of attention, its sparsity, eager or compiled.

    Args:
        name: in the records.
        eager_name: the same variant's, uncompiled.
        attention: one of `ATTENTIONS`.
        sparsity: share of key tiles that are skipped; 0 for dense ones.
        compiled: its blocks go through torch.compile.
    """

    name: str
    eager_name: str
    attention: str
    sparsity: float
    compiled: bool


def variants_of(
    attention: Sequence[str], sparsity: Sequence[float], compiled: Sequence[bool], *, masked: bool
) -> tuple[Attends, ...]:
    """Return every kind of attention, eager and compiled as asked for; the first is the baseline.

    Args:
        masked: the stock attention is given a mask of pairs: strobe's dense attention without the padding joins the stock one.

    Raises:
        ConfigError: an unknown word, a sparsity outside (0, 1), or fewer than two variants.
    """
    for word in attention:
        if word not in ATTENTIONS:
            raise unknown_choice("attention", word, ATTENTIONS)
    for share in sparsity:
        if not 0 < share < 1:
            raise ConfigError(
                f"--sparsity {share:g}: give shares between 0 and 1, such as 0.9; dense attention is --attention dense"
            )
    words = list(dict.fromkeys(attention))
    if masked and DENSE in words and OURS not in words:
        words.insert(words.index(DENSE) + 1, OURS)
    if FASTVIDEO in words and not all(word in words for word in (DENSE, SPARSE)):
        raise ConfigError("--attention fastvideo is a peer of vsa: give --attention dense vsa fastvideo")
    kinds = [(word, 0.0) for word in words if word not in (SPARSE, FASTVIDEO)]
    kinds += [(word, share) for word in (SPARSE, FASTVIDEO) if word in words for share in dict.fromkeys(sparsity)]
    found = tuple(
        Attends(
            name=f"{word}{f'-{100 * share:g}' if share else ''}{'-compile' if mode else ''}",
            eager_name=f"{word}-{100 * share:g}" if share else word,
            attention=word,
            sparsity=share,
            compiled=mode,
        )
        for mode in dict.fromkeys(compiled)
        for word, share in kinds
        if not (mode and word == FASTVIDEO)  # its operators are no operators of torch, so no graph holds them
    )
    if len(found) < 2:
        raise ConfigError("one variant alone compares nothing: give --attention dense vsa, or --compile on off")
    return found


@dataclass
class _Made:
    """A variant that is ready: a transformer of its own over the shared weights."""

    transformer: Any
    handle: SparseHandle | None
    impl: str
    arguments: dict[str, Any] = field(default_factory=dict)


class DitCase:
    """Case that compares kinds of attention in one transformer; a `strobe.bench.case.Case`.

    All variants share the weights: each has modules of its own over them, so that none has to be changed back. A denoise step is
    one forward pass over the same latents; the records count it as one frame block.

    Args:
        loaded: the transformer with its arguments.
        variants: variants to compare; the first is the baseline.
        steps: forward passes in a clip.
        backend: diffusers' attention backend of the stock layers; `auto`: cuDNN on a GPU where the attention has no mask, else
            the one that diffusers takes by itself.
        device: where it runs.
        seed: seed of weights and latents, for the records.
        compiler: backend of torch.compile; on a CPU one that generates no code, such as `eager`.

    Raises:
        ImplUnavailableError: something is to be compiled where nothing is, or diffusers has no such backend here.
    """

    def __init__(
        self,
        loaded: Loaded,
        variants: Sequence[Attends],
        *,
        steps: int,
        device: torch.device,
        backend: str = "auto",
        seed: int = 0,
        compiler: str = "inductor",
    ) -> None:
        if any(each.compiled for each in variants) and device.type != "cuda" and compiler == "inductor":
            raise ImplUnavailableError("compile", f"nothing is compiled on {device}", ["--compile off"], what="option")
        self._loaded, self._variants, self._steps = loaded, {each.name: each for each in variants}, steps
        best = "_native_cudnn" if device.type == "cuda" and not loaded.masked else "native"
        self._backend = best if backend == "auto" else backend
        if self._backend != "native":  # of the layers that stay dense in every variant too
            try:
                loaded.transformer.set_attention_backend(self._backend)
            except (ValueError, ImportError, RuntimeError) as error:
                raise ImplUnavailableError(
                    self._backend, str(error).splitlines()[0], ["native"], what="attention backend of diffusers"
                ) from error
        self._made: dict[tuple[str, bool], _Made] = {}
        self._outputs: dict[tuple[str, bool], Tensor] = {}
        self._eager_now, self._compiler = False, compiler
        self.device = device
        self.baseline, *candidates = self._variants
        self.candidates = tuple(candidates)
        self.slug = "dit"
        self.model = record.Model(name=loaded.name, weights_sha256=loaded.weights_sha256, num_params=loaded.num_params)
        shot = loaded.shot
        self.workload = record.Workload(
            prompts=(),
            seed=seed,
            frame_blocks=steps,
            latents_per_block=1,
            frames_first_block=shot.frames,
            frames_per_block=shot.frames,
            frames=shot.frames,
            height=shot.height,
            width=shot.width,
            fps=0,
            batch=shot.batch,
            unit="denoise step",
        )
        if any(each.compiled for each in variants):
            from torch._dynamo import config

            config.recompile_limit = max(config.recompile_limit, 8 * len(variants))  # all variants share the code of the blocks

    # What the runner asks.

    def gate(self, name: str) -> record.Gate:
        """Check a variant against the stock attention before any number is taken.

        A dense one must give the same output. A sparse one must give it with every key tile selected, by the kernels that it
        runs, and finite numbers with its own selection; its implementation must have passed its gate on this card. A compiled one
        must give what it gives uncompiled.
        """
        variant = self._variants[name]
        return self._held(variant).line(name, self.baseline)

    def prepare(self, name: str) -> None:
        """Build the variant unless it exists."""
        self._make(self._variants[name])

    def blocks(self, name: str) -> Iterator[object]:
        """Run the forward passes of a clip, one per item."""
        variant = self._variants[name]
        eager = self._eager_now or not variant.compiled
        made = self._make(variant, eager=eager)
        with marked(made.transformer) if eager and listened() else nullcontext():
            for step in range(self._steps):
                with span(FRAME_BLOCK, step), span(DENOISE_STEP, step), span(DIT_FORWARD):
                    self._forward(made)
                yield step

    def launched(self, name: str) -> AbstractContextManager[None] | None:
        """Return a context in which a compiled variant runs uncompiled, so that its attention kernels keep their names."""
        return self._uncompiled() if self._variants[name].compiled else None

    def settings(self, name: str) -> record.Variant:
        """Return the settings of a variant: attention, sparsity, steps, dtype, compilation, kernel cost."""
        made = self._make(variant := self._variants[name])
        kernel, tokens = self._kernel_cost(variant, made)
        return record.Variant(
            name=name,
            preset="custom",
            knobs=(record.Knob(name="compile", value="on" if variant.compiled else "off", on=variant.compiled),),
            attention_impl=made.impl,
            attention_reason=self._reason(variant),
            sparsity=variant.sparsity,
            steps=self._steps,
            dtype=str(self._dtype).removeprefix("torch."),
            compile_mode="each block, full graph" if variant.compiled else None,
            tokens_per_block=tokens,
            costs=kernel,
        )

    def review(self, name: str, folder: Path) -> Iterator[record.Quality | record.Video]:
        """Report what is known of quality: of one forward pass, nothing with random weights."""
        if self._loaded.random:
            yield from scoring.not_measured(name, RANDOM)
            return
        error = gate.relative_error(self._output(self._variants[name]), self._output(self._variants[self.baseline]))
        yield record.Quality(
            variant=name,
            metric="forward_error",
            value=error,
            unit="",
            reference=self.baseline,
            definition="root mean square of the difference of one forward pass's outputs / that of the reference's, in float64",
            n=1,
            better="lower",
            note="says how far one pass moved, not how a clip looks: compare clips by `strobe quality`",
        )

    def close(self) -> None:
        """Free every variant and restore diffusers' own backend."""
        if self._backend != "native":
            self._loaded.transformer.reset_attention_backend()
        self._made.clear()
        self._outputs.clear()

    @property
    def absent(self) -> tuple[record.Absent, ...]:
        """Always empty: a variant that cannot run here is an error."""
        return ()

    # Making variants.

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = self._loaded.arguments["hidden_states"].dtype
        return found

    def _make(self, variant: Attends, *, eager: bool = False) -> _Made:
        """Build a variant unless it exists; `eager`: its uncompiled twin."""
        key = variant.eager_name, variant.compiled and not eager
        if key not in self._made:
            self._made[key] = self._fresh(variant, compiled=key[1])
        return self._made[key]

    def _fresh(self, variant: Attends, *, compiled: bool, sparsity: float | None = None) -> _Made:
        """Build modules over the shared weights, with their attention."""
        stock = self._loaded.transformer
        shared = {id(value): value for value in (*stock.parameters(), *stock.buffers())}
        transformer, handle = copy.deepcopy(stock, shared), None
        if variant.attention == DENSE:
            impl = f"diffusers, {self._backend.lstrip('_')}"
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that quality is unmeasured, which the report says
                tile: Any = fastvideo.TILE if variant.attention == FASTVIDEO else "auto"
                handle = sparsify(transformer, sparsity=variant.sparsity if sparsity is None else sparsity, tile=tile)
            impl = fastvideo.install(handle) if variant.attention == FASTVIDEO else ""
        if compiled:
            # every forward pass has the same shapes
            transformer.compile_repeated_blocks(fullgraph=True, dynamic=False, backend=self._compiler)
        made = _Made(transformer=transformer, handle=handle, impl=impl)
        if handle is not None and not compiled:
            self._forward(made)  # which tells it the grid
            made.impl = impl or handle.report().layers[0].impl
        elif handle is not None:
            made.impl = self._make(variant, eager=True).impl
        return made

    def _forward(self, made: _Made) -> Tensor:
        with torch.no_grad():
            found: Any = made.transformer(**self._loaded.arguments, return_dict=False)
        out: Tensor = found[0]
        return out

    @contextmanager
    def _uncompiled(self) -> Iterator[None]:
        self._eager_now = True
        try:
            yield
        finally:
            self._eager_now = False

    # The gate.

    def _output(self, variant: Attends, *, eager: bool = False) -> Tensor:
        key = variant.eager_name, variant.compiled and not eager
        if key not in self._outputs:
            self._outputs[key] = self._forward(self._make(variant, eager=eager)).cpu()
        return self._outputs[key]

    def _held(self, variant: Attends) -> Held:
        limit = tolerance("latents", self._dtype)
        dtype = str(self._dtype).removeprefix("torch.")
        stock = self._stock_output()
        if variant.compiled:
            found, expected = self._output(variant), self._output(variant, eager=True)
            what = "the same as uncompiled"
        elif not variant.sparsity:
            found, expected, what = self._output(variant), stock, "the same as diffusers' own attention"
        else:
            own = self._make(variant)
            assert own.handle is not None
            layer, attn = next(iter(own.handle.layers.items()))
            if variant.attention == SPARSE:
                held = gate.recorded(self._choice(own, attn), self.device)
                if not held.passed:
                    return Held(False, f"{layer}: {held.rule}", held.detail)
            if not self._output(variant).isfinite().all():
                return Held(False, "the output is finite", "it is not")
            whole = self._fresh(variant, compiled=False, sparsity=_ALL_TILES)
            found, expected = self._forward(whole).cpu(), stock
            what = "with every key tile selected the same as diffusers' own attention"
        error = gate.relative_error(found, expected)
        rule = f"one forward pass: {what}, relative error <= {limit:g} ({dtype})"
        return Held(error <= limit, rule, f"{error:.3g}", exact=not variant.sparsity)

    def _stock_output(self) -> Tensor:
        if _STOCK not in self._outputs:
            with torch.no_grad():
                found: Any = self._loaded.transformer(**self._loaded.arguments, return_dict=False)
            self._outputs[_STOCK] = found[0].cpu()
        return self._outputs[_STOCK]

    def _choice(self, made: _Made, attn: Any) -> Any:
        """Return the choice of the fine-stage impl, as `gate.recorded` needs it."""
        return attn.processor.explain(attn)

    # What it costs.

    def _reason(self, variant: Attends) -> str:
        if variant.attention == FASTVIDEO:
            return "a peer, asked for"
        if variant.attention == DENSE:
            masked = "its attention is given a mask of pairs, which cuDNN is not asked for" if self._loaded.masked else ""
            return masked if self._backend == "native" and self.device.type == "cuda" else ""
        made = self._make(variant, eager=True)
        assert made.handle is not None
        attn = next(iter(made.handle.layers.values()))
        return "; ".join(f"{name}: {reason}" for name, reason in self._choice(made, attn).passed_over)

    def _kernel_cost(self, variant: Attends, made: _Made) -> tuple[tuple[record.SpanCost, ...], int]:
        """Return FLOPs and bytes of one call of the video's self-attention, and the tokens of the video."""
        known = made.handle or next((each.handle for each in self._made.values() if each.handle is not None), None)
        if known is None:
            probe = self._fresh(Attends(name=OURS, eager_name=OURS, attention=OURS, sparsity=0, compiled=False), compiled=False)
            known = probe.handle
        assert known is not None
        report = known.report()
        assert report.grid is not None, "a variant has run before its settings are asked for"
        tokens = report.grid[0] * report.grid[1] * report.grid[2]
        attn: Any = next(iter(known.layers.values()))
        shape = costs.AttentionShape(
            batch=self._loaded.shot.batch,
            q_tokens=tokens,
            kv_tokens=tokens,
            num_heads=attn.heads,
            head_dim=attn.inner_dim // attn.heads,
        )
        dtype = str(self._dtype).removeprefix("torch.")
        dense = costs.attention(shape, dtype=dtype)
        share = report.layers[-1].share if variant.sparsity else 1.0
        flops = dense.flops if share is None else round(dense.flops * share)
        cost = record.SpanCost(
            span=ATTENTION_KERNEL,
            flops=flops,
            read_bytes=dense.read_bytes,
            write_bytes=dense.write_bytes,
            dense_flops=dense.flops if variant.sparsity else None,
        )
        return (cost,), tokens
