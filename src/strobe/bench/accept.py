"""Acceptance of a model with its weights: checks against facts that need no official code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import structs
from torch import Tensor

from strobe.bench.case import Progress
from strobe.bench.cases.stream import Script, StreamCase
from strobe.bench.gate import relative_error
from strobe.bench.quality import readable
from strobe.bench.runner import end_line
from strobe.core.errors import ConfigError
from strobe.core.printable import first_of
from strobe.core.tolerances import tolerance
from strobe.engine.caches import new_cache
from strobe.engine.config import EngineConfig
from strobe.engine.decode import FrameDecoder
from strobe.engine.denoise import draw_block
from strobe.engine.model import Model, latent_shape
from strobe.engine.presets import quality
from strobe.engine.prompts import check_prompts, encode_prompts
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.engine.session import Session
from strobe.engine.transformer import CLEAN, Transformer
from strobe.models.shapes import oracle
from strobe.models.shapes.grammar import parse
from strobe.models.wan.flow import add_noise, to_x0
from strobe.perf.measure.machine import describe_run
from strobe.perf.records.record import Check, CheckGroup, Workload
from strobe.perf.records.store import RunWriter, create_run
from strobe.quality.clips import as_planes

SHORT: Final = 6
"""Frame blocks of the clips that compare prompts and seeds."""
BLOCKS: Final = 3
"""Frame blocks that streaming and one pass are compared on."""
_LEVELS: Final = 255
_NAMED: Final = 3
_PER_LEVEL: Final = "of 255 levels"
_RANDOM: Final = "random weights: what clips look like means nothing, so it is not judged"
_CHANGE: Final = "root mean square of the change that another {} makes / of the latents"
_READS: Final = (
    "fact: a model that reads it gives another clip; two runs of one stream may differ by {low:g} (tolerance of {dtype})"
)


def _rule(group: CheckGroup, name: str, meaning: str, basis: str, **bounds: Any) -> Check:
    return Check(group=group, name=name, value=None, meaning=meaning, basis=basis, **bounds)


_RULES: Final = (
    _rule("weights", "tensors_not_finite", "tensors of {count} that hold NaN or infinity",
          "fact: a product with NaN is NaN", high=0),
    _rule("weights", "matrices_of_zeros", "matrices and convolutions all of whose numbers are 0",
          "fact: the gradient of a trained matrix moved it; only an untrained output or the B of an untrained LoRA is 0", high=0),
    _rule("latents", "latents_not_finite", "numbers of the clip's latents that are NaN or infinite",
          "fact: no picture has such a latent", high=0),
    _rule("latents", "latent_std", "standard deviation of the clip's latents",
          "fact: the autoencoder scales its latents to standard deviation 1 over its data; that one clip is within a factor of 4 "
          "is our bound", low=0.25, high=4.0),
    _rule("latents", "denoising",
          "mean squared error of the clean latents that the model finds in its own noised latents / that of the best linear "
          "estimate, channel by channel; largest of all timesteps but the first",
          "fact: the mean of what latents can be errs less than any linear estimate, and a draw from it at most twice as much",
          high=2.0),
    _rule("frames", "contrast", "standard deviation of the pixels of a frame, mean over colours and frames",
          "ours: a picture of one colour has 0", low=2.0, unit=_PER_LEVEL),
    _rule("frames", "neighbour_correlation",
          "1 - mean squared difference of horizontal neighbours / (2 variance of a frame's pixels)",
          "fact: white noise has 0, pictures of the world 0.9 and more (Field 1987: power falls as 1 / f^2); halfway is our "
          "bound", low=0.5),
    _rule("frames", "motion", "mean absolute change from frame to frame",
          "fact: a still picture has 0; a twentieth of a level is our bound", low=0.05, unit=_PER_LEVEL),
    _rule("frames", "coherence", "change from frame to frame / difference to frames of another prompt and seed",
          "fact: frames that have nothing to do with each other have 1; half is our bound", high=0.5),
    _rule("prompt", "prompt_sensitivity", _CHANGE.format("prompt"), _READS),
    _rule("prompt", "seed_sensitivity", _CHANGE.format("seed"), _READS),
    _rule("prompt", "prompt_accuracy",
          "share of frames whose colour, shape, direction, speed and background are as prompted, the first frame block left out; "
          "the lowest of the clips", "measured: 1.000 over 64 streams, where 0.95 was the target (docs/shapes.md)", low=0.95),
    _rule("stream", "streaming_against_one_pass",
          f"flow of frame block {BLOCKS - 1} over cached keys and values against one pass over all {BLOCKS} with a block-causal "
          "mask, largest relative error of all timesteps",
          "fact: both are the same sums; rounding in {dtype} is within {high:g}"),
    _rule("stream", "streamed_frames_against_one_call",
          f"largest difference of a pixel between {BLOCKS} frame blocks decoded one by one and in one call",
          "fact: the decoder is causal in time; rounding in {dtype} is within {high:g} levels", unit=_PER_LEVEL),
)  # fmt: skip
RULES: Final = {rule.name: rule for rule in _RULES}
"""Every check by its name, without its value. Braces are filled in by what was measured: {count}, and a bound that depends on the
{dtype}."""


def checked(
    name: str,
    value: float,
    detail: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    dtype: torch.dtype | None = None,
    count: int = 0,
) -> Check:
    """Return a value with its verdict under its rule. One that is not a finite number never passes.

    Args:
        low, high: least and largest value that passes, where the rule has none.
    """
    rule, finite = RULES[name], math.isfinite(value)
    low, high = rule.low if low is None else low, rule.high if high is None else high
    return structs.replace(
        rule,
        value=value if finite else None,
        low=low,
        high=high,
        passed=finite and (low is None or value >= low) and (high is None or value <= high),
        meaning=rule.meaning.format(count=count),
        basis=rule.basis.format(low=low, high=high, dtype=str(dtype).removeprefix("torch.")),
        detail=detail if finite else f"not a finite number; {detail}".rstrip("; "),
    )


def check_weights(model: Model) -> Iterator[Check]:
    """Count the tensors of transformer and autoencoder that hold a number that is not finite, and the matrices of zeros."""
    tensors = [
        (f"{part} {name}", tensor)
        for part, module in (("transformer", model.dit), ("autoencoder", model.vae))
        for name, tensor in module.named_parameters()
    ]
    broken = [name for name, tensor in tensors if not _finite(tensor)]
    empty = [name for name, tensor in tensors if tensor.dim() > 1 and not tensor.any()]
    yield checked("tensors_not_finite", len(broken), first_of(broken, _NAMED), count=len(tensors))
    yield checked("matrices_of_zeros", len(empty), first_of(empty, _NAMED))


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.sum(dtype=tensor.dtype).isfinite()) or bool(tensor.isfinite().all())


def check_latents(latents: Tensor) -> Iterator[Check]:
    """Check a clip's latents [F, C, Y, X]: finite, scaled as the autoencoder scales them."""
    bad = (~latents.isfinite()).flatten(1).any(1)
    where = f"first in latent frame {int(bad.int().argmax())}" if bad.any() else ""
    yield checked("latents_not_finite", int((~latents.isfinite()).sum()), where)
    latents = latents.double()
    least, most = (each.item() for each in latents.std(dim=(0, 2, 3)).aminmax())
    yield checked("latent_std", latents.std().item(), f"channels from {least:.3f} to {most:.3f}")


