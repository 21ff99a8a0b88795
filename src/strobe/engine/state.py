"""All that a stream is between two frame blocks, in memory and in a file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from strobe.cache.kv import CacheState
from strobe.core.errors import DataError, SessionError
from strobe.engine.config import EngineConfig
from strobe.engine.decode import DecoderState
from strobe.engine.prompts import Blend, Change

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamState:
    """A stream between two frame blocks, but for its cache. Replaced as a whole; its tensors are never written again.

    Args:
        next_block: number of the frame block that comes next.
        prompts: of the last frame block, one per sample.
        blend: text of the last frame block; None before the first.
        history: last clean latents [B, <= window, C, Y, X], float32: what a recache derives keys and values from.
        decoder: memory of the frame decoder.
        start: given latents [B, F, C, Y, X] that the next frame blocks are made of; None: they are denoised.
        undelivered: frames uint8 [B, F, Y, X, 3] of the last frame block, on the CPU, in a snapshot of a stream that has made it
            and not handed it out (knob `late_frames`).
    """

    next_block: int
    prompts: tuple[str, ...]
    blend: Blend | None
    history: Tensor
    decoder: DecoderState
    start: Tensor | None = None
    undelivered: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What makes two streams of the same prompts bit-equal on one machine."""

    model: str
    weights_hash: str
    config: EngineConfig
    seed: int
    samples: tuple[int, ...]

    def check(self, other: Identity) -> None:
        """Check that a snapshot of `other` fits here.

        Raises:
            SessionError: it does not; names what differs.
        """
        pairs = {
            "weights": (self.weights_hash[:12], other.weights_hash[:12]),
            "configuration": (self._settings(other), other._settings(self)),
            "seed": (self.seed, other.seed),
            "samples": (self.samples, other.samples),
        }
        for what, (own, given) in pairs.items():
            if own != given:
                raise SessionError(
                    f"this snapshot has other {what}: {given}; the session has {own}; open one with Session.resume"
                )

    def _settings(self, other: Identity) -> dict[str, object]:
        """Settings in which `other` differs; a name is none."""
        own = {each.name: getattr(self.config, each.name) for each in fields(EngineConfig) if each.name != "name"}
        return {name: value for name, value in own.items() if value != getattr(other.config, name)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Snapshot:
    """A session between two frame blocks.

    Args:
        identity: of the session it was taken from.
        state, cache: of its stream.
        pending: a prompt that has not taken effect yet.
    """

    identity: Identity
    state: StreamState
    cache: CacheState
    pending: Change | None

    def __repr__(self) -> str:
        model, name, prompts = self.identity.model, self.identity.config.name, self.state.prompts
        return f"Snapshot(model={model!r}, preset={name!r}, next_block={self.state.next_block}, prompts={prompts})"

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file; never leaves half a file under that name.

        Raises:
            DataError: the file cannot be written.
        """
        path = Path(path)
        started, memories = self.state.decoder
        blend = self.state.blend
        tensors = {
            "cache.keys": self.cache.keys,
            "cache.values": self.cache.values,
            "cache.sink_keys": self.cache.sink_keys,
            "history": self.state.history,
            **{f"decoder.{index}": memory for index, memory in enumerate(memories) if memory is not None},
        }
        if blend is not None:
            tensors |= {"text.start": blend.start, "text.target": blend.target}
        if self.state.start is not None:
            tensors["start"] = self.state.start
        if self.state.undelivered is not None:
            tensors["undelivered"] = self.state.undelivered
        header = _Header(
            version=VERSION,
            identity=self.identity,
            next_block=self.state.next_block,
            prompts=self.state.prompts,
            blend=None if blend is None else (blend.done, blend.total),
            decoder_started=started,
            decoder_memories=len(memories),
            cache=(self.cache.origin, self.cache.end),
            pending=self.pending,
        )
        partial = path.with_name(f".{path.name}.partial")
        try:
            contiguous = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, partial, {"strobe": msgspec.json.encode(header).decode()})
            partial.replace(path)
        except (OSError, SafetensorError) as error:
            raise DataError(f"cannot write the snapshot {path}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    version: int
    identity: Identity
    next_block: int
    prompts: tuple[str, ...]
    blend: tuple[int, int] | None
    decoder_started: bool
    decoder_memories: int
    cache: tuple[int, int]
    pending: Change | None


def read_snapshot(path: str | Path, device: torch.device) -> Snapshot:
    """Read a snapshot file; tensors go to `device`.

    Raises:
        DataError: no such file, or not a snapshot of this version.
    """
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            header = msgspec.json.decode((file.metadata() or {})["strobe"], type=_Header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header.version != VERSION:
            raise DataError(f"snapshot {path} has version {header.version}; this strobe reads version {VERSION}")
        return _assemble(header, tensors)
    except (OSError, SafetensorError, KeyError, msgspec.MsgspecError) as error:
        raise DataError(f"cannot read the snapshot {path}: {error or type(error).__name__}") from error


def _assemble(header: _Header, tensors: dict[str, Tensor]) -> Snapshot:
    blend = None
    if header.blend is not None:
        done, total = header.blend
        blend = Blend(start=tensors["text.start"], target=tensors["text.target"], done=done, total=total)
    memories = tuple(tensors.get(f"decoder.{index}") for index in range(header.decoder_memories))
    return Snapshot(
        identity=header.identity,
        state=StreamState(
            next_block=header.next_block,
            prompts=header.prompts,
            blend=blend,
            history=tensors["history"],
            decoder=(header.decoder_started, memories),
            start=tensors.get("start"),
            undelivered=tensors.get("undelivered"),
        ),
        cache=CacheState(
            keys=tensors["cache.keys"],
            values=tensors["cache.values"],
            sink_keys=tensors["cache.sink_keys"],
            origin=header.cache[0],
            end=header.cache[1],
        ),
        pending=header.pending,
    )
