"""`strobe generate`: a clip from prompts, or from a recipe that the live page saved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from strobe.cli.completion import DeviceName, PresetName
from strobe.cli.console import OUT, Advance, Output
from strobe.cli.model import ModelFlags, at_least, settings_notes
from strobe.cli.ranks import follows, joined, said_by_rank_0
from strobe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from strobe.engine.config import EngineConfig
    from strobe.engine.model import Model
    from strobe.engine.parallel import DeviceGroup
    from strobe.engine.prompts import Switch
    from strobe.engine.session import Session
    from strobe.serve.protocol import RecipeAnswer


FOLLOWED: Final = 0.7
"""Strength at which a clip is followed if none is said."""
PROMPTS: Final = Parameter(group="Prompts")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Engine(ModelFlags):
    """Flags of the engine: preset, model, seed and start image.

    Args:
        preset: baseline, quality, balanced, turbo, ultra and others, see `strobe presets`.
        image: picture that the clip begins with; scaled to fill the frame, what sticks out is cut off.
        start: video or folder of pictures that the clip begins with; fitted in the same way, its frame rate is not changed.
        follow: video or folder of pictures that is made anew under the prompt, see --strength; then the clip goes on by itself.
        strength: how far --follow leaves its clip: the highest noise level of the schedule that is not above it, up to 1.
        seed: of all noise; the same seed, preset and prompts give the same clip.
        device: auto, cpu, cuda or cuda:N.
        ulysses: under torchrun, how many processes share the heads; what is left of them shares the keys. As many as can by
            default.
    """

    preset: PresetName = "balanced"
    seed: int = 0
    device: DeviceName = "auto"
    ulysses: int | None = None
    image: Path | None = None
    start: Path | None = None
    follow: Path | None = None
    strength: float | None = None

    def check_start(self) -> None:
        """Refuse two beginnings, a strength without a clip to follow, and a file that is not there.

        Raises:
            ConfigError: it is so.
            DataError: no such picture or clip.
        """
        given = [name for name in ("image", "start", "follow") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"a clip has one beginning: give --{given[0]} or --{given[1]}, not both")
        if self.strength is not None and (self.follow is None or not 0 < self.strength <= 1):
            why = "it goes with --follow CLIP" if self.follow is None else "give more than 0, up to 1"
            raise ConfigError(f"--strength {self.strength:g}: {why}")
        if self.image is not None and not self.image.is_file():
            raise DataError(f"cannot read the picture {self.image}: not a file; give a .png, .jpg or .webp file")
        clip = self.start or self.follow
        if clip is not None and not clip.exists():
            raise DataError(f"cannot read the clip {clip}: no such file; give a video or a folder of pictures")

    def frames(self, model: Model, image: bytes) -> Tensor | None:
        """Return the frames that the clip begins with or follows, or that of `image`, a recipe's picture; None: none."""
        from strobe.engine.start import fitted
        from strobe.engine.video import decode_image, read_image
        from strobe.quality.clips import read_clip

        defaults, clip = model.defaults, self.start or self.follow
        if image:
            return decode_image(image, defaults.frame_size)
        if clip is not None:
            return fitted(read_clip(clip), defaults.frame_size, defaults.stride)
        return None if self.image is None else read_image(self.image, defaults.frame_size)

    def choose(self, device: str | DeviceGroup) -> tuple[Model, EngineConfig]:
        """Return model and preset of the flags.

        Raises:
            ConfigError: no such preset.
            DataError: no such picture.
            ImplUnavailableError: the preset does not run on the device.
        """
        from strobe.core.device import resolve_device
        from strobe.engine.resolve import check_device

        preset = self.config(self.preset)
        self.check_start()
        strength = 0.0 if self.follow is None else FOLLOWED if self.strength is None else self.strength
        config = replace(preset, strength=strength)
        place = resolve_device(device) if isinstance(device, str) else device.device
        check_device(config, place)
        self.check_settings(config, place)
        return self.load(), config


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClipFile:
    """Flags of the clip's length and file.

    Args:
        seconds: length of the clip, 10 unless --blocks is given, a recipe says it, or a clip is followed.
        blocks: length of the clip in frame blocks.
        out: the file, .mp4 or .mkv, in H.264. Until it is complete it grows as clip.partial.mp4.
        force: replace a clip that is there.
    """

    seconds: float | None = None
    blocks: int | None = None
    out: Annotated[Path, Parameter(alias=OUT)] = Path("clip.mp4")
    force: bool = False

    def num_blocks(self, session: Session, followed: Tensor | None) -> int:
        """Return the number of frame blocks: as given, else those of a clip that is followed, else of 10 seconds."""
        from strobe.engine.prompts import blocks_for
        from strobe.engine.start import blocks_given

        if self.blocks is not None:
            return self.blocks
        if self.seconds is None and followed is not None:
            return blocks_given(len(followed), session.config, session.model.defaults.stride)
        seconds = 10.0 if self.seconds is None else self.seconds
        return blocks_for(seconds, session.model.defaults, first_block=session.config.first_block)


