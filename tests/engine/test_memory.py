"""Predicted bytes against those of a stream that runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ring_frames import stored_bytes
from strobe.core.errors import StrobeError
from strobe.engine.config import EngineConfig, replace_knobs
from strobe.engine.load import model_parts
from strobe.engine.memory import GIB, LARGEST, check, check_together, claim_of, free_bytes, predict
from strobe.engine.model import Model, latent_shape
from strobe.engine.presets import PRESETS
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from tiny_model import Make

CPU = torch.device("cpu")


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of different storages."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None
    }
    return sum(storages.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("samples", [(0,), (0, 3)])
@pytest.mark.parametrize(
    "preset", ["baseline", "absolute", "quality", "balanced", "balanced_int8", "sparse", "low_memory", "ultra"]
)
def test_what_is_counted_is_what_is_held(make: Make, tiny: Model, preset: str, samples: Sequence[int], dtype: Any) -> None:
    config = replace(PRESETS["baseline" if preset == "absolute" else preset](), dtype=dtype, simulate=True)
    if preset == "absolute":  # no sink is turned
        config = replace(config, positions="absolute")
    if preset == "sparse":  # 6 x 12 tokens: two tiles with padding
        tiny = replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 192)))
    session = make(preset=config, samples=samples, model=tiny)
    [*session.stream(5 if preset in ("baseline", "absolute") else 3)]  # a sink is turned once the window has moved
    stream: Any = session._stream
    predicted = predict(tiny, session.config, len(samples))
    del predicted[LARGEST]
    rows = stream._dit._rows.values()
    assert predicted == {
        "transformer weights": held(stream._dit.dit.state_dict().values()),
        "keys and values": stored_bytes(stream._cache),
        "text keys and values": held(stream._text[1].kept.kv.tensors),
        "modulation tables": held(tensor for row in rows for tensor in (row.layers, row.head)),
        "autoencoder weights": held(stream._decoder._vae.state_dict().values()),
        "decoder memories": held(stream.state.decoder[1]),
        "inputs of graphs": 0,  # on a CPU there are none; see test_graphs.py
    }


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is None or storage._cdata in self._seen:
                continue
            self._seen.add(storage._cdata)
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
            self.most = max(self.most, self.bytes)
        return out

    def _gone(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self.bytes -= num_bytes


@pytest.mark.few(2)
@pytest.mark.parametrize("overlap_decode", [False, True])
@pytest.mark.parametrize("block_decode", [False, True])
@pytest.mark.parametrize(("name", "frames"), [("wan-1.3b", 12), ("wan-5b", 8)])  # of the largest pass: a recache, or none
def test_what_the_wan_decoder_makes_on_the_way(name: str, frames: int, block_decode: bool, overlap_decode: bool) -> None:
    """Its largest call, new memories included, is predicted and a little more; frame by frame beside other work, where the stream
    keeps those from before the frame block too, with these."""
    parts = model_parts(name)
    wan, grid = parts.dit.config, latent_shape(parts.defaults, parts.dit.config)
    here = resolve(EngineConfig(dtype="bfloat16"), parts.defaults, CPU)
    knobs = replace_knobs(here.knobs, block_decode=block_decode, overlap_decode=overlap_decode)
    alone, late = (predict(parts, replace(here, knobs=replace_knobs(knobs, late_frames=late))) for late in (False, True))
    transformer = frames * grid.token_grid(wan.patch).tokens_per_frame * 2 * (wan.dim + wan.ffn_dim) * 2
    made = late[LARGEST] - transformer
    assert alone[LARGEST] == max(transformer, made)
    if overlap_decode and not block_decode:
        made -= late["decoder memories"]
    with torch.device("meta"):
        decoder = StreamingDecoder(
            WanVAE(WAN22 if name == "wan-5b" else WanVAEConfig()).bfloat16().requires_grad_(False).channels_last()
        )
    latents = torch.empty(1, grid.frames if block_decode else 1, grid.channels, grid.height, grid.width, device="meta")
    for piece in (latents[:, :1], latents):
        decoder.push(piece)
    with Live() as live:
        decoder.push(latents)
    assert live.most <= made <= 1.06 * live.most


def test_a_fused_transformer_holds_nothing_twice(make: Make) -> None:
    fused, plain = (make(preset=preset)._stream._dit.dit for preset in ("balanced", "quality"))
    own = [tensor for layer in fused.layers for tensor in layer.self_attn.fused.parameters()]
    assert len(own) == 4 and held([*fused.state_dict().values(), *own]) == held(plain.state_dict().values())


def test_memory_that_is_not_there() -> None:
    parts = {f"part {size}": size << 30 for size in (1, 2, 3, 4)}
    check(parts, 10 << 30, CPU)
    with pytest.raises(
        StrobeError, match=r"about 10.0 GiB, and cpu has 9.0 GiB free \(part 4 4.0, part 3 3.0, part 2 2.0 GiB\); lower"
    ):
        check(parts, 9 << 30, CPU)


def test_sessions_open_at_a_time_must_fit_together() -> None:
    """What each holds is added up; what only one needs at a time is counted once."""
    claims = {"a": (3 * GIB, 2 * GIB), "b": (4 * GIB, GIB)}
    check_together(claims, 9 * GIB, CPU)
    said = (
        r"2 sessions .* 9\.0 GiB, and cpu has 8\.9 GiB free \(a 3\.0, b 4\.0 GiB, and 2\.0 .*the first 1 would fit.*compare fewer"
    )
    with pytest.raises(StrobeError, match=said):
        check_together(claims, int(8.9 * GIB), CPU)
    with pytest.raises(StrobeError, match="not even the first would fit: .*lower the frame size"):
        check_together(claims, 4 * GIB, CPU)


@pytest.mark.parametrize("graphs", [False, True])
def test_what_a_session_holds_and_what_passes(graphs: bool) -> None:
    """Graphs keep what their passes work with."""
    parts = model_parts("wan-1.3b")
    here = resolve(EngineConfig(dtype="bfloat16"), parts.defaults, CPU)
    config = replace(here, knobs=replace_knobs(here.knobs, cuda_graphs=graphs))
    found = predict(parts, config)
    held, passing = claim_of(found, config)
    assert held == sum(found.values()) - (0 if graphs else found["largest pass"])
    kept = found["keys and values"]
    assert passing == (kept if graphs else max(kept, found["largest pass"]))


def test_a_session_that_does_not_fit_a_cpu_is_refused(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_bytes(CPU)
    assert free is None or 2**20 < free < 2**60
    monkeypatch.setattr("strobe.engine.memory.available_bytes", lambda: 1000)
    with pytest.raises(StrobeError, match=r"a stream would take about .* and cpu has 0\.0 GiB free .*; lower the frame size"):
        Session(model=tiny, device="cpu")
    monkeypatch.setattr("strobe.engine.memory.available_bytes", lambda: None)  # nobody knows
    Session(model=tiny, device="cpu").close()
