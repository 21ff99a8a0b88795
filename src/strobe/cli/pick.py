"""`strobe presets pick`: the choice of a preset for `realtime` on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from strobe.cli.console import Advance, Output, styled
from strobe.cli.interrupted import tells_what_is_kept
from strobe.cli.model import ModelFlags
from strobe.cli.report import GATE_FAILED

if TYPE_CHECKING:
    from strobe.engine.model import Model
    from strobe.engine.pick import Pick, Rate, Trial


def pick(
    *,
    fps: float | None = None,
    prompt: str = "a red circle moving left slowly on a navy background",
    device: str = "auto",
    decode_device: str | None = None,
    flags: ModelFlags = ModelFlags(),
    output: Output = Output(),
) -> int:
    """Measure presets on this machine to find the one of best quality that holds the model's frame rate.

    ```
    strobe presets pick  # slow
    strobe presets pick --fps 24 --json  # slow
    strobe presets pick --model wan-1.3b --random-weights --vae tiny --size 320x576  # gpu
    ```

    Presets are tried from the best quality down until one holds the rate; the table shows what was measured and why the others
    were skipped. Exit code 1 if none holds it; the fastest is named then. The time left is that of trying them all; Ctrl-C shows
    what was measured until then.

    Args:
        fps: pixel frames per second as delivered; the model's own by default.
        prompt: what is streamed meanwhile.
        device: auto, cpu, cuda or cuda:N.
        decode_device: where the autoencoder runs, such as cuda:1; where the transformer does by default.
    """
    trials: list[Trial] = []
    with tells_what_is_kept(output, lambda: _measured(trials)), output.progress("presets") as advance:
        model, picked = picked_for(flags, prompt, fps, (device, decode_device), advance, trials.append)
    for note in model.notes:
        output.note(note)
    passed_over = (styled((each.config.name, "bold"), f": {each.reason}") for each in picked.trials if each.reason)
    output.show(_table(picked), "", *passed_over, "", picked.why)
    output.emit(_document(picked) | {"model": model.name})
    return 0 if picked.holds else GATE_FAILED


def picked_for(
    flags: ModelFlags,
    prompt: str,
    fps: float | None,
    devices: tuple[str, str | None],
    advance: Advance,
    tried: Callable[[Trial], object] | None = None,
) -> tuple[Model, Pick]:
    """Load the model of the flags, and choose a preset for it.

    Args:
        devices: where the transformer runs, and where the autoencoder does; see `strobe.engine.config.EngineConfig`.
        tried: told each trial as soon as it is over.
    """
    from strobe.core.device import resolve_device
    from strobe.core.errors import ConfigError
    from strobe.engine.pick import LADDER
    from strobe.engine.pick import pick as pick_preset

    if fps is not None and not fps > 0:
        raise ConfigError(f"--fps {fps:g}: give more than 0, or leave it out for the model's own")
    where = resolve_device(devices[0])
    candidates = [replace(flags.config(name), decode_device=devices[1]) for name in LADDER]
    model = flags.load()
    return model, pick_preset(model, prompt, device=where, fps=fps, candidates=candidates, progress=advance, tried=tried)


def _measured(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield a line for each preset that was measured."""
    for each in trials:
        if each.rate is not None:
            slowest, middle, count = each.rate.slowest_fps, each.rate.median_fps, len(each.rate.blocks_ns)
            yield f"{each.config.name}: {middle:.1f} FPS, the slowest of {count} frame blocks {slowest:.1f}"


def _table(picked: Pick) -> Table:
    table = Table("preset", box=None, header_style="bold")
    for title in ("slowest FPS", "median FPS", "slowest / median", "blocks", "took, s"):
        table.add_column(title, justify="right", no_wrap=True)
    for trial in picked.trials:
        if trial.rate is not None:
            table.add_row(trial.config.name, *_figures(trial.rate))
    return table


def _figures(rate: Rate) -> tuple[str, ...]:
    fps = (f"{rate.slowest_fps:.1f}", f"{rate.median_fps:.1f}", f"{rate.spread:.2f}")
    return *fps, str(len(rate.blocks_ns)), f"{rate.cost_ns / 1e9:.1f}"


def _document(picked: Pick) -> dict[str, Any]:
    from strobe.engine.pick import needed_fps

    return {
        "preset": picked.config.name,
        "holds": picked.holds,
        "fps": picked.fps,
        "needed_fps": needed_fps(picked.fps),
        "why": picked.why,
        "presets": [_trial(each) for each in picked.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    rate = trial.rate
    return {
        "preset": trial.config.name,
        "reason": trial.reason,
        "frames": rate and rate.frames,
        "blocks_ns": rate and rate.blocks_ns,
        "slowest_fps": rate and rate.slowest_fps,
        "median_fps": rate and rate.median_fps,
        "spread": rate and rate.spread,
        "cost_ns": rate and rate.cost_ns,
    }