def check_frames(frames: Tensor, unrelated: Tensor) -> Iterator[Check]:
    """Check a clip's frames uint8 [F, Y, X, 3]: contrast, correlation of neighbours, motion, coherence.

    Args:
        unrelated: frames of another prompt and seed, uint8 [F', Y, X, 3].
    """
    planes = as_planes(frames).double()
    across = planes.diff(dim=3)
    motion = planes.diff(dim=0).abs().mean((1, 2, 3)) * _LEVELS  # [F - 1]
    yield checked("contrast", planes.std(dim=(2, 3)).mean().item() * _LEVELS)
    variance = planes.var(dim=(2, 3)).mean().item()
    correlation = 1 - 0.5 * across.square().mean().item() / variance if variance else math.nan
    yield checked("neighbour_correlation", correlation)
    yield checked("motion", motion.mean().item(), f"largest {motion.max().item():.3g}")
    many = min(len(frames), len(unrelated))
    apart = (as_planes(frames[:many]) - as_planes(unrelated[:many])).abs().mean().item() * _LEVELS
    yield checked("coherence", motion.mean().item() / apart if apart else math.nan)


def check_oracle(clips: Sequence[tuple[str, Tensor]], skipped: int) -> Iterator[Check]:
    """Read the bundled model's clips from their pixels: does each show its prompt?

    Args:
        clips: prompts with frames uint8 [F, Y, X, 3].
        skipped: first frames that do not count.
    """
    if not readable(tuple(clips[0][1].shape[1:3]), [prompt for prompt, _ in clips]):
        return
    shares = []
    for prompt, frames in clips:
        found = oracle.detect(frames[skipped:].permute(0, 3, 1, 2).float()[None] / 255)
        shares.append(oracle.accuracy(found, torch.tensor([parse(prompt).attributes]))["every"])
    yield checked("prompt_accuracy", min(shares), ", ".join(f"{share:.3f}" for share in shares))


