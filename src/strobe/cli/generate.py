"""`strobe generate`: prompts to a clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from strobe.cli.console import Advance, Output
from strobe.cli.model import ModelFlags, at_least
from strobe.cli.pick import picked_for
from strobe.cli.ranks import follows, joined, said_by_rank_0
from strobe.core.errors import ConfigError, DataError, unknown_choice

if TYPE_CHECKING:
    from strobe.engine.config import EngineConfig
    from strobe.engine.frame_block import FrameBlock
    from strobe.engine.load import Model
    from strobe.engine.parallel import DeviceGroup
    from strobe.engine.prompts import Switch
    from strobe.engine.session import Session


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Engine(ModelFlags):
    """What makes the frames.

    Args:
        preset: baseline, quality, balanced, speed, turbo, ultra and others, see `strobe presets show --diff`; or realtime: the
            best quality that holds the model's frame rate here, measured first as by `strobe presets pick`.
        model: shapes, wan-1.3b, wan-14b, or a folder: of weights that `strobe train-shapes` wrote, or a Wan checkpoint.
        weights: file or folder of a Wan model's weights.
        lora: a LoRA file for it; one beside LongLive's base is found by itself.
        random_weights: draw a Wan model's weights: to measure speed, for the frames mean nothing.
        vae: file of another autoencoder for a Wan model, such as taew2_1; with random weights, tiny.
        release: folder of Wan2.1 as released, for umT5 and VAE, if they are not beside the weights.
        prompt_cache: folder that keeps the embeddings of prompts for the next time.
        size: frame height x width of a Wan model, such as 320x576; 480x832 by default.
        simulate: where a preset wants FP8 and the device has none: compute what FP8 would give, no faster; every record says so.
        image: picture that the clip begins with; scaled to fill the frame, what sticks out is cut off.
        seed: of all noise; the same seed, preset and prompts give the same clip.
        device: auto, cpu, cuda or cuda:N.
        decode_device: where the autoencoder runs, such as cuda:1; where the transformer does by default.
        ulysses: under torchrun, how many processes share the heads; what is left of them shares the keys. As many as can by
            default.
    """

    preset: str = "balanced"
    seed: int = 0
    device: str = "auto"
    decode_device: str | None = None
    ulysses: int | None = None
    image: Path | None = None

    def choose(self, prompt: str, device: str | DeviceGroup, advance: Advance) -> Chosen:
        """What the flags name; of preset realtime, what is measured to hold the model's frame rate.

        Raises:
            ConfigError: no such preset, or realtime on several devices.
            DataError: no such picture.
            ImplUnavailableError: the preset does not run on the device.
        """
        from strobe.core.device import resolve_device
        from strobe.engine.config import check_device
        from strobe.engine.presets import PRESETS, REALTIME

        if self.preset not in (*PRESETS, REALTIME):
            raise unknown_choice("preset", self.preset, (*PRESETS, REALTIME))
        if self.image is not None and not self.image.is_file():
            raise DataError(f"cannot read the picture {self.image}: no such file; give a .png, .jpg or .webp file")
        if self.preset != REALTIME:
            config = replace(self.config(self.preset), decode_device=self.decode_device)
            check_device(config, resolve_device(device) if isinstance(device, str) else device.device)
            return Chosen(model=self.load(), config=config)
        if not isinstance(device, str):
            raise ConfigError(f"preset {REALTIME!r} measures one device and torchrun shares several; name another preset")
        model, picked = picked_for(self, prompt, None, (device, self.decode_device), advance)
        return Chosen(model=model, config=picked.config, why=picked.why)

    def open(self, prompt: str, device: str | DeviceGroup, chosen: Chosen) -> Session:
        """A session as the flags say, on the device of the flags or several; begins with a picture if there is one."""
        from strobe.engine.session import Session
        from strobe.engine.video import read_image

        model = chosen.model
        start = None if self.image is None else read_image(self.image, model.defaults.frame_size)
        return Session(prompt, preset=chosen.config, model=model, seed=self.seed, device=device, start=start)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What will run; of preset realtime, `why` says how it was found."""

    model: Model
    config: EngineConfig
    why: str | None = None


