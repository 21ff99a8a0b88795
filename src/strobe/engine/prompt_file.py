"""Files of prompts over time: a line each, with its time or frame block, its mode and its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from strobe.core.errors import ConfigError
from strobe.engine.config import ModelDefaults
from strobe.engine.prompts import Mode, Switch, blocks_for, check_mode, check_switches
from strobe.engine.weighted import read_weights

_LINE: Final = re.compile(
    r"(?:(?P<seconds>\d+(?:\.\d*)?|\.\d+)\s*s|block\s*=\s*(?P<block>\d+))"
    r"(?:\s+(?P<mode>[a-z]+)(?:\s+(?P<over>\d+))?)?\s*:\s*(?P<prompt>.*\S)\s*"
)
EXAMPLE: Final = "'4.5s: a blue square moving up', 'block=12 soft: ...' or '20s interpolate 6: ...'"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedPrompt:
    """One line of a file of prompts.

    Args:
        line: its number, from 1.
        seconds: when it takes effect; None: `block` says it.
        block: the frame block where it does; None: `seconds` says it.
        prompt: the text.
        mode, over: see `strobe.engine.prompts.Switch`.
    """

    line: int
    seconds: float | None
    block: int | None
    prompt: str
    mode: Mode
    over: int

    @property
    def first(self) -> bool:
        """Whether it is the prompt that a stream begins with."""
        return not self.seconds and not self.block

    def frame_block(self, defaults: ModelDefaults, first_block: int | None = None) -> int:
        """Return the number of the first frame block that follows it: of a time the next one."""
        return self.block if self.block is not None else blocks_for(self.seconds or 0.0, defaults, first_block=first_block)


def read_prompts(text: str, name: str, *, mode: Mode = "recache") -> tuple[TimedPrompt, ...]:
    """Read a file of prompts; needs no model. Empty lines, and lines that begin with #, are left out.

    Args:
        text: of the file.
        name: of the file, for errors.
        mode: of lines that name none.

    Raises:
        ConfigError: a line does not read like one, names an unknown mode, has weights that cannot be read, or there is no line;
            names file and line.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        read = _LINE.fullmatch(line.strip())
        if read is None:
            raise ConfigError(f"{name}, line {number}: cannot read {line.strip()!r}; write for example {EXAMPLE}")
        own, over = read["mode"] or mode, 4 if read["over"] is None else int(read["over"])
        try:
            check_mode(own, over)
            read_weights(read["prompt"])
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from error
        if read["over"] is not None and own != "interpolate":
            raise ConfigError(f"{name}, line {number}: {own} takes no number of frame blocks; leave the {over} out")
        found.append(
            TimedPrompt(
                line=number,
                seconds=None if read["seconds"] is None else float(read["seconds"]),
                block=None if read["block"] is None else int(read["block"]),
                prompt=read["prompt"],
                mode=cast("Mode", own),
                over=over,
            )
        )
    if not found:
        raise ConfigError(f"{name} holds no prompt; write a line for each, for example {EXAMPLE}")
    return tuple(found)


def switches_of(
    prompts: Sequence[TimedPrompt], name: str, defaults: ModelDefaults, first_block: int | None = None
) -> tuple[Switch, ...]:
    """Return the prompt switches of a file in order; the prompt at frame block 0 is none of them.

    Raises:
        ConfigError: two take effect at one frame block, or one before the second frame block; names file and line.
    """
    found = []
    for each in prompts:
        if not each.first:
            number = each.frame_block(defaults, first_block)
            found.append(Switch(frame_block=number, prompt=each.prompt, mode=each.mode, over=each.over))
    try:
        return check_switches(found)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