def plain(model: Model, asked: EngineConfig, device: torch.device) -> ResolvedConfig:
    """Return a configuration that computes what the preset's model does, with nothing evicted, left out or in eight bits."""
    window = BLOCKS * model.defaults.frame_block
    config = replace(quality(), name="accept", window=window, sink=0, positions="absolute", dtype=asked.dtype)
    config = replace(config, timesteps=asked.timesteps, shift=asked.shift)
    return resolve(config, model.defaults, device)


@torch.inference_mode()
def check_equal(model: Model, config: ResolvedConfig, prompt: str, latents: Tensor, seed: int) -> Iterator[Check]:
    """Check that streaming and one pass over all give the same flows and frames, and that the flows remove noise.

    Args:
        config: as `plain` returns it.
        prompt: of the latents.
        latents: the first `BLOCKS` frame blocks of a clip [F, C, Y, X].
    """
    latents, dtype = latents.to(config.device), config.dtype
    prepared = model.shelf.take(model, config)
    dit, decoder = prepared.parts()
    try:
        streamed, whole, clean = flows_of(dit, model, config, prompt, latents, seed)
        pieces, at_once = (decoded(decoder, latents, size).int() for size in (config.frame_block, len(latents)))
    finally:
        decoder.close()
        prepared.release(dit)
    errors = [relative_error(*pair) for pair in zip(streamed, whole, strict=True)]
    yield checked("streaming_against_one_pass", max(errors), high=tolerance("latents", dtype), dtype=dtype)
    yield from check_gain(config, clean, latents)
    most = 1.0 if dtype == torch.float32 else 255 * tolerance("element of a library", dtype)
    error = (pieces - at_once).abs().max().item()
    yield checked("streamed_frames_against_one_call", error, high=most, dtype=dtype)


