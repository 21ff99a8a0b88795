"""Which numbers of ranks are legal, and how tokens, heads and keys are shared out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import ConfigError
from strobe.engine.parallel import Degrees, DeviceGroup, degrees, legal_degrees
from strobe.engine.parallel.group import own_device
from strobe.engine.parallel.layout import Layout, cut, join
from strobe.models.wan.config import WAN_1_3B, WanConfig
from strobe.models.wan.dit import CausalWan

FRAME = 30 * 52


def test_wan_on_one_to_eight_ranks() -> None:
    found = legal_degrees(WAN_1_3B.num_heads, FRAME, 8)
    grids = [(1, 1), (1, 2), (1, 3), (1, 4), (5, 1), (1, 6), (7, 1), (2, 4)]
    assert found == {number: Degrees(tree=tree, ulysses=ulysses) for number, (tree, ulysses) in enumerate(grids, 1)}


def test_sparse_attention_keeps_heads_whole() -> None:
    found = legal_degrees(12, FRAME, 8, sparse=True)
    assert [number for number, each in found.items() if isinstance(each, Degrees)] == [1, 2, 3, 4, 6]
    assert found[5] == "sparse attention needs all keys of a head on one rank, so the ranks must divide the 12 heads"


@pytest.mark.parametrize(
    ("number", "options", "words"),
    [
        (5, {"sparse": True}, "; use 4 or 6"),
        (17, {}, "a latent frame has 16 tokens, so some ranks would have none; use 16"),
        (4, {"ulysses": 3}, "divides not both the 12 heads and the 4 ranks; the most is 4; leave ulysses to gcd(12, 4)"),
        (4, {"sparse": True, "ulysses": 2}, "so ulysses must be 4; leave ulysses to gcd(12, 4)"),
        (0, {}, "no session without a rank; use 1"),
    ],
)
def test_why_not_and_what_instead(number: int, options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{number} ranks cannot share this session: ") as raised:
        degrees(number, num_heads=12, tokens_per_frame=16, **options)  # type: ignore[arg-type]
    assert words in str(raised.value)


@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 200))
def test_every_token_and_every_key_has_one_owner(number: int, num_heads: int, tokens: int) -> None:
    found = legal_degrees(num_heads, tokens, number)[number]
    assert isinstance(found, str) == (number > tokens)
    if isinstance(found, str):
        return
    works = torch.zeros(tokens)
    keeps = torch.zeros(tokens, num_heads)
    for rank in range(number):
        layout = Layout(degrees=found, rank=rank, num_heads=num_heads, tokens_per_frame=tokens)
        works[slice(*layout.mine)] += 1
        keeps[slice(*layout.kept()), slice(*layout.heads())] += 1
        assert layout.mine[0] >= layout.kept()[0] and layout.mine[1] <= layout.kept()[1]
        assert layout.counts[rank] - tokens // number in (0, 1)
        assert (layout.kept(rank), layout.heads(rank)) == (layout.kept(), layout.heads())
    assert (works == 1).all() and (keeps == 1).all()


@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_latents_cut_by_tokens(number: int) -> None:
    dit = CausalWan(
        WanConfig(dim=24, ffn_dim=8, freq_dim=8, text_dim=8, text_len=2, latent_channels=3, num_heads=2, num_layers=1)
    )
    latents = torch.randn(2, 3, 3, 6, 10, generator=torch.Generator().manual_seed(0))
    grid = Degrees(ulysses=1, tree=number)
    spans = Layout(degrees=grid, rank=0, num_heads=2, tokens_per_frame=15).tokens
    parts = [cut(latents, (2, 2), span) for span in spans]
    whole = dit.patchify(latents).unflatten(1, (3, 15))
    for part, (start, stop) in zip(parts, spans, strict=True):
        torch.testing.assert_close(dit.patchify(part), whole[:, :, start:stop].flatten(1, 2))
    assert torch.equal(join(parts, (2, 2), 3), latents)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    yield


@pytest.mark.parametrize(("name", "device"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cpu", "cpu")])
def test_a_gpu_each(two_gpus: None, name: str, device: str) -> None:
    assert own_device(name, 1, 2) == torch.device(device)


@pytest.mark.parametrize(("name", "size", "words"), [("auto", 3, "3 processes on 2 GPU"), ("cuda:0", 2, "a GPU of its own")])
def test_not_a_gpu_each(two_gpus: None, name: str, size: int, words: str) -> None:
    for rank in range(size):  # all say the same, or nobody would hear it
        with pytest.raises(ConfigError, match=words):
            own_device(name, rank, size)


def test_alone() -> None:
    with pytest.raises(ConfigError, match="not started by torchrun; start it by: torchrun"):
        DeviceGroup.join()
    with pytest.raises(ConfigError, match="torch.distributed: not initialised"):
        DeviceGroup()
