"""`strobe compare`: presets measured against each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from strobe.cli.console import Output
from strobe.cli.interrupted import kept_runs, tells_what_is_kept
from strobe.cli.model import ModelFlags, at_least
from strobe.cli.report import GATE_FAILED, write
from strobe.cli.require import Requirement, listed, parse_requirement

if TYPE_CHECKING:
    from strobe.bench.case import Plan
    from strobe.bench.cases.stream import Script, StreamCase
    from strobe.engine.config import ModelDefaults


SWITCHES: Final = (
    "3.5s:a yellow star moving up slowly on a black background",
    "7s:a white square moving right fast on a forest background",
)
"""What a clip switches to by default, as far as it is long enough."""


@Parameter(name="*", group="Clip")
@dataclass(frozen=True, kw_only=True)
class ClipFlags(ModelFlags):
    """What every clip shows, and where it is made.

    Args:
        prompt: what to show first.
        switch: TIME:PROMPT, where TIME is seconds (4.5s) or a frame block (block=12); may be given several times. A clip too
            short for one of the default is made without it; --no-switch: none at all.
        blocks: length of a clip in frame blocks.
        seed: of all noise.
        model: shapes, wan-1.3b, wan-14b, or a folder: of weights that `strobe train-shapes` wrote, or a Wan checkpoint.
        weights: file or folder of a Wan model's weights.
        lora: a LoRA file for it; one beside LongLive's base is found by itself.
        random_weights: draw a Wan model's weights: to measure speed, for the frames mean nothing.
        vae: file of another autoencoder for a Wan model, such as taew2_1; with random weights, tiny.
        release: folder of Wan2.1 as released, for umT5 and VAE, if they are not beside the weights.
        prompt_cache: folder that keeps the embeddings of prompts for the next time.
        size: frame height x width of a Wan model, such as 320x576; 480x832 by default.
        simulate: where a preset wants FP8 and the device has none: compute what FP8 would give, no faster; every record says so.
        device: auto, cpu, cuda or cuda:N.
    """

    prompt: str = "a red circle moving left slowly on a navy background"
    switch: Annotated[tuple[str, ...], Parameter(negative="--no-switch")] = SWITCHES
    blocks: int = 14
    seed: int = 0
    device: str = "auto"

    def script(self, defaults: ModelDefaults) -> Script:
        """The clip in frame blocks of a model."""
        from strobe.bench.cases.stream import Script
        from strobe.engine.prompts import parse_switch

        switches = tuple(parse_switch(text, defaults) for text in self.switch)
        if self.switch == SWITCHES:
            switches = tuple(switch for switch in switches if switch.frame_block < self.blocks)
        return Script(prompt=self.prompt, switches=switches, num_blocks=self.blocks, seed=self.seed)


def compare(
    baseline: Annotated[str, Parameter(name="BASELINE")],
    /,
    *candidates: Annotated[str, Parameter(name="CANDIDATE")],
    rounds: int = 4,
    runs: Path = Path("runs"),
    require: tuple[str, ...] = (),
    allow_different: tuple[str, ...] = (),
    clip: ClipFlags = ClipFlags(),
    output: Output = Output(),
) -> int:
    """Measure presets against a baseline: interleaved in one process, every sample kept, then the report.

    ```
    strobe compare baseline balanced turbo
    strobe compare quality turbo --rounds 8 --require "e2e>=1.2" --json
    ```

    Args:
        baseline: the preset that every ratio is measured against.
        candidates: the presets to compare with it.
        rounds: palindromes B C1 C2 C2 C1 B; each gives one pair per candidate, an interval needs two.
        runs: the folder that the run's own folder is made in.
        require: a condition that must hold, such as e2e>=1.5 or turbo:psnr>30; see `strobe report --help`.
        allow_different: what is meant to differ between the presets, such as tokens; see `strobe report --help`.
    """
    from strobe.perf.analysis.comparable.checks import check_allowed

    requirements = [parse_requirement(text) for text in require]
    check_allowed(listed(allow_different))  # a wrong name is told before anything is measured
    at_least(1, rounds=rounds, blocks=clip.blocks)
    with output.progress("compare"):
        from strobe.bench.case import Plan
        from strobe.bench.cases.stream import StreamCase

        configs = [clip.config(name) for name in (baseline, *candidates)]  # a wrong name is told before gigabytes are read
        model = clip.load()
        script = clip.script(model.defaults)
        case = StreamCase(configs, script=script, model=model, device=clip.device)
    code, document = measure(case, Plan(palindromes=rounds), runs, requirements, output, listed(allow_different))
    output.emit(document)
    return code


def measure(
    case: StreamCase,
    plan: Plan,
    runs: Path,
    requirements: Sequence[Requirement],
    output: Output,
    allow_different: tuple[str, ...] = (),
) -> tuple[int, dict[str, Any]]:
    """Run a comparison with a progress bar and write its report.

    Returns:
        exit code: 1 if a requirement does not hold or a candidate's gate was red; and what was found.
    """
    from strobe.bench.runner import run_case

    before = set(runs.glob("*"))
    told = tells_what_is_kept(output, lambda: kept_runs(set(runs.glob("*")) - before))
    with told, closing(case), output.progress("compare") as advance:
        outcome = run_case(case, root=runs, plan=plan, progress=advance)
    for gate in outcome.red:
        output.note(f"{gate.variant} is left out: {gate.rule} does not hold ({gate.detail})")
    code, document = write([outcome.folder], outcome.folder, requirements, output, allow_different=allow_different)
    red = {gate.variant: f"{gate.rule}: {gate.detail}" for gate in outcome.red}
    return GATE_FAILED if red else code, document | {"red": red}
