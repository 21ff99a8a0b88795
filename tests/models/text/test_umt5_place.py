"""Where umT5 runs, what it holds there, and texts that sessions share."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.models.text import umt5
from strobe.models.text.cache import Key, PromptCache, PromptEncoder, PromptMemory
from strobe.models.text.umt5 import SPARE_BYTES, RandomUmt5, Umt5Config

pytest.importorskip("transformers")
SMALL = Umt5Config(vocabulary=40, dim=16, attention_dim=24, ffn_dim=20, num_heads=3, num_layers=2, max_distance=20, length=32)
PROMPT = "a fox in the deep snow"


@pytest.mark.parametrize(
    ("free", "device", "offload", "by_layer"),
    [("all", "cuda", False, False), ("a layer", "cuda", True, True), ("little", "cpu", True, False)],
)
def test_the_device_is_chosen_by_what_is_free(
    monkeypatch: pytest.MonkeyPatch, free: str, device: str, offload: bool, by_layer: bool
) -> None:
    encoder = RandomUmt5(SMALL)
    sizes = {"all": encoder.num_bytes + SPARE_BYTES, "a layer": encoder.num_bytes + SPARE_BYTES - 1, "little": SPARE_BYTES // 4}
    monkeypatch.setattr(umt5, "free_bytes", lambda where: sizes[free])
    encoder.place(torch.device("cuda"))
    assert (encoder.device.type, encoder.offload, encoder.by_layer) == (device, offload, by_layer)
    encoder.place(torch.device("cpu"))
    assert encoder.device.type == device  # chosen once
    fixed = RandomUmt5(SMALL, device="cpu")
    fixed.place(torch.device("cuda"))
    assert fixed.device.type == "cpu" and not fixed.by_layer


def test_the_predicted_size_is_that_of_the_weights() -> None:
    encoder = RandomUmt5(SMALL)
    encoder.embed([PROMPT])
    assert encoder.num_bytes == sum(each.nbytes for each in {p.data_ptr(): p for p in encoder._model.parameters()}.values())
    assert 10.5e9 < RandomUmt5().num_bytes < 11.5e9


def test_layer_by_layer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer at a time is away from home, and afterwards none."""
    encoder, expected = RandomUmt5(SMALL), RandomUmt5(SMALL).embed([PROMPT, "an owl"])
    encoder.embed([PROMPT])
    encoder.by_layer, home = True, [p.data_ptr() for p in encoder._model.parameters()]
    away: list[int] = []
    for layer in encoder._model.encoder.block:
        layer.layer[0].register_forward_pre_hook(
            lambda *_: away.append(sum(p.data_ptr() not in home for p in encoder._model.parameters()))
        )
    number = len([*encoder._model.encoder.block[0].parameters()])
    real = Tensor.to
    copies = lambda x, *given, **named: real(x, *given, **named).clone()  # noqa: E731  # a copy stands for another device
    monkeypatch.setattr(Tensor, "to", copies)
    found = encoder.embed([PROMPT, "an owl"])
    monkeypatch.undo()
    assert away == [number] * 4 and [p.data_ptr() for p in encoder._model.parameters()] == home
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_random_weights_give_texts_of_their_own() -> None:
    encoder = RandomUmt5(SMALL)
    first, again, other = encoder.embed([PROMPT, PROMPT, "a fox in the deep sand"])
    assert torch.equal(first, again) and not torch.equal(first, other) and first.isfinite().all()
    assert first.shape == (7, 16)  # six words of one piece each, and the end
    with pytest.raises(ConfigError, match="has 33 tokens, 32 allowed"):
        encoder.check("word " * 32)


class Counted(RandomUmt5):
    """Counts the prompts it is given."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.seen: list[str] = []

    def embed(self, prompts: object) -> list[Tensor]:
        self.seen += list(prompts)  # type: ignore[call-overload]
        return super().embed(prompts)  # type: ignore[arg-type]


class TestMemory:
    def test_a_text_is_made_once_and_known_then(self) -> None:
        encoder = Counted()
        prompts = PromptEncoder(encoder, memory=PromptMemory())
        assert not prompts.ready([PROMPT])
        first = prompts.encode([PROMPT, "an owl"])
        assert prompts.ready([PROMPT]) and prompts.ready(["an owl", PROMPT]) and not prompts.ready([PROMPT, "a cat"])
        assert torch.equal(prompts.encode(["an owl", PROMPT]), first.flip(0)) and encoder.seen == [PROMPT, "an owl"]

    def test_a_text_in_a_folder_is_known_too(self, tmp_path: Path) -> None:
        PromptEncoder(Counted(), PromptCache(tmp_path)).encode([PROMPT])
        encoder = Counted()
        prompts = PromptEncoder(encoder, PromptCache(tmp_path), PromptMemory())
        assert prompts.ready([PROMPT])
        prompts.encode([PROMPT])
        assert not encoder.seen and prompts.memory is not None and prompts.memory.num_bytes

    def test_it_is_bounded_by_bytes(self) -> None:
        keys = [Key(identity="e", prompt=str(number), dtype="torch.float32") for number in range(4)]
        memory = PromptMemory(3 * 40)
        for key in keys[:3]:
            memory.put(key, torch.zeros(2, 5))
        assert memory.get(keys[0]) is not None and memory.num_bytes == 120  # used last
        memory.put(keys[3], torch.ones(2, 5))
        assert [memory.get(key) is not None for key in keys] == [True, False, True, True] and memory.num_bytes == 120
        memory.put(keys[1], torch.zeros(100))
        assert memory.get(keys[1]) is None and memory.num_bytes == 120
        with pytest.raises(ConfigError, match="holds nothing"):
            PromptMemory(0)

    def test_another_encoder_or_dtype_has_another_key(self) -> None:
        memory = PromptMemory()
        memory.put(Key(identity="e", prompt="p", dtype="torch.float32"), torch.zeros(1))
        assert memory.get(Key(identity="f", prompt="p", dtype="torch.float32")) is None
        assert memory.get(Key(identity="e", prompt="p", dtype="torch.bfloat16")) is None
        assert "p" not in vars(memory)["_rows"]  # prompts themselves are not held

    def test_threads_take_turns_and_share(self) -> None:
        encoder = Counted()
        prompts = PromptEncoder(encoder, memory=PromptMemory())
        words = [f"a fox {number}" for number in range(6)]
        found: dict[int, list[Tensor]] = {}

        def work(number: int) -> None:
            order = words if number else [*reversed(words)]
            found[number] = [prompts.encode([word])[0] for word in order]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(encoder.seen) == sorted(words)
        alone = [PromptEncoder(RandomUmt5(SMALL)).encode([word])[0] for word in words]
        assert all(torch.equal(a, b) for a, b in zip(alone, found[1], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(alone, reversed(found[0]), strict=True))
