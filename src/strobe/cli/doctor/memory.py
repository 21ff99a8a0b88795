"""Memory that a stream will hold on a device, part by part, and on each of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Column, Table

from strobe.cli.console import styled
from strobe.cli.model import parse_size
from strobe.core.printable import ByteUnit, bytes_in

if TYPE_CHECKING:
    from strobe.engine.memory import MemoryPart
    from strobe.engine.model import ModelParts
    from strobe.engine.parallel import Degrees
    from strobe.engine.resolve import ResolvedConfig


def asked(preset: str, model: str, size: str | None, device: str) -> tuple[ModelParts, ResolvedConfig]:
    """Resolve the preset and find the sizes of the model; nothing is loaded.

    Raises:
        ConfigError: no model or preset of that name.
    """
    from strobe.core.device import resolve_device
    from strobe.core.errors import unknown_choice
    from strobe.engine.load import model_parts, names
    from strobe.engine.presets import preset as find_preset
    from strobe.engine.resolve import resolve

    if model not in names():
        raise unknown_choice("model", model, names())
    parts = model_parts(model, parse_size(size))
    return parts, resolve(replace(find_preset(preset), simulate=True), parts.defaults, resolve_device(device))


def predict_memory(model: str, parts: ModelParts, config: ResolvedConfig, samples: int) -> dict[str, Any]:
    """Predict the memory of a stream, part by part, bytes."""
    from strobe.engine import memory
    from strobe.models.wan.recipes import RECIPES

    return {
        "preset": config.name,
        "model": model,
        "needs": RECIPES[model].needs if model in RECIPES else "",
        "frame_size": list(parts.defaults.frame_size),
        "samples": samples,
        "dtype": str(config.dtype).removeprefix("torch."),
        **_held(memory.predict(parts, config, samples)),
        "arena_bytes": memory.plan_arena(parts, config, samples).total_bytes,
        "free_bytes": memory.free_bytes(config.device),
    }


def predict_devices(parts: ModelParts, one: ResolvedConfig, samples: int, most: int) -> list[dict[str, Any]]:
    """Predict, for 1 to `most` devices, their grid and the memory of rank 0 and of the fullest other rank, or why they cannot.

    Rank 0 decodes; of the others, rank 1 holds most.
    """
    from strobe.engine.memory import predict_ranks
    from strobe.engine.model import latent_shape
    from strobe.engine.parallel import legal_degrees
    from strobe.engine.parallel.layout import Layout
    from strobe.engine.parallel.rank import on_several

    dit, config = parts.dit.config, on_several(one)
    tokens = latent_shape(parts.defaults, dit).token_grid(dit.patch).tokens_per_frame
    legal = legal_degrees(dit.num_heads, tokens, most, sparse=config.sparsity > 0)
    layouts = [
        Layout(degrees=each.degrees, rank=rank, num_heads=dit.num_heads, tokens_per_frame=tokens)
        for each in legal
        if each.degrees is not None
        for rank in range(min(2, each.num_ranks))
    ]
    held = zip(layouts, predict_ranks(parts, config, layouts, samples), strict=True)
    of_grid: dict[Degrees, list[dict[str, Any]]] = {}
    for layout, found in held:
        of_grid.setdefault(layout.degrees, []).append(_held(found))
    return [
        {
            "devices": each.num_ranks,
            "tree": each.degrees and each.degrees.tree,
            "ulysses": each.degrees and each.degrees.ulysses,
            "reason": each.reason,
            "ranks": of_grid[each.degrees] if each.degrees else [],
        }
        for each in legal
    ]


def _held(parts: tuple[MemoryPart, ...]) -> dict[str, Any]:
    return {"parts": [asdict(part) for part in parts], "total_bytes": sum(part.num_bytes for part in parts)}


def memory_table(memory: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the table of a stream's memory by part, and whether it fits."""
    height, width = memory["frame_size"]
    yield ""
    what = f"{height}x{width}, {memory['samples']} sample(s), {memory['dtype']}"
    unit: ByteUnit = "GiB" if memory["total_bytes"] >= 1 << 30 else "MiB"
    yield styled(("memory", "bold"), f" of {memory['preset']}, {memory['model']}, {what}, in {unit}")
    table = Table("", Column("", justify="right"), "", box=None, show_header=False)
    for part in memory["parts"]:
        table.add_row(f"  {part['name']}", _amount(part["num_bytes"], unit), "" if part["exact"] else "estimated")
    free = memory["free_bytes"]
    verdict = "" if free is None else f"{'fits' if free >= memory['total_bytes'] else 'does not fit'}: {_amount(free, unit)} free"
    table.add_row("  total", _amount(memory["total_bytes"], unit), verdict)
    yield table
    if memory["arena_bytes"]:
        yield f"  {_amount(memory['arena_bytes'], unit)} of it in one pool: keys and values, recorded passes and the decoder"
    yield "  the text encoder is not counted"
    if memory["needs"]:
        yield f"  to download: {memory['needs']}"
    if memory["lacking"]:
        yield styled("  ", ("does not run here", "red"), f": {memory['lacking']}")


def devices_table(devices: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """Yield the table of numbers of devices and the memory of their fullest ranks."""
    yield from ("", styled(("devices", "bold"), " that share it, in GiB each; rank 0 decodes"))
    numbers = (Column(name, justify="right") for name in ("devices", "tree x heads", "rank 0", "others"))
    table = Table(*numbers, "", box=None, header_style="")
    for each in devices:
        grid = f"{each['tree']} x {each['ulysses']}" if each["ranks"] else "cannot"
        held = [_amount(rank["total_bytes"], "GiB") for rank in each["ranks"]]
        table.add_row(str(each["devices"]), grid, *held, *[""] * (2 - len(held)), each["reason"])
    yield table


def _amount(num_bytes: float, unit: ByteUnit) -> str:
    return f"{bytes_in(num_bytes, unit):,.2f}"
