"""`strobe accept`: one page on a model and its weights, from checks that need no official code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from strobe.cli.completion import DeviceName, PresetName
from strobe.cli.console import OUT, Output, banner_texts, table_text
from strobe.cli.model import ModelFlags, settings_notes
from strobe.cli.report import GATE_FAILED
from strobe.cli.run_folder import rotating, tell_kept, tells_what_is_kept
from strobe.perf.records.store import RECORDS

_SHOWN: Final = ("group", "name", "value", "unit", "low", "high", "passed", "basis", "detail")
_SHAPES: Final = ("a red circle moving left slowly on a navy background", "a green star moving up fast on a forest background")
_WORLD: Final = (
    "a red ball rolls slowly to the left across a wooden table in a sunlit room",
    "a small sailing boat crosses a stormy green sea under dark clouds",
)


@Parameter(name="*", group="Acceptance")
@dataclass(frozen=True, kw_only=True)
class AcceptFlags:
    """Flags of what is streamed and judged.

    Args:
        preset: what streams.
        prompt: what the first clip shows; by default one that the model can draw. Another one must change the clip.
        blocks: frame blocks of the first clip.
        seed: of all noise.
        device: auto, cpu, cuda or cuda:N.
    """

    preset: PresetName = "balanced"
    prompt: str | None = None
    blocks: int = 12
    seed: int = 0
    device: DeviceName = "auto"


def accept(
    *,
    out: Annotated[Path, Parameter(alias=OUT)] = Path("accept"),
    judged: AcceptFlags = AcceptFlags(),
    flags: ModelFlags = ModelFlags(),
    output: Output = Output(),
) -> int:
    """Check a model with its weights against facts that need no official code.

    ```
    strobe accept  # slow
    strobe accept --model wan-1.3b --weights checkpoints/self_forcing.pt --release Wan2.1-T2V-1.3B -o self-forcing  # needs-files
    strobe accept --model wan-1.3b --random-weights --vae tiny --size 320x576 --json  # gpu
    ```

    Weights, latents, contrast, motion, how prompts show, streaming against one pass: each check stands beside its bounds and
    their source. Exit code 1 if one fails. With random weights what clips look like is not judged. Speed and quality of a
    preset are what `strobe compare quality PRESET` measures.

    Args:
        out: folder for records and page; one that holds something is kept as accept.1, accept.2 and so on.
    """
    kept: list[Path] = []
    with output.progress("loading"):
        from strobe.bench.accept import AcceptSubject, check_blocks, run_accept
        from strobe.bench.quality import readable
        from strobe.core.device import resolve_device
        from strobe.engine.resolve import check_device

        device, config = resolve_device(judged.device), flags.config(judged.preset)
        check_device(config, device)
        check_blocks(judged.blocks)
        model = flags.load()
        prompt, other = _SHAPES if readable(model.defaults.frame_size, ()) else _WORLD
        prompts = judged.prompt or prompt, other
        subject = AcceptSubject(
            model=model, config=config, prompts=prompts, device=device, seed=judged.seed, blocks=judged.blocks
        )
    for note in settings_notes(subject.model, subject.config):
        output.note(note)
    begun = out / RECORDS
    finished = tells_what_is_kept(
        output, lambda: [f"the finished checks are kept: strobe report {out}"] if begun.is_file() else []
    )
    with finished, output.progress("accept") as advance:
        folder = run_accept(subject, root=out, progress=advance, open_run=rotating(kept))
    tell_kept(kept, output)
    with output.progress("report"):
        from strobe.perf.records.store import read_run
        from strobe.perf.report.quality_page import accept_report, outcome, short_table
        from strobe.perf.report.write import write_report

        run, report = read_run(folder), accept_report(folder)
        verdicts, failed, complete = outcome(run)
        accepted = complete and not failed
        paths = write_report(report, folder)
    output.show(*banner_texts(report.banners), table_text(short_table(run), len(run.checks)))
    output.show(report.subtitle, " ".join(map(str, paths)))
    output.emit(
        {
            "run": str(folder),
            "accepted": accepted,
            "verdict": report.subtitle,
            "judged": verdicts,
            "failed": [check.name for check in failed],
            "checks": [{name: getattr(each, name) for name in _SHOWN} for each in run.checks],
            "report": {path.suffix[1:]: str(path) for path in paths},
        }
    )
    return 0 if accepted else GATE_FAILED
