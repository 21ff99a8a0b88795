"""A prompt is encoded once; what a cache gives back is what was put in, or nothing; and where an encoder computes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strobe.core.errors import ConfigError, DataError
from strobe.models.text import umt5
from strobe.models.text.cache import Key, PromptCache, PromptEncoder
from strobe.models.text.umt5 import SPARE_BYTES, Umt5, Umt5Config, Umt5Files

DIM, LENGTH = 6, 8


class Fake:
    """Rows that say which prompt and encoder they are of; counts its work."""

    length = LENGTH

    def __init__(self, identity: str = "one", dtype: torch.dtype = torch.bfloat16) -> None:
        self.identity = identity
        self.dtype = dtype
        self.embedded: list[str] = []

    def clean(self, prompt: str) -> str:
        return " ".join(prompt.split())

    def check(self, prompt: str) -> None:
        if len(prompt.split()) > LENGTH:
            raise ConfigError(f"{len(prompt.split())} tokens")

    def embed(self, prompts: Sequence[str]) -> list[Tensor]:
        self.embedded += prompts
        return [self.rows(prompt) for prompt in prompts]

    def rows(self, prompt: str) -> Tensor:
        seed = sum(map(ord, prompt + self.identity))
        return torch.randn(len(prompt.split()), DIM, generator=torch.Generator().manual_seed(seed)).to(self.dtype)


KEY = Key(identity="one", prompt="a red cat", dtype="torch.bfloat16")


@pytest.fixture
def cache(tmp_path: Path) -> PromptCache:
    return PromptCache(tmp_path / "prompts")


def entries(cache: PromptCache) -> list[Path]:
    return sorted(cache.folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_prompt_is_encoded_once(cache: PromptCache, dtype: torch.dtype) -> None:
    fake = Fake(dtype=dtype)
    first = PromptEncoder(fake, cache).encode(["a red  cat", "a dog", "a red cat"])
    assert fake.embedded == ["a red cat", "a dog"]
    assert first.shape == (3, LENGTH, DIM) and first.dtype == dtype
    for row, prompt in zip(first, ["a red cat", "a dog", "a red cat"], strict=True):
        expected = fake.rows(prompt)
        assert torch.equal(row[: len(expected)], expected) and (row[len(expected) :] == 0).all()
    again = PromptEncoder(fake, PromptCache(cache.folder)).encode(["a red cat", " a dog", "a red cat"])
    assert torch.equal(again, first) and fake.embedded == ["a red cat", "a dog"]


def test_encoder_prompt_and_dtype_are_the_key(cache: PromptCache) -> None:
    kinds = [Fake(), Fake(identity="two"), Fake(dtype=torch.float32)]
    for fake in kinds:
        text = PromptEncoder(fake, cache).encode(["a cat"])
        assert fake.embedded == ["a cat"] and torch.equal(text[0, :2], fake.rows("a cat"))
    assert len(entries(cache)) == 3
    changes = ({}, {"identity": "on"}, {"prompt": "ea red cat"}, {"dtype": "torch.float32"})
    assert len({replace(KEY, **change).file for change in changes}) == 4


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "a bit flipped": lambda path: path.write_bytes((data := path.read_bytes())[:-3] + bytes([data[-3] ^ 1]) + data[-2:]),
    "another entry": lambda path: path.write_bytes(path.with_name(replace(KEY, prompt="a blue cat").file).read_bytes()),
    "without its header": lambda path: save_file(load_file(path), path),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"more"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_refused_and_made_again(cache: PromptCache, damage: str) -> None:
    fake = Fake()
    good = PromptEncoder(fake, cache).encode(["a red cat", "a blue cat"])
    DAMAGES[damage](cache.folder / KEY.file)
    assert torch.equal(PromptEncoder(fake, cache).encode(["a red cat", "a blue cat"]), good)
    assert fake.embedded == ["a red cat", "a blue cat", "a red cat"]
    assert torch.equal(PromptEncoder(fake, cache).encode(["a red cat", "a blue cat"]), good) and len(fake.embedded) == 3


def test_those_not_used_for_longest_go_first(tmp_path: Path) -> None:
    rows = torch.ones(4, DIM)
    keys = [replace(KEY, prompt=f"prompt {number}", dtype="torch.float32") for number in range(4)]
    probe = PromptCache(tmp_path / "probe")
    probe.put(keys[0], rows)
    size_bytes = (probe.folder / keys[0].file).stat().st_size
    cache = PromptCache(tmp_path / "small", limit_bytes=3 * size_bytes)
    for age, key in zip((50, 40, 30), keys, strict=False):
        cache.put(key, rows)
        os.utime(cache.folder / key.file, (time.time() - age, time.time() - age))
    assert cache.get(keys[0]) is not None  # used just now
    cache.put(keys[3], rows)
    assert [cache.holds(key) for key in keys] == [True, False, True, True]
    assert sum(path.stat().st_size for path in entries(cache)) <= cache.limit_bytes


def test_an_entry_over_the_limit_is_not_written(tmp_path: Path) -> None:
    cache = PromptCache(tmp_path, limit_bytes=100)
    text = PromptEncoder(Fake(), cache).encode(["a cat"])
    assert text.shape == (1, LENGTH, DIM) and not entries(cache)
    with pytest.raises(ConfigError, match="a prompt cache of 0 bytes holds nothing"):
        PromptCache(tmp_path, limit_bytes=0)


def test_a_write_that_fails_leaves_nothing_behind(cache: PromptCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    text = PromptEncoder(Fake(), cache).encode(["a cat"])
    assert torch.equal(text[0, :2], Fake().rows("a cat"))
    assert not entries(cache)


def test_what_a_dead_process_left_goes_and_what_a_live_one_writes_stays(cache: PromptCache) -> None:
    old, new = cache.folder / ".old.tmp", cache.folder / ".new.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    cache.put(KEY, torch.ones(2, DIM).bfloat16())
    assert not old.exists() and new.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose a folder that can be written to"):
        PromptCache(tmp_path / "file" / "prompts")


def test_prompts_are_checked_before_a_stream_depends_on_them(cache: PromptCache) -> None:
    encoder = PromptEncoder(Fake(), cache)
    encoder.check(["a cat"])
    with pytest.raises(ConfigError, match="9 tokens"):
        encoder.check(["a cat", "a b c d e f g h i"])
    assert not encoder.embedder.embedded
    with pytest.raises(ConfigError, match="no prompts; give at least one"):
        encoder.encode([])


pytest.importorskip("transformers")
SMALL = Umt5Config(vocabulary=40, dim=16, attention_dim=24, ffn_dim=20, num_heads=3, num_layers=2, max_distance=20, length=32)
PROMPT = "a fox in the deep snow"


class Drawn(Umt5):
    """The encoder without files: a token for each word, and weights of a seed."""

    def __init__(self, config: Umt5Config | None = None, device: str | None = None) -> None:
        super().__init__(Umt5Files(weights=(), tokenizer=Path()), config, device=device)

    def _tokens(self, prompt: str) -> list[int]:
        return [*(2 + sum(word.encode()) % 38 for word in prompt.split()), 1]

    def _weights(self, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(0)
        return {name: torch.randn(like.shape, generator=draw).to(self.dtype) for name, like in expected.items()}


@pytest.mark.parametrize(
    ("free", "device", "offload"), [("all", "cuda", False), ("a layer", "cuda", True), ("little", "cpu", True)]
)
def test_the_device_is_chosen_by_what_is_free(monkeypatch: pytest.MonkeyPatch, free: str, device: str, offload: bool) -> None:
    encoder = Drawn(SMALL)
    sizes = {"all": encoder.num_bytes + SPARE_BYTES, "a layer": encoder.num_bytes + SPARE_BYTES - 1, "little": SPARE_BYTES // 4}
    monkeypatch.setattr(umt5, "free_bytes", lambda where: sizes[free])
    encoder.place(torch.device("cuda"))
    assert (encoder.device.type, encoder.offload) == (device, offload)
    encoder.place(torch.device("cpu"))
    assert encoder.device.type == device  # chosen once
    fixed = Drawn(SMALL, device="cpu")
    fixed.place(torch.device("cuda"))
    assert fixed.device.type == "cpu"


def test_the_predicted_size_is_that_of_the_weights() -> None:
    encoder = Drawn(SMALL)
    encoder.embed([PROMPT])
    assert encoder.num_bytes == sum(each.nbytes for each in {p.data_ptr(): p for p in encoder._model.parameters()}.values())
    assert 10.5e9 < Drawn().num_bytes < 11.5e9


def test_layer_by_layer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer at a time is away from home, and afterwards none."""
    encoder, expected = Drawn(SMALL), Drawn(SMALL).embed([PROMPT, "an owl"])
    encoder.embed([PROMPT])
    places = lambda: [p.data_ptr() for p in encoder._model.parameters()]  # noqa: E731
    home = places()
    away: list[int] = []
    for layer in encoder._model.encoder.block:
        layer.layer[0].register_forward_pre_hook(lambda *_: away.append(sum(place not in home for place in places())))
    number = len([*encoder._model.encoder.block[0].parameters()])
    real = Tensor.to
    copies = lambda x, *given, **named: real(x, *given, **named).clone()  # noqa: E731  # a copy stands for another device
    monkeypatch.setattr(Tensor, "to", copies)
    found = encoder.embed([PROMPT, "an owl"])
    monkeypatch.undo()
    assert away == [number] * 4 and places() == home
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class TestMemory:
    def test_a_text_in_a_folder_is_known_too(self, tmp_path: Path) -> None:
        PromptEncoder(Fake(), PromptCache(tmp_path)).encode([PROMPT])
        encoder = Fake()
        prompts = PromptEncoder(encoder, PromptCache(tmp_path))
        assert prompts.ready([PROMPT])
        first = prompts.encode([PROMPT])
        for path in tmp_path.iterdir():
            path.unlink()
        assert torch.equal(prompts.encode([PROMPT]), first) and not encoder.embedded

    def test_it_is_bounded_by_bytes(self) -> None:
        encoder, prompts = Fake(), [f"a {number}" for number in range(4)]
        size = encoder.rows(prompts[0]).nbytes
        memory = PromptEncoder(encoder, limit_bytes=3 * size)
        assert not memory.ready(prompts[:1])
        memory.encode(prompts[:3])
        assert memory.ready(prompts[:3]) and not memory.ready(prompts)
        memory.encode([prompts[0]])  # used last
        memory.encode([prompts[3]])
        assert [memory.ready([prompt]) for prompt in prompts] == [True, False, True, True]
        longer = "a much longer prompt"
        small = PromptEncoder(encoder, limit_bytes=size)
        small.encode([longer])
        assert not small.ready([longer])

    def test_threads_take_turns_and_share(self) -> None:
        encoder = Fake()
        prompts = PromptEncoder(encoder)
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
        assert sorted(encoder.embedded) == sorted(words)
        alone = [PromptEncoder(Fake()).encode([word])[0] for word in words]
        assert all(torch.equal(a, b) for a, b in zip(alone, found[1], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(alone, reversed(found[0]), strict=True))
