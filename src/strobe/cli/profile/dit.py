"""`strobe profile dit`: one forward pass of a diffusers transformer, dense against sparse, eager and compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from strobe.cli.console import Output
from strobe.cli.model import TraceFlags, at_least, parse_size
from strobe.cli.require import parse_requirement
from strobe.cli.run_folder import TracesOut, chosen_folder, measure
from strobe.cli.tables import table_text
from strobe.core.errors import ConfigError, unknown_choice

if TYPE_CHECKING:
    from strobe.bench.dit import LoadedModel

MODES: Final = {"on": True, "off": False}
DTYPES: Final = ("auto", "bfloat16", "float32")


@Parameter(name="*", group="Forward pass")
@dataclass(frozen=True, kw_only=True)
class PassFlags:
    """Flags of the forward pass: model, weights, sizes, dtype.

    Args:
        model: wan-1.3b, wan-14b, ltx-2 or hunyuan-video-1.5, with random weights unless --weights says where some are.
        pipe: module:function of your own instead, which is run: it returns a pipeline or transformer, and the arguments of one
            forward pass by name.
        tiny: the model's tiny configuration, which a CPU runs at once.
        weights: folder of the transformer as diffusers saves it.
        size: frame height x width, such as 512x768; the model's own by default.
        frames: pixel frames of the clip; the model's own by default.
        batch: samples.
        dtype: auto, bfloat16 or float32; auto is bfloat16 on a GPU and float32 on a CPU.
        seed: of random weights and latents.
        device: auto, cpu, cuda or cuda:N.
    """

    model: str | None = None
    pipe: str | None = None
    tiny: Annotated[bool, Parameter(negative="")] = False
    weights: Path | None = None
    size: str | None = None
    frames: int | None = None
    batch: int = 1
    dtype: str = "auto"
    seed: int = 0
    device: str = "auto"


@Parameter(name="*", group="Variants")
@dataclass(frozen=True, kw_only=True)
class Variants:
    """Flags of the variants to compare. The first kind of attention, in the first mode, is the reference of all.

    Args:
        attention: dense (diffusers' own processors), dense-strobe (strobe's dense attention, of HunyuanVideo without the text's
            padding, where it joins dense by itself) and vsa (video sparse attention).
        sparsity: shares of the key tiles that vsa skips, such as 0.8 0.9.
        compile: on, off or both: torch.compile of each block, full graph; refused where nothing is compiled.
    """

    attention: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("dense", "vsa")
    sparsity: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (0.9,)
    compile: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ("off",)


@Parameter(name="*", group="Times and trace")
@dataclass(frozen=True, kw_only=True)
class Runs(TraceFlags):
    """Flags of the timed clips and of the traced clip, which runs separately for each variant.

    Args:
        steps: forward passes of a clip, one denoise step each.
        rounds: palindromes A B C C B A of clips; an interval needs two.
    """

    steps: int = 4
    rounds: int = 3
    active: Annotated[int, Parameter(help="passes that are recorded, as far as the clip has so many.")] = 2


def dit(
    *,
    what: PassFlags = PassFlags(),
    variants: Variants = Variants(),
    runs: Runs = Runs(),
    require: tuple[str, ...] = (),
    out: TracesOut = None,
    output: Output = Output(),
) -> int:
    """Time and trace the forward pass of a diffusers transformer under dense and sparse attention, and explain the difference.

    ```
    strobe profile dit --model ltx-2 --size 512x768 --frames 121 --attention dense vsa --sparsity 0.8 0.9 --compile on off  # gpu
    strobe profile dit --model wan-1.3b --tiny --sparsity 0.5 -o dit-traces
    strobe profile dit --pipe my_pipeline:make --attention dense vsa  # needs-files
    ```

    Every variant is checked before it has a number, and all are interleaved in one process. The page has seven sections:
    settings, stages of every clip, attention, kernels, sections with their boundaries, three speedups with the account, notes.

    Args:
        require: a condition that every candidate must meet, such as e2e>=1.5; see `strobe report --help`.
    """
    requirements = [parse_requirement(text) for text in require]
    for mode in variants.compile:
        if mode not in MODES:
            raise unknown_choice("--compile", mode, MODES)
    at_least(1, rounds=runs.rounds, batch=what.batch, warmup=runs.warmup)
    at_least(3, steps=runs.steps)
    amounts = runs.amounts()
    folder = chosen_folder(out)
    if what.pipe is not None:
        output.note(f"runs your code: {what.pipe}")
    with output.progress("profile"):
        from strobe.bench.case import ComparePlan
        from strobe.bench.dit import DitCase, variants_of
        from strobe.core.device import resolve_device
        from strobe.perf.measure.profile import Capture

        device = resolve_device(what.device)
        modes = [MODES[mode] for mode in variants.compile]
        variants_of(variants.attention, variants.sparsity, modes, masked=False)  # a wrong word is told before weights are drawn
        loaded = _loaded(what)
        case = DitCase(
            loaded,
            variants_of(variants.attention, variants.sparsity, modes, masked=loaded.masked),
            steps=runs.steps,
            device=device,
            seed=what.seed,
        )
        plan = ComparePlan(
            palindromes=runs.rounds,
            whole_clip=not runs.chosen_regions,
            capture=Capture(warmup=runs.warmup, regions=runs.chosen_regions),
            **amounts,
        )
    code, document = measure(case, plan, folder, requirements, output, progress=output.progress("profile"), into=True)
    with output.progress("report"):
        from strobe.perf.report.dit_page import attention_table, bounds_table, paired
        from strobe.perf.report.study import load_study

        study = load_study([folder])
        tables = attention_table(study), bounds_table(paired(study, ()))
    output.show(*map(table_text, tables))
    output.emit(document)
    return code


def _loaded(what: PassFlags) -> LoadedModel:
    """Load the transformer and the arguments of its forward pass."""
    import torch

    from strobe.bench.dit import Shot, load_named, load_pipe, model_named
    from strobe.core.device import resolve_device

    device = resolve_device(what.device)
    if (what.model is None) == (what.pipe is None):
        raise ConfigError("name one of --model and --pipe, see strobe profile dit --help")
    if what.dtype not in DTYPES:
        raise unknown_choice("dtype", what.dtype, DTYPES)
    if what.pipe is not None:
        if what.tiny or what.weights is not None or what.dtype != "auto":
            raise ConfigError("--pipe brings its own weights, sizes and dtype; leave --tiny, --weights and --dtype out")
        height, width = parse_size(what.size) or (0, 0)
        return load_pipe(what.pipe, Shot(height=height, width=width, frames=what.frames or 0, batch=what.batch), device)
    assert what.model is not None
    model = model_named(what.model)
    own = model.tiny_shot if what.tiny else model.shot
    height, width = parse_size(what.size) or (own.height, own.width)
    return load_named(
        what.model,
        shot=Shot(height=height, width=width, frames=what.frames or own.frames, batch=what.batch),
        tiny=what.tiny,
        weights=what.weights,
        device=device,
        dtype=getattr(torch, what.dtype if what.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"),
        seed=what.seed,
    )
