"""Checks that a configuration goes with the way a model's past is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.engine.config import EngineConfig, ModelDefaults


def check_past(config: EngineConfig, own: ModelDefaults, first_block: int) -> None:
    """Check that a configuration goes with the way a model's past is made.

    Raises:
        ConfigError: it does not; says what to change.
    """
    if own.past == "rolling":
        _check_rolling(config, own, first_block)
    if own.past == "shots":
        _check_shots(config, own)
    if own.past != "recomputed":
        if own.past_weight != 1:
            raise ConfigError(
                f"past_weight {own.past_weight:g} is for models whose past is recomputed, such as those of the recipe krea; "
                "leave it out"
            )
        return
    if own.sink != 1:
        raise ConfigError(
            f"the past of this model is recomputed behind one frame made anew, so its sink is 1; {config.name} has {own.sink}: "
            "give sink 1 and a window of 4 or more (--sink 1 --window 6), or another preset"
        )
    if config.sparsity:
        raise ConfigError(f"sparsity {config.sparsity} does not go with a past that is recomputed: set it to 0")


def _check_rolling(config: EngineConfig, own: ModelDefaults, first_block: int) -> None:
    """Raise ConfigError if a configuration does not go with frame blocks that are denoised several at a time."""
    size, steps = own.frame_block, len(own.timesteps)
    off = {
        f"window {own.window}": own.window < size * (steps + 2) or own.window % size > 0,
        f"sink {own.sink}": own.sink != size,
        f"sparsity {config.sparsity}": config.sparsity > 0,
        f"strength {config.strength:g}": config.strength > 0,
        f"kv_format {config.kv_format!r}": config.kv_format != "native",
        "knob ring_cache off": not config.knobs.ring_cache,
        f"sampler {own.sampler}": own.sampler != "renoise",
        f"first_block {first_block}": first_block != size,
    }
    if wrong := [what for what, found in off.items() if found]:
        raise ConfigError(
            f"{config.name} has {' and '.join(wrong)}, and this model denoises {steps} frame blocks of {size} at once: it needs "
            f"a window of {size * (steps + 2)} or more that is a multiple of {size}, a sink of {size}, a ring of native keys and "
            "values, strength 0, and a first frame block as long as the others; preset balanced has them"
        )


def _check_shots(config: EngineConfig, own: ModelDefaults) -> None:
    """Raise ConfigError if a configuration does not go with sinks of shots."""
    least = 2 * own.sink + own.frame_block
    needs = {  # what is wrong: what to give
        f"sink {own.sink}": ("a sink of 1 or more", own.sink < 1),
        f"window {own.window}": (f"a window of {least} or more for a sink of {own.sink}", own.window < least),
        f"positions {own.positions}": ("absolute positions", own.positions != "absolute"),
        f"sparsity {config.sparsity}": ("sparsity 0", config.sparsity > 0),
        "knob ring_cache off": ("knob ring_cache on", not config.knobs.ring_cache),
    }
    if wrong := {what: need for what, (need, found) in needs.items() if found}:
        raise ConfigError(
            f"{config.name} has {' and '.join(wrong)}; the shots of this model pin frames beside the sink, so give "
            f"{' and '.join(wrong.values())}. Preset balanced has all that shots need, and --recipe causal-wan does without shots"
        )
