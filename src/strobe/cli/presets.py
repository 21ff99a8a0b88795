"""`strobe presets`: the settings of each preset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from rich.table import Column, Table

from strobe.cli.completion import DeviceName
from strobe.cli.console import Output, styled, terminal


def side_by_side(names: list[str], rows: dict[str, list[str]]) -> Iterator[Table | str]:
    """Yield tables of settings by preset, each of which fits the terminal."""
    first, most, at = max(map(len, (*rows, "setting"))) + 2, terminal().width, 0
    widths = [max(map(len, (name, *(row[number] for row in rows.values())))) + 2 for number, name in enumerate(names)]
    while at < len(names):
        stop, used = at + 1, first + widths[at]
        while stop < len(names) and used + widths[stop] <= most:
            used, stop = used + widths[stop], stop + 1
        columns = (Column(name, no_wrap=True) for name in names[at:stop])
        table = Table(Column("setting", no_wrap=True), *columns, box=None, header_style="bold")
        for setting, values in rows.items():
            table.add_row(setting, *values[at:stop])
        yield from (("",) if at else ())
        yield table
        at = stop


def presets(*chosen: Annotated[str, Parameter(name="PRESET")], device: DeviceName = "auto", output: Output = Output()) -> None:
    """Show the settings of the presets side by side, and what is off on this machine.

    ```
    strobe presets
    strobe presets --details
    strobe presets balanced turbo --json
    ```

    Of several presets it shows the settings in which they differ; `--details` shows every one, as the document of `--json` does.

    Args:
        chosen: presets to show; all of them if none is named.
        device: auto, cpu, cuda or cuda:N; a knob that does nothing on it is said to be off.
    """
    from strobe.core.device import resolve_device
    from strobe.engine.load import shapes_defaults
    from strobe.engine.presets import PRESETS, diff, preset
    from strobe.engine.resolve import idle_knobs, lacking

    configs = [preset(name) for name in chosen or PRESETS]
    names = [config.name for config in configs]
    where = resolve_device(device)
    off = {config.name: idle_knobs(config, shapes_defaults(), where) for config in configs}
    rows, whole = diff(configs), output.details or len(configs) == 1
    shown = {
        setting: [f"{value}*" if setting in off[name] else value for name, value in zip(names, values, strict=True)]
        for setting, values in rows.items()
        if whole or len(set(values)) > 1
    }
    meanings = {name: (PRESETS[name].__doc__ or "").partition("\n")[0] for name in names}
    output.show(*side_by_side(names, shown), "")
    output.show(*(styled((name, "bold"), f": {meaning}") for name, meaning in meanings.items()))
    for setting, reason in {setting: reason for states in off.values() for setting, reason in states.items()}.items():
        output.show(styled((f"{setting}*", "bold"), f" is off on {where}: {reason}"))
    refused = {config.name: reason for config in configs if (reason := lacking(config, where))}
    for reason in refused.values():
        output.show(styled(("not here", "bold"), f": {reason}"))
    output.emit(
        {
            "lacking": refused,
            "device": str(where),
            "presets": meanings,
            "settings": {setting: dict(zip(names, values, strict=True)) for setting, values in rows.items()},
            "off_here": off,
        }
    )
