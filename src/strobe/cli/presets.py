"""`strobe presets`: what each preset turns on."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter
from rich.table import Column, Table

from strobe.cli.console import Output

ELSEWHERE: Final = {
    "window": "local_attn_size",
    "timesteps": "denoising_steps",
    "dtype": "model_dtype",
    "ring_cache": "static_kv",
    "overlap_decode": "async_vae",
    "compile": "torch_compile",
}
"""What others call a setting."""

presets = App(name="presets", help="What each preset turns on.")


@presets.command
def show(
    *chosen: Annotated[str, Parameter(name="PRESET")],
    diff: bool = False,
    device: str = "auto",
    output: Output = Output(),
) -> None:
    """Show every setting of the presets side by side, and what is off on this machine.

    ```
    strobe presets show --diff
    strobe presets show balanced turbo --json
    ```

    Args:
        chosen: presets to show; all of them if none is named.
        diff: only the settings in which they differ.
        device: auto, cpu, cuda or cuda:N; a knob that does nothing on it is said to be off.
    """
    from strobe.core.device import resolve_device
    from strobe.engine.config import resolve
    from strobe.engine.load import shapes_defaults
    from strobe.engine.presets import PRESETS, preset
    from strobe.engine.presets import diff as settings_of

    configs = [preset(name) for name in chosen or PRESETS]
    names = [config.name for config in configs]
    where = resolve_device(device)
    off = {
        config.name: {state.name: state.reason for state in resolve(config, shapes_defaults(), where).knob_states if state.reason}
        for config in configs
    }
    rows = [row for row in settings_of(configs) if not (diff and row.same)]
    table = Table(Column("setting", no_wrap=True), *names, box=None, header_style="bold")
    for row in rows:
        values = zip(names, row.values, strict=True)
        other = f" ({ELSEWHERE[row.setting]})" if row.setting in ELSEWHERE else ""
        table.add_row(
            row.setting + other, *(f"{value}, off here" if row.setting in off[name] else value for name, value in values)
        )
    meanings = {name: (PRESETS[name].__doc__ or "").partition("\n")[0] for name in names}
    output.show(table, "", *(f"[bold]{name}[/]: {meaning}" for name, meaning in meanings.items()))
    for setting, reason in {setting: reason for states in off.values() for setting, reason in states.items()}.items():
        output.show(f"[bold]{setting}[/] is off on {where}: {reason}")
    output.emit(
        {
            "device": str(where),
            "presets": meanings,
            "settings": {row.setting: dict(zip(names, row.values, strict=True)) for row in rows},
            "off_here": off,
            "elsewhere": {row.setting: ELSEWHERE[row.setting] for row in rows if row.setting in ELSEWHERE},
        }
    )
