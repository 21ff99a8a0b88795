"""Comparison of presets of the streaming engine: the same prompts, switches and noise for each."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from strobe.attention.dense.eight.api import explain_eightbit
from strobe.attention.explain import explain
from strobe.attention.impls import Choice
from strobe.attention.sparse.selection import BlockSelection
from strobe.bench import gate, quality
from strobe.bench.operations import keys_of_blocks, rows_of_text, stream_costs
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.settings import forgo_cublaslt_workspace
from strobe.engine import load, presets
from strobe.engine.caches import BLOCK
from strobe.engine.config import EngineConfig
from strobe.engine.memory import check_together, claim_of, free_bytes, predict
from strobe.engine.model import Model
from strobe.engine.prompts import Switch, check_prompts, check_switches
from strobe.engine.resolve import ResolvedConfig, check_device, idle_knobs, resolve
from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot
from strobe.engine.stream import FrameBlock
from strobe.engine.video import VideoFile
from strobe.perf.measure.profile import file_sha256
from strobe.perf.records import record

REFERENCE: Final = "quality"
"""Preset of the reference clip for quality, with the same noise, in the device's default dtype."""
GATE_BLOCKS: Final = 6
"""Frame blocks that a candidate is checked on: enough to fill the largest window and evict, with a prompt switch on the way."""
GATE_SWITCH: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Prompts, length in frame blocks and seed of every clip.

    Raises:
        ConfigError: two switches at one frame block, or one after the end.
    """

    prompt: str
    switches: tuple[Switch, ...] = ()
    num_blocks: int = 14
    seed: int = 0

    def __post_init__(self) -> None:
        late = [switch for switch in check_switches(self.switches) if switch.frame_block >= self.num_blocks]
        if late:
            raise ConfigError(
                f"the switch to {late[0].prompt!r} at frame block {late[0].frame_block} would never take effect: "
                f"the clip has frame blocks 0..{self.num_blocks - 1}"
            )


class StreamCase:
    """Case that compares presets on one script; a `strobe.bench.case.Case`.

    All variants have a session open while they are timed, because their clips are interleaved. It is checked here that all of
    them will fit. Quality is judged after they were closed.

    Args:
        configs: presets by name, or configurations; the first is the baseline.
        review_samples: clips, each with noise of its own, that quality is judged on.
        absent: presets that were asked for and cannot run here, as `runnable` finds them; they are only recorded.

    Raises:
        ConfigError: unknown preset or word.
        StrobeError: the GPU has too little free memory for all sessions; says how many would fit.
    """

    def __init__(
        self,
        configs: Sequence[str | EngineConfig],
        *,
        script: Script,
        model: Model,
        device: str | torch.device = "auto",
        review_samples: int = 4,
        absent: Sequence[record.Absent] = (),
    ) -> None:
        asked = [presets.preset(config) if isinstance(config, str) else config for config in configs]
        self._configs = {config.name: config for config in asked}
        self.baseline, *candidates = (config.name for config in asked)
        self.candidates = tuple(candidates)
        self.absent = tuple(absent)
        self.slug = "-".join(config.name for config in asked)
        self.device = resolve_device(device)
        if self.device.type == "cuda":
            forgo_cublaslt_workspace()  # as every session does, and before the run is described
        self._script = script
        self._loaded = model
        self.notes = self._loaded.notes
        check_prompts(self._loaded.text, [script.prompt, *(switch.prompt for switch in script.switches)])
        self._check_room()
        self._samples = tuple(range(review_samples))
        self._sessions: dict[str, tuple[Session, Snapshot]] = {}
        self._gate_latents: list[Tensor] | None = None
        self._reference: Tensor | None = None
        self.model: record.Model | None = record.Model(
            name=self._loaded.name,
            weights_sha256=self._loaded.weights_hash,
            num_params=sum(parameter.numel() for parameter in self._loaded.dit.parameters()),
        )
        self.workload = self._workload()

    @property
    def metrics(self) -> tuple[str, ...]:
        prompts = [prompt.text for prompt in self.workload.prompts]
        return quality.metrics(self._loaded.defaults.frame_size, () if self._loaded.random_weights else prompts)

    def gate(self, name: str) -> record.Gate:
        """Check a candidate against the baseline on its first frame blocks.

        A candidate with the baseline's schedule, window, positions and dtype must make the same latents. Any other must make
        finite ones and, where the oracle can read the clip, show an object. What runs a kernel without a green gate on this card
        has no number.
        """
        both = self._configs[name], self._configs[self.baseline]
        if sparse := [config for config in both if config.sparsity and config.attention_format == "native"]:
            held = gate.recorded(self._sparse_choice(sparse[0]), self.device)
            if not held.passed:
                return held.line(name, self.baseline)
        if self._gate_latents is None:
            self._gate_latents = [latents for latents, _ in self._gate_clip(self.baseline)]
        blocks = self._gate_clip(name)
        found = [latents for latents, _ in blocks]
        if self._computes(name) == self._computes(self.baseline):
            dtype = self._session(name).config.dtype
            held = gate.same_latents(found, self._gate_latents, dtype)
        else:
            held = gate.finite(found)
            if held.passed and quality.readable(self._loaded.defaults.frame_size, [self._script.prompt]):
                held = quality.shows_object(torch.cat([frames for _, frames in blocks[1:]]))
        return held.line(name, self.baseline)

    def prepare(self, name: str) -> None:
        self._session(name)
        session, start = self._sessions[name]
        session.restore(start)

    def blocks(self, name: str) -> Iterator[object]:
        session = self._session(name)
        session.prompt(self._script.prompt, wait=True)
        yield from session.stream(self._script.num_blocks, switches=self._script.switches)

    def launched(self, name: str) -> AbstractContextManager[None] | None:
        session = self._session(name)
        return session.launched() if session.config.knobs.cuda_graphs else None

    def settings(self, name: str) -> record.Variant:
        config, work = resolve(self._configs[name], self._loaded.defaults, self.device), self.workload
        grid = self._loaded.dit.config.patch
        height, width = self._loaded.defaults.stride.latent_size(work.height, work.width)
        per_frame = (height // grid[0]) * (width // grid[1])
        impl, passed_over = self._attention(config, per_frame)
        idle = idle_knobs(self._configs[name], self._loaded.defaults, self.device)
        prompts = [self._script.prompt, *(each.prompt for each in self._script.switches)]
        return record.Variant(
            name=name,
            preset=_preset_of(self._configs[name]),
            knobs=tuple(
                record.Knob(name=knob, value="on" if on else "off", on=on, reason=idle.get(knob, ""))
                for knob, on in asdict(config.knobs).items()
            ),
            attention_impl=impl,
            attention_reason=passed_over,
            sparsity=config.sparsity,
            window=config.policy.window,
            sink=config.policy.sink,
            positions=config.positions,
            timesteps=tuple(config.schedule.timesteps),
            shift=config.schedule.shift,
            steps=len(config.schedule.timesteps),
            dtype=str(config.dtype).removeprefix("torch."),
            lora="; ".join(lora.account for lora in self._loaded.loras) or None,
            linear_format=config.linear_format + (", simulated" if config.simulated else ""),
            kv_format=config.kv_format,
            attention_format=config.attention_format,
            compile_mode="default" if config.knobs.compile else None,
            tokens_per_block=config.frame_block * per_frame,
            costs=stream_costs(self._loaded, config, rows_of_text(self._loaded, prompts, config)),
            attended_keys=keys_of_blocks(self._loaded, config),
            predicted_bytes=sum(predict(self._loaded, config).values()),
        )

    def review(self, name: str, folder: Path) -> Iterator[record.Quality | record.Video]:
        """Judge the variant's clips against the reference with the same noise and by the oracle; keep the first as a file.

        Closes the sessions of all variants, whose memory these clips need: nothing is measured after this.

        Clips of a model with random weights are not made: their quality means nothing.
        """
        if self._loaded.random_weights:
            yield from quality.not_measured(name, load.RANDOM)
            return
        self.close()
        best, own = presets.preset(REFERENCE), self._configs[name]
        if self._reference is None:
            self._reference = self._clips(best)
        frames = self._reference if own == best else self._clips(own)
        dtype = str(resolve(best, self._loaded.defaults, self.device).dtype).removeprefix("torch.")
        yield from quality.against_reference(name, frames, self._reference, f"{REFERENCE}, {dtype}, {self.device.type}")
        yield from quality.by_oracle(name, frames, self.workload)
        yield self._keep(name, frames[0], folder)

    def close(self) -> None:
        for session, _ in self._sessions.values():
            session.close()
        if self._sessions:
            self._sessions.clear()
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _check_room(self) -> None:
        claims = {}
        for name, asked in self._configs.items():
            config = resolve(asked, self._loaded.defaults, self.device)
            claims[name] = claim_of(predict(self._loaded, config), config)
        check_together(claims, free_bytes(self.device), self.device)

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            session = Session(preset=self._configs[name], model=self._loaded, seed=self._script.seed, device=self.device)
            session.warm_up()
            self._sessions[name] = session, unwritten(session.snapshot())
        return self._sessions[name][0]

    def _computes(self, name: str) -> tuple[object, ...]:
        """Return the settings that decide the values: variants that agree in them must agree in their latents."""
        config = self._session(name).config
        formats = config.linear_format, config.kv_format, config.attention_format
        return config.schedule, config.policy, config.positions, config.sparsity, config.keep_sink, config.dtype, formats

    def _gate_clip(self, name: str) -> list[tuple[Tensor, Tensor]]:
        self.prepare(name)
        return [(block.latents.cpu(), block.frames) for block in self._gate_stream(self._session(name))]

    def _gate_stream(self, session: Session) -> Iterator[FrameBlock]:
        """Make a short clip with one hard prompt switch."""
        prompt = self._script.switches[0].prompt if self._script.switches else self._script.prompt
        session.prompt(self._script.prompt, wait=True)
        yield from session.stream(GATE_BLOCKS, switches=(Switch(frame_block=GATE_SWITCH, prompt=prompt),))

    def _clips(self, config: EngineConfig) -> Tensor:
        """Return the frames of all review samples, uint8 [B, F, Y, X, 3]."""
        script = self._script
        with Session(
            script.prompt, preset=config, model=self._loaded, seed=script.seed, samples=self._samples, device=self.device
        ) as session:
            return torch.cat([block.samples for block in session.stream(script.num_blocks, switches=script.switches)], dim=1)

    def _keep(self, name: str, frames: Tensor, folder: Path) -> record.Video:
        path = folder / "clips" / f"{name}.mp4"
        path.parent.mkdir(exist_ok=True)
        with VideoFile(path, fps=self.workload.fps) as video:
            video.write(frames)
        return record.Video(
            variant=name,
            path=str(path.relative_to(folder)),
            sha256=file_sha256(path),
            frames=len(frames),
            fps=self.workload.fps,
            caption=f"seed {self._script.seed}",
        )

    def _attention(self, config: ResolvedConfig, tokens_per_frame: int) -> tuple[str, str]:
        """Return the impl that self-attention uses for a steady frame block, and the reasons against the others."""
        dit = self._loaded.dit.config
        shape = (1, config.frame_block * tokens_per_frame, dit.num_heads, dit.head_dim)
        query = torch.empty(shape, device=config.device, dtype=config.dtype)
        keys = torch.empty((1, config.policy.window * tokens_per_frame, *shape[2:]), device=config.device, dtype=config.dtype)
        choice = (explain if config.attention_format == "native" else explain_eightbit)(query, keys, keys)
        return choice.impl.name, gate.passed_over(choice)

    def _sparse_choice(self, config: EngineConfig) -> Choice[Any]:
        dit, dtype = self._loaded.dit.config, resolve(config, self._loaded.defaults, self.device).dtype
        tile = torch.empty(1, BLOCK, dit.num_heads, dit.head_dim, device=self.device, dtype=dtype)
        seen = torch.ones(1, dit.num_heads, 1, 1, dtype=torch.bool, device=self.device)
        return explain(tile, tile, tile, BlockSelection.from_mask(seen, block=BLOCK), return_lse=True)

    def _workload(self) -> record.Workload:
        defaults, script = self._loaded.defaults, self._script
        stride, size = defaults.stride, defaults.frame_block
        switches = [
            record.PromptAt(frame_block=switch.frame_block, text=switch.prompt, mode=switch.mode)
            for switch in check_switches(script.switches)
        ]
        height, width = defaults.frame_size
        return record.Workload(
            prompts=(record.PromptAt(frame_block=0, text=script.prompt, mode="start"), *switches),
            seed=script.seed,
            frame_blocks=script.num_blocks,
            latents_per_block=size,
            frames_first_block=stride.frames(0, size),
            frames_per_block=stride.frames(size, size),
            frames=stride.frames(0, size * script.num_blocks),
            height=height,
            width=width,
            fps=defaults.fps,
        )


def runnable(
    configs: Sequence[EngineConfig], device: str | torch.device
) -> tuple[tuple[EngineConfig, ...], tuple[record.Absent, ...]]:
    """Separate the configurations that a device can run from those that it cannot, with the reason; the first is the baseline.

    Raises:
        ImplUnavailableError: the baseline cannot run there, or no candidate can.
    """
    place, refused = resolve_device(device), dict[str, ImplUnavailableError]()
    for config in configs:
        try:
            check_device(config, place)
        except ImplUnavailableError as error:
            refused[config.name] = error
    found = tuple(config for config in configs if config.name not in refused)
    baseline = configs[0].name
    if baseline in refused:
        raise refused[baseline]
    if refused and len(found) == 1:
        raise next(iter(refused.values()))
    return found, tuple(record.Absent(variant=name, reason=error.reason) for name, error in refused.items())


def named_apart(configs: Sequence[EngineConfig]) -> tuple[EngineConfig, ...]:
    """Number configurations that occur several times: `turbo`, `turbo-2`, `turbo-3`."""
    seen: Counter[str] = Counter()
    found = []
    for config in configs:
        seen[config.name] += 1
        count = seen[config.name]
        found.append(config if count == 1 else replace(config, name=f"{config.name}-{count}"))
    return tuple(found)


def _preset_of(config: EngineConfig) -> str:
    """Return the preset that a configuration equals, whatever its name; `record.CUSTOM` if none."""
    if config.name in presets.PRESETS:
        return config.name
    same = (
        name for name, make in presets.PRESETS.items() if replace(make(), name=config.name, simulate=config.simulate) == config
    )
    return next(same, record.CUSTOM)


def unwritten(start: Snapshot) -> Snapshot:
    """Copy a snapshot from before the first frame block with a cache that takes no memory, since nothing in it is read."""
    assert start.cache.end == 0
    tensors = {name: getattr(start.cache, name) for name in ("keys", "values", "sink_keys")}
    zeros = {name: tensor.new_zeros(()).expand(tensor.shape) for name, tensor in tensors.items()}
    return replace(start, cache=replace(start.cache, **zeros))
