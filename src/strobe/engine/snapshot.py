"""The state of a stream between two frame blocks, and a session there, in memory and in a file.

The file is a safetensors file whose one entry of metadata is a header in JSON and, on a line of its own, the header's sha256. The
header lists the tensors with the sha256 of each, so that whatever was damaged since is refused.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import strobe
from strobe.cache.kv import CacheState
from strobe.cache.policy import ShotPolicy
from strobe.core.errors import DataError, SessionError
from strobe.engine.config import EngineConfig
from strobe.engine.decode import DecoderState
from strobe.engine.prompts import Blend, Change
from strobe.engine.resolve import ResolvedConfig


def device_name(device: torch.device) -> str:
    """Return the kind of a device; streams are bit-equal on devices of the same kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


def versions() -> dict[str, str]:
    """Return the versions of strobe, torch and Python."""
    return {"strobe": strobe.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamState:
    """The state of a stream between two frame blocks, except its cache. Replaced as a whole; its tensors are never written again.

    Args:
        next_block: number of the frame block that comes next.
        prompts: of the last frame block, one per sample.
        blend: text of the last frame block; None before the first.
        history: last clean latents [B, <= window, C, Y, X], float32: what a recache derives keys and values from.
        decoder: memory of the frame decoder.
        ends: last pixel frame [B, <= recomputed frames, 3, Y, X], float32 in [0, 1], of each of the last latent frames, where the
            past is recomputed; None elsewhere.
        ahead: noisy latents [B, F, C, Y, X] of the frame blocks that come after the next pass has finished one, each at a noise
            level of its own, where a pass denoises several; None elsewhere.
        start: given latents [B, F, C, Y, X] that the next frame blocks are made of; None: they are denoised.
        stale: the cache was written with other weights (`Stream.use_lora`); the next frame block derives the window again.
        undelivered: frames uint8 [B, F, Y, X, 3] of the last frame block, on the CPU, in a snapshot of a stream that has made it
            and not handed it out (knob `late_frames`).
    """

    next_block: int
    prompts: tuple[str, ...]
    blend: Blend | None
    history: Tensor
    decoder: DecoderState
    ends: Tensor | None = None
    ahead: Tensor | None = None
    start: Tensor | None = None
    stale: bool = False
    undelivered: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Model, weights, configuration and seed: streams of equal identity and prompts are bit-equal on one machine."""

    model: str
    weights_hash: str
    config: EngineConfig
    seed: int
    samples: tuple[int, ...]

    def check(self, other: Identity) -> None:
        """Check that a snapshot of identity `other` fits a session of this one.

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
        """Return the settings of this identity, the name excepted, that differ in `other`."""
        own = {each.name: getattr(self.config, each.name) for each in fields(EngineConfig) if each.name != "name"}
        return {name: value for name, value in own.items() if value != getattr(other.config, name)}


def check_state(state: StreamState, cache: CacheState, config: ResolvedConfig, latents: tuple[int, ...], text_dim: int) -> None:
    """Check that a state fits its cache and a stream; shapes that the cache checks are left to it.

    Args:
        state, cache: as a snapshot holds them.
        config: of the stream.
        latents: batch, channels, height and width of its latent frames.
        text_dim: width of the transformer's text.

    Raises:
        SessionError: they do not; says which number or tensor contradicts which.
    """
    end, window, batch = config.latents_of(state.next_block).start, config.policy.window, latents[0]
    last_origin = 0 if config.keep_sink else max(0, end - window)
    begun, blend, undelivered = state.next_block > 0, state.blend, state.undelivered
    started, memories = state.decoder
    held = [memory for memory in memories if memory is not None]
    shown = None if undelivered is None else (undelivered.dtype, undelivered.shape[0], undelivered.dim(), begun)
    texts: tuple[Tensor, ...] = () if blend is None else (blend.start, blend.target)
    sound = {
        f"{len(state.prompts)} prompts at frame block {state.next_block}": len(state.prompts) == (batch if begun else 0),
        f"a cache that ends before frame {cache.end}": cache.end == (0 if config.num_recomputed else end),
        "noisy latents ahead of another shape": state.ahead is None
        or _are_latents(state.ahead, latents, range(config.num_ahead, config.num_ahead + 1)),
        "pixel frames of another shape": _are_ends(state.ends, batch, min(end, config.num_recomputed)),
        "shots, and this model has none": cache.shots is None or config.past == "shots",
        f"a sink from frame {cache.origin} on": 0 <= cache.origin <= last_origin,
        "a text without a frame block, or a frame block without a text": begun == (blend is not None),
        "a text of another shape": all(_is_text(text, texts[0], batch, text_dim) for text in texts),
        "a text that moves further than to its end": blend is None or 1 <= blend.done <= blend.total,
        "a history of another shape": _are_latents(state.history, latents, range(min(end, window), min(end, window) + 1)),
        "latents to start from of another shape": state.start is None or _are_latents(state.start, latents, range(1, 1 << 62)),
        "a decoder whose memories are not its own": all(
            memory.is_floating_point() and memory.dim() and memory.shape[0] == batch for memory in held
        )
        and (started or not held),
        "frames that were not handed out of another shape": shown in (None, (torch.uint8, batch, 5, True)),
    }
    wrong = next((what for what, right in sound.items() if not right), None)
    if wrong is not None:
        raise SessionError(f"this snapshot contradicts itself: it has {wrong}; take it again, or restore another one")


def _is_text(text: Tensor, like: Tensor, batch: int, width: int) -> bool:
    return text.is_floating_point() and text.shape == like.shape and text.dim() == 3 and text[:, 0].shape == (batch, width)


def _are_ends(ends: Tensor | None, batch: int, number: int) -> bool:
    """Return whether there are that many pixel frames, or none where none are expected."""
    if ends is None or not number:
        return ends is None and not number
    return ends.dtype == torch.float32 and ends.dim() == 5 and ends.shape[:3] == (batch, number, 3)


def _are_latents(tensor: Tensor, latents: tuple[int, ...], frames: range) -> bool:
    """Return whether `tensor` is float32 [B, F, C, Y, X] with a number of frames in `frames`."""
    if tensor.dtype != torch.float32 or tensor.dim() != 5:
        return False
    return tensor.shape[1] in frames and (tensor.shape[0], *tensor.shape[2:]) == latents


VERSION: Final = 3
"""Of the file. Version 1 neither said whether the cache was stale nor had digests; version 2 had settings that are gone."""
Number = Annotated[int, Meta(ge=0, lt=1 << 48)]
"""Of frames or frame blocks: more than a stream comes to in a million years."""


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

    @property
    def next_block(self) -> int:
        """Number of the frame block that comes next out of a session there."""
        return self.state.next_block - (self.state.undelivered is not None)

    def __repr__(self) -> str:
        model, name, prompts = self.identity.model, self.identity.config.name, self.state.prompts
        return f"Snapshot(model={model!r}, preset={name!r}, next_block={self.state.next_block}, prompts={prompts})"

    def check(self, identity: Identity) -> None:
        """Check that a session of this identity can restore it; tensors are checked elsewhere.

        Raises:
            SessionError: it cannot; names what differs.
        """
        identity.check(self.identity)
        if self.pending is not None and (len(self.pending.prompts) != len(identity.samples) or self.pending.over < 1):
            raise SessionError(
                f"this snapshot contradicts itself: {len(self.pending.prompts)} prompts over {self.pending.over} frame blocks "
                f"wait in a session of {len(identity.samples)} samples; take it again, or restore another one"
            )

    def to(self, device: str | torch.device) -> Snapshot:
        """Return it with its tensors on a device; those that are there already are shared.

        From a GPU they go to page-locked main memory, and from there back: several times as fast as through pageable memory.
        """
        target, source = torch.device(device), self.cache.keys.device
        moved = {
            name: tensor if name == "undelivered" else tensor.to(target, non_blocking=True)  # for whoever shows it
            for name, tensor in self._tensors().items()
        }
        if target.type == "cpu" and source.type == "cuda":
            torch.cuda.synchronize(source)  # what is read on the host must have arrived
        return _assemble(self._header({}), moved)

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file, which is whole and on the disk when this returns.

        Until then, and if it fails, an existing file of this name stays as it was.

        Raises:
            DataError: the file cannot be written.
        """
        path = Path(path)
        tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in self._tensors().items()}
        header = self._header({name: tensor_digest(tensor) for name, tensor in tensors.items()})
        text = msgspec.json.encode(header, enc_hook=lambda number: number.item()).decode()  # of numpy
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        try:
            os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            try:
                save_file(tensors, beside, {"strobe": f"{text}\n{_sha256(text)}"})
                _to_disk(beside)
                beside.replace(path)
                _to_disk(path.parent)
            finally:
                beside.unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            raise DataError(f"cannot write the snapshot {path}: {error}") from error

    def _header(self, digests: dict[str, str]) -> _Header:
        state, blend = self.state, self.state.blend
        return _Header(
            version=VERSION,
            identity=self.identity,
            next_block=state.next_block,
            prompts=state.prompts,
            blend=None if blend is None else (blend.done, blend.total),
            decoder_started=state.decoder[0],
            decoder_memories=tuple(memory is not None for memory in state.decoder[1]),
            cache=(self.cache.origin, self.cache.end),
            shots=self.cache.shots,
            stale=state.stale,
            pending=self.pending,
            digests=digests,
        )

    def _tensors(self) -> dict[str, Tensor]:
        state, cache = self.state, self.cache
        found = {
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "cache.sink_keys": cache.sink_keys,
            "history": state.history,
            **{f"decoder.{index}": memory for index, memory in enumerate(state.decoder[1]) if memory is not None},
        }
        if state.blend is not None:
            found |= {"text.start": state.blend.start, "text.target": state.blend.target}
        optional = {"start": state.start, "undelivered": state.undelivered, "ends": state.ends, "ahead": state.ahead}
        return found | {name: tensor for name, tensor in optional.items() if tensor is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class _SnapshotVersion:
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header(_SnapshotVersion):
    """The header of a snapshot file: all but the tensors. `decoder_memories`: whether each is in the file; `digests`: sha256 of
    every tensor, by name."""

    identity: Identity
    next_block: Number
    prompts: tuple[str, ...]
    blend: tuple[Number, Number] | None
    decoder_started: bool
    decoder_memories: tuple[bool, ...]
    cache: tuple[Number, Number]
    shots: ShotPolicy | None = None
    stale: bool
    pending: Change | None
    digests: dict[str, str]


def read_snapshot(path: str | Path, device: torch.device) -> Snapshot:
    """Read a snapshot file; tensors go to `device`.

    Raises:
        DataError: there is no such file, or it cannot be opened.
        SessionError: it is not a snapshot of this version, or was damaged.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise DataError(f"cannot read the snapshot {path}: {'not a file' if path.exists() else 'there is no such file'}")
        with safe_open(path, "pt", device="cpu") as file:
            header = _read_header((file.metadata() or {}).get("strobe", ""))
            names = set(file.keys())
            _check_names(header, names)
            tensors = {name: file.get_tensor(name).clone() for name in sorted(names)}  # no view of the file: that may change
        _check_tensors(header, tensors)
        return _assemble(header, {name: tensor.to(device) for name, tensor in tensors.items()})
    except OSError as error:
        raise DataError(f"cannot read the snapshot {path}: {error}") from error
    except (SafetensorError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise SessionError(f"{path} is no snapshot, or was damaged: {error}; use another copy") from error
    except SessionError as error:
        raise SessionError(f"cannot use the snapshot {path}: {error}") from error


def _read_header(text: str) -> _Header:
    body, _, digest = text.rpartition("\n")
    version = msgspec.json.decode(body or text, type=_SnapshotVersion).version
    if version != VERSION:
        raise SessionError(
            f"it has version {version}, and this strobe reads version {VERSION}; "
            "stream again with the same prompts and seed, or use the strobe that wrote it"
        )
    if _sha256(body) != digest:
        raise SessionError("its header was damaged; use another copy")
    return msgspec.json.decode(body, type=_Header)


def _check_names(header: _Header, names: set[str]) -> None:
    expected = {"cache.keys", "cache.values", "cache.sink_keys", "history"}
    expected |= {f"decoder.{index}" for index, there in enumerate(header.decoder_memories) if there}
    expected |= {"text.start", "text.target"} if header.blend is not None else set()
    differ = (names ^ header.digests.keys()) | (expected - names) | (names - expected - {"start", "undelivered", "ends", "ahead"})
    if differ:
        raise SessionError(f"tensor {min(differ)!r} is missing, or was added; use another copy")


def _check_tensors(header: _Header, tensors: Mapping[str, Tensor]) -> None:
    """Check the digests, and that the tensors are as large as the numbers of the header say."""
    damaged = [name for name, tensor in tensors.items() if tensor_digest(tensor) != header.digests[name]]
    if damaged:
        raise SessionError(f"tensor {damaged[0]!r} was damaged; use another copy")
    keys, history, identity = tensors["cache.keys"], tensors["history"], header.identity
    batch = len(identity.samples)
    if keys.dim() != 5 or history.dim() != 5 or keys.shape[1] != batch or history.shape[0] != batch:
        raise SessionError(f"it has {batch} samples, and tensors of other shapes; use another copy")
    if (identity.config.window or 0) > keys.shape[2]:
        raise SessionError(
            f"it has a window of {identity.config.window} frames, and {keys.shape[2]} rows of keys; use another copy"
        )


def _assemble(header: _Header, tensors: Mapping[str, Tensor]) -> Snapshot:
    blend = None
    if header.blend is not None:
        done, total = header.blend
        blend = Blend(start=tensors["text.start"], target=tensors["text.target"], done=done, total=total)
    memories = tuple(tensors.get(f"decoder.{index}") for index in range(len(header.decoder_memories)))
    return Snapshot(
        identity=header.identity,
        state=StreamState(
            next_block=header.next_block,
            prompts=header.prompts,
            blend=blend,
            history=tensors["history"],
            decoder=(header.decoder_started, memories),
            start=tensors.get("start"),
            ends=tensors.get("ends"),
            ahead=tensors.get("ahead"),
            stale=header.stale,
            undelivered=tensors.get("undelivered"),
        ),
        cache=CacheState(
            keys=tensors["cache.keys"],
            values=tensors["cache.values"],
            sink_keys=tensors["cache.sink_keys"],
            origin=header.cache[0],
            end=header.cache[1],
            shots=header.shots,
        ),
        pending=header.pending,
    )


def tensor_digest(tensor: Tensor) -> str:
    """Compute the sha256 of a tensor on the CPU: dtype, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
