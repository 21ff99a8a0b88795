"""Damage to snapshot files: bits flipped, a part cut out, tensors swapped, a number of a header changed."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch

from strobe.core.errors import SessionError
from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot, read_snapshot

LENGTH_BYTES = 8
"""Of the number at the start of a safetensors file: bytes of its header, which follows."""
NUMBERS = (0, 1, -1, 2, 7, 64, 1_000_000_000, 10**30, 1.5)
"""What a number of the header is replaced by."""


def damaged_snapshot(seed: int, folder: Path) -> None:
    """Damage a snapshot file of the bundled model once, and check that it is refused with a `SessionError` or read bit-equal."""
    path, data = folder / "snapshot.safetensors", sound()
    path.write_bytes(data)
    whole = read_snapshot(path, torch.device("cpu"))
    path.write_bytes(damage(data, seed))
    check(path, whole)


@cache
def sound() -> bytes:
    """Return the snapshot file of a session between two prompts, with a third prompt that waits."""
    with tempfile.TemporaryDirectory() as folder, Session("a red circle moving left", preset="turbo", device="cpu") as session:
        next(iter(session.stream()))
        session.prompt("a blue square moving up", mode="interpolate", over=3)
        next(iter(session.stream()))
        session.prompt("a green circle moving left")
        session.snapshot().save(Path(folder) / "s")
        return (Path(folder) / "s").read_bytes()


def damage(data: bytes, number: int) -> bytes:
    """A snapshot file with damage number 0, 1, 2 ...: in turn bits flipped, a part cut out, tensors swapped, a number changed."""
    kinds = (flip, cut, swap, renumber)
    return kinds[number % len(kinds)](data, random.Random(number))


def flip(data: bytes, chance: random.Random) -> bytes:
    """Flip one to eight bits, half of the time in the header."""
    damaged = bytearray(data)
    end = chance.choice([len(data), LENGTH_BYTES + len(header_of(data))])
    for _ in range(chance.choice([1, 1, 2, 8])):
        damaged[chance.randrange(end)] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def cut(data: bytes, chance: random.Random) -> bytes:
    """Cut off the end, or some bytes in the middle."""
    start = chance.randrange(len(data))
    return data[:start] + chance.choice([b"", data[start + chance.randrange(1, 5000) :]])


def swap(data: bytes, chance: random.Random) -> bytes:
    """Swap the names of two tensors."""
    header = json.loads(header_of(data))
    first, second = chance.sample(sorted(header.keys() - {"__metadata__"}), 2)
    header[first], header[second] = header[second], header[first]
    return with_header(data, json.dumps(header).encode())


def renumber(data: bytes, chance: random.Random) -> bytes:
    """Replace a number of the header: one of strobe's own, or a tensor's place."""
    header = header_of(data)
    found = chance.choice(list(re.finditer(rb"(?<![\w.])-?\d+(\.\d+)?(?![\w.])", header)))
    other = str(chance.choice([each for each in NUMBERS if str(each).encode() != found[0]])).encode()
    return with_header(data, header[: found.start()] + other + header[found.end() :])


def header_of(data: bytes) -> bytes:
    """Return the header of a safetensors file."""
    return data[LENGTH_BYTES : LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")]


def with_header(data: bytes, header: bytes) -> bytes:
    """Replace the header of a safetensors file."""
    return len(header).to_bytes(LENGTH_BYTES, "little") + header + data[LENGTH_BYTES + len(header_of(data)) :]


def resealed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a file whose header says something else, with the digest that belongs to it."""
    outer = json.loads(header_of(data))
    body = json.loads(outer["__metadata__"]["strobe"].rpartition("\n")[0])
    change(body)
    text = json.dumps(body)
    outer["__metadata__"]["strobe"] = f"{text}\n{sha256(text.encode()).hexdigest()}"
    return with_header(data, json.dumps(outer).encode())


def check(path: Path, whole: Snapshot) -> Literal["refused", "bit-equal"]:
    """Check that a damaged file is refused in one line or reads like the `whole` one; return which."""
    try:
        found = read_snapshot(path, torch.device("cpu"))
    except SessionError as error:
        assert "\n" not in str(error), "an error has one line"
        return "refused"
    assert numbers(found) == numbers(whole), "another session came out"
    mine, other = found._tensors(), whole._tensors()
    assert mine.keys() == other.keys(), "other tensors came out"
    assert all(torch.equal(tensor, other[name]) for name, tensor in mine.items()), "other values came out"
    return "bit-equal"


def numbers(snapshot: Snapshot) -> tuple[object, ...]:
    """Return all values of a snapshot that are not tensors."""
    state, cache, blend = snapshot.state, snapshot.cache, snapshot.state.blend
    blended = None if blend is None else (blend.done, blend.total)
    decoder = state.decoder[0], len(state.decoder[1])
    return (
        *(snapshot.identity, snapshot.pending, state.next_block, state.prompts, state.stale),
        *(blended, decoder, cache.origin, cache.end),
    )