def generate(
    prompt: str | None = None,
    /,
    *,
    replay: Path | None = None,
    switch: Annotated[tuple[str, ...], PROMPTS] = (),
    mode: Annotated[Literal["recache", "soft", "interpolate", "shot"], PROMPTS] = "recache",
    file: ClipFile = ClipFile(),
    engine: Engine = Engine(),
    output: Output = Output(),
) -> None:
    """Make a clip from a prompt, steered by prompt switches.

    ```
    strobe generate "a red circle moving left" -o clip.mp4  # slow
    strobe generate "a red circle moving left" --switch 4.5s:"a blue square moving up" \\
        --switch block=12:"a green star moving right" --preset turbo -o clip.mkv  # slow
    strobe generate "a red circle moving left" --follow walk.mp4 --strength 0.7 -o painted.mp4  # needs-files
    strobe generate --replay strobe-recipe.json -o again.mp4  # needs-files
    torchrun --nproc-per-node 2 -m strobe generate "a red circle moving left"  # slow
    ```

    Args:
        prompt: what to show first; left out with --replay. Several at once, each with a weight: "(PROMPT:0.7) (PROMPT:0.3)".
        replay: file that the page of `strobe serve` saved: prompts, seed, preset and start image of a stream. It is made again,
            bit by bit on a device of the same kind. What differs from where it was made is said.
        switch: TIME:PROMPT, where TIME is seconds (4.5s) or a frame block (block=12), one or several.
        mode: how prompts switch: recache (hard), soft, interpolate or shot.
    """
    output = said_by_rank_0(output)
    with joined(engine.device, engine.ulysses) as device, output.progress("frame blocks") as advance:
        if file.seconds is not None and file.blocks is not None:
            raise ConfigError("give --seconds or --blocks, not both")
        if file.seconds is not None and not 0 < file.seconds < math.inf:
            raise ConfigError(f"--seconds {file.seconds:g}: give more than 0, and an end")
        at_least(1, blocks=file.blocks)
        from strobe.engine.video import check_video_path

        check_video_path(file.out)
        from strobe.engine.prompts import Switch, check_switches, parse_switch, read_switch

        read = None if replay is None else read_recipe(replay)
        if read is not None:
            if prompt is not None or switch or engine.image or engine.start or engine.follow:
                raise ConfigError("--replay has prompts, switches and start image of its own; leave them out")
            prompt, engine = read.prompts[0].text, replace(engine, seed=read.seed, preset=read.preset)
        if not prompt:
            raise ConfigError("say what to show: strobe generate PROMPT, or --replay FILE")
        engine.check_prompts((prompt, *(read_switch(text)["prompt"] for text in switch)))
        if file.out.is_file() and not file.force:
            raise ConfigError(f"{file.out} exists; --force replaces it, -o names another")
        from strobe.engine.session import Session

        model, config = engine.choose(device)
        for note in settings_notes(model, config):
            output.note(note)
        clip = WrittenClip(path=file.out)
        start = engine.frames(model, b"" if read is None else start_image(read))
        with Session(prompt, preset=config, model=model, seed=engine.seed, device=device, start=start) as session:
            total = file.num_blocks(session, None if engine.follow is None else start)
            defaults, first = session.model.defaults, session.config.first_block
            switches = check_switches([parse_switch(text, defaults, mode=mode, first_block=first) for text in switch])
            if read is not None:
                total = total if file.seconds or file.blocks else read.frame_blocks
                later = (each for each in read.prompts[1:] if each.frame_block < total)
                switches = tuple(
                    Switch(frame_block=each.frame_block, prompt=each.text, mode=each.mode, over=each.over) for each in later
                )
                for told in mismatches(read, session):
                    output.note(f"the frames may differ from the stream's: {told}")
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


