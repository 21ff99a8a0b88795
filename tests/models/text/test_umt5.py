"""umT5 through transformers gives what the official encoder gives on 512 padded tokens, from either spelling of its weights."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from strobe.core.errors import ConfigError, ImplUnavailableError, WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.text import umt5
from strobe.models.text import umt5 as cleaning
from strobe.models.text.cache import PromptCache, PromptEncoder
from strobe.models.text.umt5 import ORIGINAL, Umt5, Umt5Config, Umt5Files, clean_prompt, key_names

ELEMENT = tolerance("element", "float32")

SMALL = Umt5Config(vocabulary=40, dim=16, attention_dim=24, ffn_dim=20, num_heads=3, num_layers=2, max_distance=20, length=32)
WORDS = ["<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(30))]
PROMPT = " ".join(f"w{(7 * number) % 30}" for number in range(25))


class Norm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(dim) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Layer(nn.Module):
    """A layer of the official encoder, with its names. The heads are not scaled, and each layer has positions of its own."""

    def __init__(self, c: Umt5Config) -> None:
        super().__init__()
        self.heads, self.buckets, self.distance = c.num_heads, c.num_buckets, c.max_distance
        self.norm1, self.norm2 = Norm(c.dim), Norm(c.dim)
        self.attn = nn.ModuleDict({name: nn.Linear(c.dim, c.attention_dim, bias=False) for name in "qkv"})
        self.attn["o"] = nn.Linear(c.attention_dim, c.dim, bias=False)
        gate, fc1 = (nn.Linear(c.dim, c.ffn_dim, bias=False) for _ in range(2))
        self.ffn = nn.ModuleDict({"gate": nn.Sequential(gate), "fc1": fc1, "fc2": nn.Linear(c.ffn_dim, c.dim, bias=False)})
        self.pos_embedding = nn.ModuleDict({"embedding": nn.Embedding(c.num_buckets, c.num_heads)})

    def bucket(self, offset: int) -> int:
        half = self.buckets // 2
        side, distance, exact = half * (offset > 0), abs(offset), half // 2
        if distance < exact:
            return side + distance
        far = math.log(distance / exact) / math.log(self.distance / exact) * (half - exact)
        return side + min(exact + int(far), half - 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        length, normed = x.shape[0], self.norm1(x)
        q, k, v = (self.attn[name](normed).view(length, self.heads, -1).transpose(0, 1) for name in "qkv")
        table = torch.tensor([[self.bucket(key - query) for key in range(length)] for query in range(length)])
        bias = self.pos_embedding["embedding"](table).permute(2, 0, 1)
        scores = (q @ k.transpose(1, 2) + bias).masked_fill(mask == 0, torch.finfo(x.dtype).min)
        x = x + self.attn["o"]((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        normed = self.norm2(x)
        gate = nn.functional.gelu(self.ffn["gate"](normed), approximate="tanh")
        return x + self.ffn["fc2"](self.ffn["fc1"](normed) * gate)


class Official(nn.Module):
    """The official encoder on padded tokens, rows of padding zeroed."""

    def __init__(self, c: Umt5Config) -> None:
        super().__init__()
        self.length = c.length
        self.token_embedding = nn.Embedding(c.vocabulary, c.dim)
        self.blocks = nn.ModuleList([Layer(c) for _ in range(c.num_layers)])
        self.norm = Norm(c.dim)

    @torch.no_grad()
    def encode(self, prompt: str) -> Tensor:
        tokens = [WORDS.index(word) if word in WORDS else 2 for word in prompt.split()] + [1]
        ids = torch.tensor(tokens + [0] * (self.length - len(tokens)))
        mask = (torch.arange(self.length) < len(tokens)).long()
        x = self.token_embedding(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) * mask[:, None]


@pytest.fixture(scope="module")
def official() -> Official:
    torch.manual_seed(8)
    return Official(SMALL)


def write_tokenizer(folder: Path) -> None:
    """A tokeniser of whole words with the special tokens of umT5."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed (extra `wan`)")
    model = tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special | {"tokenizer_class": "PreTrainedTokenizerFast"}))


def write_original(official: Official, folder: Path) -> Path:
    write_tokenizer(folder / "google" / "umt5-xxl")
    torch.save(official.state_dict(), folder / ORIGINAL)
    return folder


def write_diffusers(official: Official, folder: Path) -> Path:
    """Two shards, the embedding under the name that diffusers ties it to."""
    write_tokenizer(folder / "tokenizer")
    (folder / "text_encoder").mkdir()
    original = official.state_dict()
    tensors = {own: original[name] for own, name in key_names(SMALL).items()}
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    for number in range(2):
        shard = dict(list(tensors.items())[number::2])
        save_file(shard, folder / "text_encoder" / f"model-0000{number + 1}-of-00002.safetensors")
    return folder