def generate(
    prompt: str,
    /,
    *,
    switch: tuple[str, ...] = (),
    mode: Literal["recache", "soft", "interpolate"] = "recache",
    seconds: float | None = None,
    blocks: int | None = None,
    out: Annotated[Path, Parameter(alias="-o")] = Path("clip.mp4"),
    engine: Engine = Engine(),
    output: Output = Output(),
) -> None:
    """Make a clip from a prompt, steered by prompt switches.

    ```
    strobe generate "a red circle moving left" -o clip.mp4
    strobe generate "a red circle moving left" --switch 4.5s:"a blue square moving up" \\
        --switch block=12:"a green star moving right" --preset turbo -o clip.gif
    torchrun --nproc-per-node 2 -m strobe generate "a red circle moving left"
    ```

    Args:
        prompt: what to show first.
        switch: TIME:PROMPT, where TIME is seconds (4.5s) or a frame block (block=12); may be given several times.
        mode: how prompts switch: recache (hard), soft or interpolate.
        seconds: length of the clip, 10 unless --blocks is given.
        blocks: length of the clip in frame blocks.
        out: the file; .mp4 and .mkv are H.264, .gif and .webp are animations. Until it is complete it grows as clip.partial.mp4.
    """
    output = said_by_rank_0(output)
    with joined(engine.device, engine.ulysses) as device, output.progress("frame blocks") as advance:
        from strobe.engine.video import check_video_path

        _check_length(seconds, blocks)
        check_video_path(out)  # before anything slow is loaded
        from strobe.engine.prompts import blocks_for, parse_switch, read_switch

        for text in switch:
            read_switch(text)
        chosen = engine.choose(prompt, device, advance)
        if chosen.why:
            output.note(f"realtime: {chosen.why}")
        clip = Clip(path=out, picked=chosen.why)
        with engine.open(prompt, device, chosen) as session:
            defaults, first = session.model.defaults, session.config.first_block
            length = 10.0 if seconds is None else seconds
            total = blocks if blocks is not None else blocks_for(length, defaults, first_block=first)
            switches = [parse_switch(text, defaults, mode=mode, first_block=first) for text in switch]
            if follows():
                for _ in session.stream(total, switches=switches):
                    pass
                return
            try:
                clip.record(session, total, switches, advance)
            finally:
                if not clip.broken:
                    output.show(*clip.lines(session))
                    output.emit(clip.document(session))


def _check_length(seconds: float | None, blocks: int | None) -> None:
    if seconds is not None and blocks is not None:
        raise ConfigError("give --seconds or --blocks, not both")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(f"--seconds {seconds:g}: give more than 0, and an end")
    at_least(1, blocks=blocks)


@dataclass(kw_only=True)
class Clip:
    """A clip on its way to a file, and what is known about it so far.

    Args:
        picked: why its preset, if it was asked for realtime.
        broken: there is no file yet, or it could not be written; the error says what is left of it.
    """

    path: Path
    picked: str | None = None
    broken: bool = True
    frames: int = 0
    frame_blocks: int = 0
    work_ns: int = 0
    prompts: list[dict[str, Any]] = field(default_factory=list)

    def record(self, session: Session, total: int, switches: Sequence[Switch], advance: Advance) -> None:
        """Make `total` frame blocks and write them as they come; whatever happens, those that were made are in a file."""
        from strobe.engine.video import VideoFile

        video = VideoFile(self.path, fps=session.model.defaults.fps)
        try:
            with video:
                for block in session.stream(total, switches=switches):
                    video.write(block.frames)
                    self._count(block)
                    advance(self.frame_blocks, total, block.prompt)
        finally:
            self.broken, self.path = video.broken, video.written

    def _count(self, block: FrameBlock) -> None:
        self.frames += len(block.frames)
        self.frame_blocks += 1
        self.work_ns += block.elapsed_ns
        if not self.prompts or self.prompts[-1]["text"] != block.prompt:
            self.prompts.append({"frame_block": block.index, "text": block.prompt})

    def document(self, session: Session) -> dict[str, Any]:
        """What was made. Frames per second count the work from noise to pixel frames, without loading and file writing."""
        return {
            "path": str(self.path) if self.frames else None,
            "frames": self.frames,
            "frame_blocks": self.frame_blocks,
            "fps": session.model.defaults.fps,
            "preset": session.config.name,
            "picked": self.picked,
            "model": session.model.name,
            "device": str(session.config.device),
            "devices": session.num_devices,
            "work_ns": self.work_ns,
            "pixel_fps": self.frames * 1e9 / self.work_ns if self.frames else None,
            "prompts": self.prompts,
        }

    def lines(self, session: Session) -> Iterator[str]:
        """The same in a line, if anything was made."""
        if self.frames:
            made = self.document(session)
            where = f"{made['devices']} x {session.config.device.type}" if made["devices"] > 1 else made["device"]
            who = f"{made['preset']}, {made['model']}, {where}"
            yield (
                f"{self.path}: {self.frames} frames, {self.frames / made['fps']:.1f} s at {made['fps']} FPS, made in "
                f"{self.work_ns / 1e9:.2f} s = {made['pixel_fps']:.1f} pixel FPS ({who})"
            )
