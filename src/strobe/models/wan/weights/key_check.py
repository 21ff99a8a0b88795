"""Comparison of a checkpoint's tensors with a transformer's; on a mismatch, the model it looks like and what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.checkpoint import KeyTable, compare_keys
from strobe.models.wan.config import SIZES, WanConfig

ROWS: Final = 3
"""Rows of a kind in the table of an error."""


OTHER_CHANNELS: Final = {
    36: "image-to-video Wan2.1, whose picture encoder this engine lacks",
}
"""Channels of the latents of transformers that are known and cannot run here."""


def check_channels(held: Mapping[str, Tensor], where: str) -> None:
    """Refuse a transformer whose number of latent channels is that of another known model.

    Args:
        held: tensors by their plain names.
        where: names the checkpoint in the error.

    Raises:
        WeightsError: it is one that is known and cannot run here; says which and what it needs.
    """
    patches = held.get("patch_embedding.weight")
    channels = patches.shape[1] if patches is not None and patches.dim() == 5 else 0
    if channels in OTHER_CHANNELS:
        raise WeightsError(f"{where} takes {channels} channels, as {OTHER_CHANNELS[channels]}; give text-to-video weights")


def called(config: WanConfig) -> str:
    """Return name and size of a model, for an error."""
    name = next((name for name, known in SIZES.items() if known == config), "a transformer")
    return f"{name} ({config.num_layers} layers, {config.dim} wide)"


def model_flag(config: WanConfig) -> str:
    """Return the option that asks for a released size."""
    return f"give --model {next(name for name, known in SIZES.items() if known == config)}"


def check_keys(config: WanConfig, expected: Mapping[str, Tensor], held: Mapping[str, Tensor], where: str) -> None:
    """Compare names and shapes with a model's.

    Args:
        config: sizes of the model.
        expected: its tensors, in the checkpoint's spelling.
        held: the checkpoint's tensors.
        where: names the checkpoint in the error.

    Raises:
        WeightsError: they differ: which other model it looks like, or else every difference in one table, the first few of a
            kind.
    """
    table = compare_keys(expected, held)
    if not table:
        return
    width = _width(held)
    if width not in (0, config.dim):  # then no tensor has its shape, and a table of them would say nothing
        raise WeightsError(_another(config, held, width, where))
    inside = frozenset(name.split(".", 2)[2] for name in expected if name.startswith("blocks.0."))
    kinds = {
        "missing": _rows({name: str(list(expected[name].shape)) for name in table.missing}, inside),
        "unexpected": _rows({name: str(list(held[name].shape)) for name in table.unexpected}, inside),
        "another shape": _rows({name: f"{list(given)} instead of {list(own)}" for name, given, own in table.reshaped}),
    }
    rows = [f"  {kind:<14}{row}" for kind, found in kinds.items() for row in _shortened(found)]
    raise WeightsError(";\n".join([f"{where} {_title(config, table, len(expected))}", *rows]))


def _title(config: WanConfig, table: KeyTable, num_expected: int) -> str:
    """Return the title of the error: a checkpoint that only lacks tensors is incomplete, any other is another model."""
    missing, more = len(table.missing), len(table.unexpected) + len(table.reshaped)
    if not more:
        return f"is not all of {called(config)}: {missing} of its {num_expected} tensors are missing; fetch it again"
    kinds = (("missing", table.missing), ("unexpected", table.unexpected), ("of another shape", table.reshaped))
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in kinds if names)
    return f"is not {called(config)}: {counts}, of {num_expected} tensors; give the checkpoint as it was published"


def _another(config: WanConfig, held: Mapping[str, Tensor], width: int, where: str) -> str:
    for known in SIZES.values():
        if known.dim == width:
            return f"{where} looks like {called(known)}, not {called(config)}; {model_flag(known)}"
    layers = len({name.split(".")[1] for name in held if name.startswith("blocks.")})
    return (
        f"{where} looks like a transformer of {layers} layers, {width} wide, not {called(config)}; give a checkpoint of that, "
        "or --model with the folder of this one and a config.json that says its sizes"
    )


def _width(held: Mapping[str, Tensor]) -> int:
    """Return the most frequent width of query norms and the patch embedding; 0 if there are none."""
    names = ("patch_embedding.bias", ".norm_q.weight")
    found = Counter(tensor.shape[0] for name, tensor in held.items() if name.endswith(names) and tensor.dim() == 1)
    return found.most_common(1)[0][0] if found else 0


def _shortened(rows: Sequence[str]) -> list[str]:
    return [*rows[:ROWS], f"... and {len(rows) - ROWS} rows more"] if len(rows) > ROWS + 1 else list(rows)


def _rows(names: Mapping[str, str], inside: frozenset[str] = frozenset()) -> list[str]:
    """Format rows of names with a remark each; whole layers share a row, and so do names that differ only in the layer.

    Args:
        names: of tensors, each with what is said about it.
        inside: names of all tensors of a layer.
    """
    layers: dict[int, set[str]] = {}
    for name in names:
        found = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
        if found:
            layers.setdefault(int(found[1]), set()).add(found[2])
    whole = sorted(number for number, held in layers.items() if inside and inside <= held)
    rows = [f"blocks.*  all {len(inside)} tensors of a layer{_numbered(whole)}"] if whole else []
    rest = {name: said for name, said in names.items() if not name.startswith(tuple(f"blocks.{number}." for number in whole))}

    def key(item: tuple[str, str]) -> tuple[str, str]:
        return re.sub(r"^blocks\.\d+\.", "blocks.*.", item[0]), item[1]

    for (name, said), group in groupby(sorted(rest.items(), key=key), key=key):
        numbers = sorted(int(full.split(".")[1]) for full, _ in group) if name.startswith("blocks.*.") else []
        shown = name.replace("*", str(numbers[0])) if len(numbers) == 1 else name
        rows.append(f"{shown}  {said}{_numbered(numbers) if len(numbers) > 1 else ''}")
    return rows


def _numbered(layers: Sequence[int]) -> str:
    """Format layer numbers and their count."""
    if len(layers) == 1:
        return f" (layer {layers[0]})"
    return f" (layers {layers[0]} to {layers[-1]}, {len(layers)} of them)"