@dataclass(kw_only=True)
class WrittenClip:
    """A clip that is being written to a file, and its figures so far.

    Args:
        broken: there is no file yet, or it could not be written; the error says what is left of it.
    """

    path: Path
    broken: bool = True
    frames: int = 0
    frame_blocks: int = 0
    work_ns: int = 0
    prompts: list[dict[str, Any]] = field(default_factory=list)

    def record(self, session: Session, total: int, switches: Sequence[Switch], advance: Advance) -> None:
        """Make `total` frame blocks and write them as they come; on failure or interruption the file keeps those made."""
        from strobe.engine.video import VideoFile

        video = VideoFile(self.path, fps=session.model.defaults.fps)
        try:
            with video:
                for block in session.stream(total, switches=switches):
                    video.write(block.frames)
                    self.frames += len(block.frames)
                    self.frame_blocks += 1
                    self.work_ns += block.elapsed_ns
                    if not self.prompts or self.prompts[-1]["text"] != block.prompt:
                        self.prompts.append({"frame_block": block.index, "text": block.prompt})
                    advance(self.frame_blocks, total, block.prompt)
        finally:
            self.broken, self.path = video.broken, video.written

    def document(self, session: Session) -> dict[str, Any]:
        """Return the clip's document. Frames per second count the work from noise to pixels, without loading and file writing."""
        return {
            "path": str(self.path) if self.frames else None,
            "frames": self.frames,
            "frame_blocks": self.frame_blocks,
            "fps": session.model.defaults.fps,
            "preset": session.config.name,
            "model": session.model.name,
            "device": str(session.config.device),
            "devices": session.num_devices,
            "work_ns": self.work_ns,
            "pixel_fps": self.frames * 1e9 / self.work_ns if self.frames else None,
            "prompts": self.prompts,
        }

    def lines(self, session: Session) -> Iterator[str]:
        """Yield the same figures as one line, if anything was made."""
        if self.frames:
            made = self.document(session)
            where = f"{made['devices']} x {session.config.device.type}" if made["devices"] > 1 else made["device"]
            who = f"{made['preset']}, {made['model']}, {where}"
            yield (
                f"{self.path}: {self.frames} frames, {self.frames / made['fps']:.1f} s at {made['fps']} FPS, made in "
                f"{self.work_ns / 1e9:.2f} s = {made['pixel_fps']:.1f} pixel FPS ({who})"
            )


def read_recipe(path: Path) -> RecipeAnswer:
    """Read and check the recipe of a stream."""
    import msgspec

    from strobe.serve.protocol import VERSION, RecipeAnswer

    try:
        recipe = msgspec.json.decode(path.read_bytes(), type=RecipeAnswer)
    except OSError as error:
        raise DataError(f"cannot read the recipe {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DataError(f"{path} is no recipe: {error}; save one with the button Recipe of strobe serve") from error
    if recipe.v != VERSION:
        raise DataError(f"{path} is a recipe of version {recipe.v}, and this strobe reads version {VERSION}")
    if not recipe.prompts or recipe.prompts[0].frame_block != 0:
        raise DataError(f"{path} has no prompt for frame block 0")
    return recipe


def start_image(recipe: RecipeAnswer) -> bytes:
    """Return the bytes of the picture that the stream began with; empty without one.

    Raises:
        DataError: it is not the one that was used.
    """
    import base64
    import binascii
    import hashlib

    try:
        image = base64.b64decode(recipe.image, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the start image of the recipe is damaged: {error}") from error
    if image and hashlib.sha256(image).hexdigest() != recipe.image_sha256:
        raise DataError("the start image of the recipe is not the one that was used: its sha256 differs")
    return image


def mismatches(recipe: RecipeAnswer, session: Session) -> Iterator[str]:
    """Yield what differs from the machine and versions that made the stream, whose frames may then differ too."""
    from strobe.engine.snapshot import device_name, versions

    model = session.model
    if model.weights_hash != recipe.weights:
        raise ConfigError(
            f"the recipe is of {recipe.model} with weights {recipe.weights[:12]}, and these are {model.name} with "
            f"{model.weights_hash[:12]}; give --model and --weights of the stream"
        )
    here = {"device": device_name(session.config.device), **versions()}
    there = {"device": recipe.device, **recipe.versions}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"{name}: {there.get(name)} then, {here.get(name)} now"