def flows_of(
    dit: Transformer, model: Model, config: ResolvedConfig, prompt: str, latents: Tensor, seed: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Compute the flows of the last frame block of `latents` [F, C, Y, X] at every timestep in both ways.

    Returns:
        streamed, in one pass over all, and the clean latents that the streamed ones lead to, each [F, C, Y, X] by timestep.
    """
    size, wan = config.frame_block, dit.dit
    text = dit.read(encode_prompts(model.text, [prompt]).to(config.device))
    cache = new_cache(wan.config, latent_shape(model.defaults, wan.config), config, 1)
    blocks = latents.float().unsqueeze(0).split(size, dim=1)
    for index, block in enumerate(blocks[:-1]):
        dit.write(block, text, cache.at(index * size, size))
    noise = draw_block(seed, (0,), BLOCKS, 1, blocks[-1].shape[1:], config.device).initial
    block_of = torch.arange(len(blocks), device=config.device).repeat_interleave(size * wan.grid(blocks[0]).tokens_per_frame)
    mask = block_of.unsqueeze(1) >= block_of.unsqueeze(0)  # [S, S]: a token attends to its own frame block and to earlier ones
    streamed, whole, clean = [], [], []
    for sigma, timestep in zip(config.schedule.sigmas, config.schedule.warped, strict=True):
        noisy = add_noise(blocks[-1], noise, sigma)
        flow = dit.flow(noisy, timestep, text, cache.at(len(blocks) * size - size, size)).clone()
        joined = torch.cat([*blocks[:-1], noisy], dim=1)
        times = torch.tensor([[CLEAN] * (joined.shape[1] - size) + [timestep] * size], device=config.device)
        rope = wan.rope(tuple(range(len(blocks) * size)), wan.grid(joined))
        found = wan(joined, wan.modulation(times), text.kv, rope, mask=mask)[:, -size:]
        streamed.append(flow[0].float())
        whole.append(found[0].float())
        clean.append(to_x0(noisy, flow, sigma)[0])
    return streamed, whole, clean


def check_gain(config: ResolvedConfig, clean: Sequence[Tensor], latents: Tensor) -> Iterator[Check]:
    """Compare the error of the model's clean latents with that of the best linear estimate from the noisy ones, by channel."""
    x0 = latents[-config.frame_block :].double()
    variance = x0.var(dim=(0, 2, 3))  # [C]
    gains = []
    for sigma, found in zip(config.schedule.sigmas, clean, strict=True):
        linear = variance * sigma**2 / ((1 - sigma) ** 2 * variance + sigma**2)
        gains.append(((found.double() - x0).square().mean() / linear.mean()).item())
    told = ", ".join(f"{gain:.3f} at {timestep:g}" for gain, timestep in zip(gains, config.schedule.timesteps, strict=True))
    if len(gains) > 1:  # from pure noise any clip may come
        yield checked("denoising", max(gains[1:]), told)


def decoded(decoder: FrameDecoder, latents: Tensor, size: int) -> Tensor:
    """Decode a clip's latents [F, C, Y, X] in pieces of `size` latent frames to frames uint8 [F', Y, X, 3]."""
    state, found = decoder.state(), []
    for piece in latents.float().unsqueeze(0).split(size, dim=1):
        for made in decoder.start(piece, state):
            state = made.state
            found.append(made.frames[0])
    return torch.cat(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptSubject:
    """The model to accept, and the settings.

    Args:
        prompts: first prompt, and another one.
        seed: of the first clip; the clip of another seed has the next one.
        blocks: frame blocks of the first clip.

    Raises:
        ConfigError: too few frame blocks, equal prompts, or one that the model cannot take.
    """

    model: Model
    config: EngineConfig
    prompts: tuple[str, str]
    device: torch.device
    seed: int
    blocks: int

    def __post_init__(self) -> None:
        check_blocks(self.blocks)
        if self.prompts[0] == self.prompts[1]:
            raise ConfigError("the other prompt is the same as the first; give two different ones")
        check_prompts(self.model.text, self.prompts)

    def clip(self, number: int, more: int, blocks: int) -> tuple[Tensor, Tensor, ResolvedConfig]:
        """Stream the clip of a prompt by its number and a seed further on.

        Returns:
            latents [F, C, Y, X] on the CPU, frames uint8 [F', Y, X, 3], and the configuration that made them.
        """
        prompt, seed = self.prompts[number], self.seed + more
        with Session(prompt, preset=self.config, model=self.model, device=self.device, seed=seed) as session:
            made = [(block.latents[0].cpu(), block.frames) for block in session.stream(blocks)]
            return torch.cat([one for one, _ in made]), torch.cat([two for _, two in made]), session.config


def check_blocks(blocks: int) -> None:
    """Check the length of the first clip.

    Raises:
        ConfigError: streaming and one pass cannot be compared on it.
    """
    if blocks < BLOCKS:
        raise ConfigError(f"{blocks} frame blocks are too few to compare streaming with one pass; give {BLOCKS} or more")


def run_accept(
    subject: AcceptSubject, *, root: Path, progress: Progress, open_run: Callable[[Path, str], RunWriter] = create_run
) -> Path:
    """Run all checks and write them line by line; return the run folder, which `open_run` makes from `root` and a slug."""
    name, script = subject.config.name, Script(prompt=subject.prompts[0], num_blocks=subject.blocks, seed=subject.seed)
    with (
        closing(StreamCase([subject.config], script=script, model=subject.model, device=subject.device)) as case,
        open_run(root, f"accept-{name}") as writer,
    ):
        header = describe_run(writer.folder, subject.device, (name,), 1, "accept")
        writer.append(structs.replace(header, model=case.model, workload=case.workload))
        with end_line(writer):
            writer.append(structs.replace(case.settings(name), calls_per_stage={}))
            for check in checks_of(subject, case.workload, lambda what: progress(0, 1, what)):
                writer.append(not_judged(check) if subject.model.random_weights else check)
    return writer.folder


def not_judged(check: Check) -> Check:
    """Return a check of a model with random weights: what its clips look like means nothing, the rest holds for any weights."""
    if check.group in ("weights", "stream") or check.name == "latents_not_finite":
        return check
    return structs.replace(check, passed=None, basis=_RANDOM)


def checks_of(subject: AcceptSubject, work: Workload, count: Callable[[str], object]) -> Iterable[Check]:
    """Make the clips and yield every check."""
    model, (prompt, other) = subject.model, subject.prompts
    count("weights")
    yield from check_weights(model)
    count("first clip")
    latents, frames, config = subject.clip(0, 0, subject.blocks)
    yield from check_latents(latents)
    count("another prompt")
    prompted, shown, _ = subject.clip(1, 0, SHORT)
    count("another seed")
    seeded, _, _ = subject.clip(0, 1, SHORT)
    _, unrelated, _ = subject.clip(1, 1, SHORT)
    yield from check_frames(frames, unrelated)
    size, dtype = min(len(latents), len(prompted)), config.dtype
    for name, changed in (("prompt_sensitivity", prompted), ("seed_sensitivity", seeded)):  # by more than rounding does
        yield checked(name, relative_error(changed[:size], latents[:size]), low=tolerance("latents", dtype), dtype=dtype)
    if not model.random_weights:
        yield from check_oracle([(prompt, frames), (other, shown)], work.frames_first_block)
    count("streaming against one pass")
    ordinary = plain(model, subject.config, subject.device)
    yield from check_equal(model, ordinary, prompt, latents[: BLOCKS * ordinary.frame_block], subject.seed)