@pytest.fixture
def with_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra `wan`)")


@pytest.mark.usefixtures("with_transformers")
class TestWithTransformers:
    @pytest.mark.parametrize("write", [write_original, write_diffusers])
    def test_rows_are_those_of_the_official_encoder(self, official: Official, tmp_path: Path, write: object) -> None:
        assert callable(write)
        encoder = Umt5(Umt5Files.find(write(official, tmp_path)), SMALL, dtype=torch.float32)
        prompts = ["w3 w4", PROMPT, "w5 unknown"]
        expected = torch.stack([official.encode(prompt) for prompt in prompts])
        assert expected[:, 0].std() > 0.5
        text = PromptEncoder(encoder).encode(prompts)
        torch.testing.assert_close(text, expected, rtol=0, atol=ELEMENT)
        assert not text.is_inference() and (text[0, 3:] == 0).all() and (text[0, 2] != 0).any()

    def test_a_prompt_does_not_depend_on_its_neighbours(self, official: Official, tmp_path: Path) -> None:
        encoder = Umt5(Umt5Files.find(write_original(official, tmp_path)), SMALL)
        alone, together = encoder.embed(["w3 w4"])[0], encoder.embed([PROMPT, "w3 w4"])[1]
        assert alone.dtype == torch.bfloat16 and torch.equal(alone, together)

    def test_weights_may_stay_on_the_device(self, official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        encoder = Umt5(Umt5Files.find(write_original(official, tmp_path)), SMALL, offload=False)
        expected = encoder.embed(["w3"])[0]
        host = [parameter.data for parameter in encoder._model.parameters()]
        monkeypatch.setattr(umt5, "uploaded", lambda held, *_: {name: each.data.clone() for name, each in held.items()})
        monkeypatch.setattr(encoder, "device", torch.device("cuda"))  # a copy stands for the one there
        with encoder._at_work():
            pass
        assert not {parameter.data_ptr() for parameter in encoder._model.parameters()} & {data.data_ptr() for data in host}
        monkeypatch.undo()
        assert torch.equal(encoder.embed(["w3"])[0], expected)
        assert encoder._model.encoder.embed_tokens.weight is encoder._model.shared.weight

    @pytest.mark.gpu
    def test_rows_of_a_gpu(self, official: Official, tmp_path: Path) -> None:
        files = Umt5Files.find(write_original(official, tmp_path))
        encoder = Umt5(files, SMALL, dtype=torch.float32, device="cuda")
        expected = Umt5(files, SMALL, dtype=torch.float32).embed([PROMPT])[0]
        torch.testing.assert_close(
            encoder.embed([PROMPT])[0], expected, rtol=0, atol=tolerance("text", "float32")
        )  # TF32 may be on
        assert {parameter.device.type for parameter in encoder._model.parameters()} == {"cpu"}

    def test_a_tokeniser_is_read_from_its_folder_and_never_fetched(
        self, official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import transformers

        asked: list[tuple[str, dict[str, object]]] = []
        original = transformers.AutoTokenizer.from_pretrained

        def noted(folder: str, **options: object) -> object:
            asked.append((folder, options))
            return original(folder, **options)

        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", noted)
        Umt5(Umt5Files.find(write_original(official, tmp_path)), SMALL).embed(["w3"])
        assert asked == [(str(tmp_path / "google" / "umt5-xxl"), {"local_files_only": True})]

    def test_too_many_tokens_are_refused(self, official: Official, tmp_path: Path) -> None:
        encoder = PromptEncoder(Umt5(Umt5Files.find(write_original(official, tmp_path)), SMALL))
        encoder.check(["w1 " * 31])
        for refuse in (encoder.check, encoder.encode):
            with pytest.raises(ConfigError, match=r"has 33 tokens, 32 allowed; shorten it"):
                refuse(["w1 " * 32])

    def test_half_a_checkpoint_is_refused(self, official: Official, tmp_path: Path) -> None:
        folder = write_original(official, tmp_path)
        half = {name: tensor for name, tensor in official.state_dict().items() if not name.startswith("blocks.1.attn")}
        torch.save(half, folder / ORIGINAL)
        with pytest.raises(WeightsError, match=r"4 missing: blocks.1.attn.k.weight, blocks.1.attn.o.weight"):
            Umt5(Umt5Files.find(folder), SMALL).embed(["w1"])

    def test_a_folder_without_a_tokeniser_in_it_is_refused(self, official: Official, tmp_path: Path) -> None:
        folder = write_original(official, tmp_path)
        for path in (folder / "google" / "umt5-xxl").iterdir():
            path.unlink()
        with pytest.raises(WeightsError, match=r"umt5-xxl holds no tokeniser \(.*\); copy it from the release again"):
            Umt5(Umt5Files.find(folder), SMALL).embed(["w1"])


def fake_release(folder: Path, size_bytes: int = 10) -> Path:
    (folder / "google" / "umt5-xxl").mkdir(parents=True)
    (folder / "google" / "umt5-xxl" / "tokenizer.json").write_text("{}")
    (folder / ORIGINAL).write_bytes(bytes(size_bytes))
    return folder


def test_an_incomplete_folder_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds no umT5, neither models_t5_umt5-xxl-enc-bf16.pth nor text_encoder/model"):
        Umt5Files.find(tmp_path)
    (tmp_path / ORIGINAL).write_bytes(b"")
    with pytest.raises(WeightsError, match="holds no umT5, neither the folder google/umt5-xxl nor tokenizer; give --release the"):
        Umt5Files.find(tmp_path)
    with pytest.raises(WeightsError, match="no folder '.*nowhere'; give --release the folder of Wan2.1 or Wan2.2 as released"):
        Umt5Files.find(tmp_path / "nowhere")


def test_shards_that_are_not_all_there(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "text_encoder").mkdir()
    for number, words in ((1, "1 of 3 files are there"), (3, "2 of 3 files are there; fetch the rest")):
        (tmp_path / "text_encoder" / f"model-0000{number}-of-00003.safetensors").write_bytes(b"")
        with pytest.raises(WeightsError, match=rf"text_encoder is half a umT5: {words}"):
            Umt5Files.find(tmp_path)
    (tmp_path / "text_encoder" / "model-00002-of-00003.safetensors").write_bytes(b"")
    assert len(Umt5Files.find(tmp_path).weights) == 3


def test_the_identity_is_that_of_the_content(tmp_path: Path) -> None:
    one, two = fake_release(tmp_path / "a", 5_000_000), fake_release(tmp_path / "b", 5_000_000)
    first = Umt5Files.find(one).fingerprint()
    assert Umt5Files.find(two).fingerprint() == first
    (two / "google" / "umt5-xxl" / "tokenizer.json").write_text("[]")
    other = Umt5Files.find(two).fingerprint()
    data = bytearray(5_000_000)
    data[5_000_000 // 64 * 40] = 1
    (one / ORIGINAL).write_bytes(data)
    assert len({first, other, Umt5Files.find(one).fingerprint()}) == 3


def test_a_prompt_that_is_kept_needs_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(umt5, "broken", lambda module: f"{module} cannot be imported (ImportError: No module named 'x')")
    encoder = Umt5(Umt5Files.find(fake_release(tmp_path / "wan")), SMALL)
    text = PromptEncoder(encoder, PromptCache(tmp_path / "prompts"))
    with pytest.raises(ImplUnavailableError, match=r"needs transformers.*No module named.*pip install .*\[wan\]"):
        text.encode(["w1 w2"])
    rows, cache = torch.ones(3, SMALL.dim).bfloat16(), text.cache
    cache.put(text._key("w1 w2"), rows)
    text.check(["w1  w2"])
    assert torch.equal(text.encode(["w1  w2"])[0, :3], rows)


PLAIN = st.text("\t\n" + "".join(chr(code) for code in range(32, 127) if chr(code) != "&"), min_size=1)


@given(PLAIN.filter(str.strip))
def test_plain_ascii_keeps_its_words(prompt: str) -> None:
    assert clean_prompt(prompt) == " ".join(prompt.split())


@pytest.mark.parametrize("prompt", ["", " ", "\n\t "])
def test_nothing_is_no_prompt(prompt: str) -> None:
    with pytest.raises(ConfigError, match=r"prompt .* is empty; give at least one word"):
        clean_prompt(prompt)


@pytest.mark.parametrize("prompt", ["café", "a &amp; b", "bell\x07", "line\rend"])
def test_other_text_asks_for_ftfy_where_it_is_missing(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "broken", lambda module: f"{module} is not installed")
    assert clean_prompt("a cat") == "a cat"
    with pytest.raises(ImplUnavailableError, match=r"pip install .*\[wan\].*, or write the prompt in ASCII"):
        clean_prompt(prompt)


@given(st.text(min_size=1))
def test_it_is_the_official_cleaning(prompt: str) -> None:
    ftfy = pytest.importorskip("ftfy", reason="ftfy is not installed (extra `wan`)")
    official = html.unescape(html.unescape(ftfy.fix_text(prompt))).strip()
    official = re.sub(r"\s+", " ", official).strip()
    if official:
        assert clean_prompt(prompt) == official
    else:
        with pytest.raises(ConfigError):
            clean_prompt(prompt)
