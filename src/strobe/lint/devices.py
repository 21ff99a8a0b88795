"""Finds the GPU that a text names. Only an upper bound is needed: the fastest variant stands for its family."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from strobe.core.costs import DEVICES, DevicePeaks

_MAKERS: Final = frozenset({"nvidia", "amd", "geforce", "instinct", "gpu", "tesla", "rtx"})
_SEVERAL: Final = re.compile(
    r"(?i)\b(?:[2-9]|\d{2,})\s?[x×]\s?(?:nvidia|amd|[abhl]\d{2,3})|"
    r"\b(?:[2-9]|\d{2,})\s+(?:x\s+)?(?:nvidia |amd )?(?:[abhl]\d{2,3}s?\b|gpus?\b|devices\b)|\baggregate"
)


def _words(text: str) -> tuple[str, ...]:
    spaced = re.sub(r"(?<=\d)\s(?=GB\b)", "", re.sub(r"[-_/(),:;|!?]|\.(?!\d)", " ", text))
    found = (re.sub(r"^sxm\d$", "sxm", word.lower()) for word in spaced.split())
    return tuple(word for word in found if word not in _MAKERS)


_NAMES: Final = tuple((device, _words(device.name)) for device in DEVICES)
FAMILIES: Final = tuple(dict.fromkeys(words[0] for _, words in _NAMES))
"""First words of the names of known devices, e.g. `h100`."""


def device_named(text: str) -> DevicePeaks | None:
    """Return the device that a text names (`NVIDIA H100 80GB HBM3`, `h100`); None if it names none or several families."""
    pool = _words(text)
    families = {family for family in FAMILIES if family in pool}
    if len(families) != 1:
        return None
    family = families.pop()
    siblings = [(sum(word in pool for word in words), device) for device, words in _NAMES if words[0] == family]
    best = max(score for score, _ in siblings)
    return max((device for score, device in siblings if score == best), key=_speed)


def _speed(device: DevicePeaks) -> tuple[int, int]:
    return max(device.flops_per_s.values()), device.bandwidth_bytes_per_s


def only_device(texts: Iterable[str]) -> DevicePeaks | None:
    """Return the device of a document that names devices of one family only: its most exact name."""
    found = [device for text in texts if (device := device_named(text)) is not None]
    families = {_words(device.name)[0] for device in found}
    if len(families) != 1:
        return None
    return max(found, key=_speed)


def several_devices(text: str) -> bool:
    """Return True if the text speaks of more than one device, so that its rates may be sums."""
    return _SEVERAL.search(text) is not None
