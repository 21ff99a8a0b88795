"""A prompt is encoded once; what a cache gives back is what was put in, or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stand_ins import stands_in_for
from strobe.core.errors import ConfigError, DataError
from strobe.models.text.cache import Embedder, Key, PromptCache, PromptEncoder

DIM, LENGTH = 6, 8


@stands_in_for(Embedder)
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


def test_without_a_cache_each_prompt_is_made_anew() -> None:
    fake = Fake()
    for _ in range(2):
        PromptEncoder(fake).encode(["a cat"])
    assert fake.embedded == ["a cat", "a cat"]


def test_encoder_prompt_and_dtype_are_the_key(cache: PromptCache) -> None:
    kinds = [Fake(), Fake(identity="two"), Fake(dtype=torch.float32)]
    for fake in kinds:
        text = PromptEncoder(fake, cache).encode(["a cat"])
        assert fake.embedded == ["a cat"] and torch.equal(text[0, :2], fake.rows("a cat"))
    assert len(entries(cache)) == 3
    files = {
        replace(KEY, **change).file for change in ({}, {"identity": "on"}, {"prompt": "ea red cat"}, {"dtype": "torch.float32"})
    }
    assert len(files) == 4


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def rename(path: Path) -> None:
    other = path.with_name(replace(KEY, prompt="a blue cat").file)
    path.write_bytes(other.read_bytes())


def undocument(path: Path) -> None:
    save_file(load_file(path), path)


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


@pytest.mark.parametrize("damage", [truncate, empty, flip, rename, undocument, extend])
def test_a_damaged_entry_is_refused_and_made_again(cache: PromptCache, damage: object) -> None:
    fake = Fake()
    encoder = PromptEncoder(fake, cache)
    good = encoder.encode(["a red cat", "a blue cat"])
    assert callable(damage)
    damage(cache.folder / KEY.file)
    assert torch.equal(encoder.encode(["a red cat", "a blue cat"]), good)
    assert fake.embedded == ["a red cat", "a blue cat", "a red cat"]
    assert torch.equal(encoder.encode(["a red cat", "a blue cat"]), good) and len(fake.embedded) == 3


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


def test_several_writers_of_one_prompt(cache: PromptCache) -> None:
    texts: list[Tensor] = []
    threads = [
        Thread(target=lambda: texts.append(PromptEncoder(Fake(), PromptCache(cache.folder)).encode(["a cat"]))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8 and all(torch.equal(text, texts[0]) for text in texts)
    assert len(entries(cache)) == 1 and cache.get(replace(KEY, prompt="a cat")) is not None


def test_prompts_are_checked_before_a_stream_depends_on_them(cache: PromptCache) -> None:
    encoder = PromptEncoder(Fake(), cache)
    encoder.check(["a cat"])
    with pytest.raises(ConfigError, match="9 tokens"):
        encoder.check(["a cat", "a b c d e f g h i"])
    assert not encoder.embedder.embedded
    with pytest.raises(ConfigError, match="no prompts; give at least one"):
        encoder.encode([])
