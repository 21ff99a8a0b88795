"""Options of the linter from what the user states about the measurement: frame size, model, window, device."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.core.costs import DEVICES, TRANSFORMERS, DevicePeaks, TransformerShape
from strobe.core.errors import ConfigError, unknown_choice
from strobe.lint.devices import device_named
from strobe.lint.study import Options


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A size in pixels, or as a grid `F,H,W` of latent frames and tokens."""

    grid: str | None = None
    frames_per_block: int | None = None
    height: int | None = None
    width: int | None = None


def options_of(shape: Shape, *, model: str | None, window: int | None, device: str | None) -> Options:
    """Validate the user's statements and derive tokens and frames from them.

    Raises:
        ConfigError: an unknown model or device, half a size, a size without a model, or numbers that are not positive.
        ShapeError: a size that is not a multiple of the model's stride and patch.
    """
    for name, value in (
        ("frames-per-block", shape.frames_per_block),
        ("window", window),
        ("height", shape.height),
        ("width", shape.width),
    ):
        if value is not None and value <= 0:
            raise ConfigError(f"--{name} {value}: give a positive number")
    transformer = None if model is None else _model(model)
    if transformer is None and (
        window is not None or shape.grid is not None or shape.height is not None or shape.width is not None
    ):
        raise ConfigError(f"a size or --window says nothing without --model; known: {', '.join(TRANSFORMERS)}")
    frames, tokens = _grid(shape, transformer)
    return Options(
        frames_per_block=frames,
        model=transformer,
        tokens_per_frame=tokens,
        window=window,
        device=None if device is None else _device(device),
    )


def _model(name: str) -> TransformerShape:
    if name not in TRANSFORMERS:
        raise unknown_choice("model", name, TRANSFORMERS)
    return TRANSFORMERS[name]


def _device(name: str) -> DevicePeaks:
    found = device_named(name)
    if found is None:
        raise unknown_choice("device", name, (device.name for device in DEVICES))
    return found


def _grid(shape: Shape, model: TransformerShape | None) -> tuple[int | None, int | None]:
    """Return the latent frames made at a time, and the tokens of one of them."""
    sizes = (shape.height, shape.width)
    if shape.grid is not None:
        parts = shape.grid.split(",")
        if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
            raise ConfigError(f"--grid {shape.grid}: give latent frames, rows and columns of tokens, such as 3,30,52")
        if sizes != (None, None):
            raise ConfigError("--grid and --size both give the size; give one of them")
        frames, rows, columns = (int(part) for part in parts)
        if shape.frames_per_block not in (None, frames):
            raise ConfigError(
                f"--grid {shape.grid} has {frames} frames, --frames-per-block {shape.frames_per_block}; give one of them"
            )
        return frames, rows * columns
    if sizes == (None, None):
        return shape.frames_per_block, None
    if model is None or shape.height is None or shape.width is None:
        raise ConfigError("give height and width")
    return shape.frames_per_block, model.tokens_per_frame(shape.height, shape.width)
