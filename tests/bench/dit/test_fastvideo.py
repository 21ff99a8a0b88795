"""FastVideo's operator as a peer in a Wan transformer: on a CPU a slow stand-in computes what `fastvideo_kernel` documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from torch import Tensor

from strobe.bench.dit import OPERATORS, DitCase, load_named, variants_of
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.spans import recording
from strobe.core.tolerances import tolerance
from strobe.integrations.diffusers import sparsify
from strobe.perf.measure.timing import TimingRecorder

CPU = torch.device("cpu")


def _means(tiles: Tensor, sizes: Tensor) -> Tensor:
    return tiles.sum(3) / sizes.view(1, 1, -1, 1)


class Operators(ModuleType):
    """`fastvideo_kernel.ops` from its description, over a mask of pairs of tokens; `[B, H, S, D]`."""

    def __init__(self) -> None:
        super().__init__(OPERATORS)
        self.topk: list[int] = []

    def block_sparse_attn(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sizes: Tensor) -> tuple[Tensor]:
        real = (torch.arange(64) < sizes[:, None]).flatten()
        pairs = mask.repeat_interleave(64, 2).repeat_interleave(64, 3) & real
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~pairs, float("-inf"))
        return (scores.softmax(-1) @ v,)

    def video_sparse_attn(
        self, q: Tensor, k: Tensor, v: Tensor, sizes: Tensor, q_sizes: Tensor, topk: int, *,
        block_size: tuple[int, int, int], compress_attn_weight: Tensor,
    ) -> Tensor:  # fmt: skip
        assert block_size == (4, 4, 4) and torch.equal(sizes, q_sizes)
        self.topk.append(topk)
        q_c, k_c, v_c = (_means(each.unflatten(2, (-1, 64)), sizes) for each in (q, k, v))
        scores = q_c @ k_c.transpose(-2, -1) / q.shape[-1] ** 0.5
        coarse = (scores.softmax(-1) @ v_c).repeat_interleave(64, 2)
        mask = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(topk).indices, True)
        return coarse * compress_attn_weight + self.block_sparse_attn(q, k, v, mask, sizes)[0]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operators]:
    package, found = ModuleType("fastvideo_kernel"), Operators()
    package.__spec__ = ModuleSpec("fastvideo_kernel", None)
    monkeypatch.setitem(sys.modules, "fastvideo_kernel", package)
    monkeypatch.setitem(sys.modules, OPERATORS, found)
    yield found


def case_of(name: str, *attention: str, compiled: tuple[bool, ...] = (False,)) -> DitCase:
    loaded = load_named(name, shot=None, tiny=True, weights=None, device=CPU, dtype=torch.float32, seed=0)
    variants = variants_of(attention, (0.5,), compiled, masked=loaded.masked)
    return DitCase(loaded, variants, steps=1, device=CPU, compiler="eager")


def test_the_peer_passes_the_gate_and_computes_what_vsa_does(operators: Operators) -> None:
    case = case_of("wan-1.3b", "dense", "dense-strobe", "vsa", "fastvideo")
    gate = case.gate("fastvideo-50")
    assert gate.passed and "every key tile selected" in gate.rule
    peer, dense = (case._output(case._variants[name]) for name in ("fastvideo-50", "dense"))
    own = case._fresh(case._variants["dense-strobe"], compiled=False)
    own.handle.restore()
    with pytest.warns(UserWarning, match="not measured"), sparsify(own.transformer, sparsity=0.5, tile=(4, 4, 4)):
        ours = case._forward(own.transformer)
    assert float((ours - peer).norm() / ours.norm()) <= tolerance("latents", torch.float32)
    assert float((ours - dense).norm() / dense.norm()) > 10 * tolerance("latents", torch.float32), (
        "half of the tiles are left out"
    )
    settings = case.settings("fastvideo-50")
    assert settings.attention_impl.startswith("fastvideo-kernel") and settings.sparsity == 0.5
    assert settings.costs[0].flops < (settings.costs[0].dense_flops or 0)
    assert len(set(operators.topk)) == 2, "half of the tiles, and all of them in the gate"


def test_a_wrong_operator_has_no_numbers(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.block_sparse_attn
    monkeypatch.setattr(operators, "block_sparse_attn", lambda *given: (right(*given)[0] * 1.01,))
    assert not case_of("wan-1.3b", "dense", "vsa", "fastvideo").gate("fastvideo-50").passed


@pytest.mark.usefixtures("operators")
def test_its_fine_stage_is_marked_as_the_kernel() -> None:
    case = case_of("wan-1.3b", "dense", "vsa", "fastvideo")
    recorder = TimingRecorder(CPU, inside=True)
    recorder.start_clip()
    with recording(recorder):
        list(case.blocks("fastvideo-50"))
    recorder.finish_clip()
    calls = {"/".join(path[-2:]): number for (_, path), (number, _) in recorder.inside().items()}
    assert calls["attention/attention_kernel"] == 2, "one in each layer"


@pytest.mark.usefixtures("operators")
def test_it_is_measured_eagerly_alone() -> None:
    names = [each.name for each in variants_of(("dense", "vsa", "fastvideo"), (0.5,), (True, False), masked=False)]
    assert names == ["dense-compile", "vsa-50-compile", "dense", "vsa-50", "fastvideo-50"]


@pytest.mark.usefixtures("operators")
def test_it_is_for_wan_and_beside_vsa() -> None:
    with pytest.raises(ConfigError, match="Wan's transformers"):
        case_of("ltx-2", "dense", "vsa", "fastvideo").prepare("fastvideo-50")
    with pytest.raises(ConfigError, match="dense vsa fastvideo"):
        variants_of(("dense", "fastvideo"), (0.5,), (False,), masked=False)


def test_without_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, OPERATORS, None)
    with pytest.raises(ImplUnavailableError, match="fastvideo-kernel cannot be imported"):
        case_of("wan-1.3b", "dense", "vsa", "fastvideo").prepare("fastvideo-50")
