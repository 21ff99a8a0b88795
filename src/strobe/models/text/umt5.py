"""umT5, the text encoder of Wan2.1, through transformers, which is imported when a prompt is first encoded.

Each prompt is encoded alone and without padding: padded keys are masked, so that rows are what the official pipeline computes on
512 tokens, and they depend on nothing but the prompt. Rows of padding are zeros, as there (`strobe.models.text.cache`).

Source: the official `wan/modules/t5.py` and `tokenizers.py`; UMT5EncoderModel of transformers.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from strobe.core.device import uploaded
from strobe.core.errors import ConfigError, ImplUnavailableError, WeightsError
from strobe.core.libraries import broken, install
from strobe.models.checkpoint import match, on_meta, read_tensors

PLAIN = re.compile(r"[\t\n -%'-~]*")
"""Printable ASCII without an ampersand: text that ftfy never changes."""


def clean_prompt(prompt: str) -> str:
    """Mend broken Unicode (ftfy), undo HTML escapes twice, and make every run of white space one blank, none at the ends.

    Raises:
        ConfigError: nothing is left.
        ImplUnavailableError: the prompt is not plain ASCII and ftfy is not installed.

    Source: the tokeniser of the official Wan2.1, `clean="whitespace"`.
    """
    text = prompt if PLAIN.fullmatch(prompt) else _mended(prompt)
    cleaned = re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()
    if not cleaned:
        raise ConfigError(f"prompt {prompt!r} is empty; give at least one word")
    return cleaned


def _mended(prompt: str) -> str:
    if why := broken("ftfy"):
        reason = f"prompt {prompt!r} is not plain ASCII, the models' tokeniser uses ftfy on such text, and {why}"
        raise ImplUnavailableError("umt5", f"{reason}; run {install('wan')}, or write the prompt in ASCII")
    mended: str = import_module("ftfy").fix_text(prompt)
    return mended


ORIGINAL = "models_t5_umt5-xxl-enc-bf16.pth"
TOKENIZERS = ("google/umt5-xxl", "tokenizer")
"""Folder of the tokeniser beside the weights: in the original release, in a diffusers pipeline."""

WHERE: Final = (
    "give --release the folder of Wan2.1 or Wan2.2 as released, or of its diffusers pipeline: it has text encoder and autoencoder"
)
INSTALL: Final = f"run {install('wan')}"

SAMPLES = 64
SAMPLE_BYTES = 1 << 16
"""A weight file's identity is its size and this many pieces of it, evenly spaced: 11 GB are not read to name them."""

SPARE_BYTES: Final = 4 << 30
"""What is left free on a GPU beside weights that stay: for snapshots, forks and what a prompt takes while it is encoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Umt5Config:
    """Sizes of the encoder; defaults are those of umT5-xxl.

    Args:
        vocabulary: tokens.
        dim: width of a row.
        attention_dim: width of all heads together.
        ffn_dim: hidden width of the feed-forward.
        num_buckets: of the relative positions, which every layer has of its own.
        max_distance: from which positions share a bucket.
        length: most tokens of a prompt, the end included.
    """

    vocabulary: int = 256384
    dim: int = 4096
    attention_dim: int = 4096
    ffn_dim: int = 10240
    num_heads: int = 64
    num_layers: int = 24
    num_buckets: int = 32
    max_distance: int = 128
    length: int = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Umt5Files:
    """The files of an encoder.

    Args:
        weights: one file, or the shards.
        tokenizer: folder.
    """

    weights: tuple[Path, ...]
    tokenizer: Path

    @classmethod
    def find(cls, folder: str | Path) -> Umt5Files:
        """Find the encoder in the folder of the original release or of a diffusers pipeline.

        Raises:
            WeightsError: weights or tokeniser are not there, or not all of them; says what was looked for.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise WeightsError(f"no folder {str(folder)!r}; {WHERE}")
        original = folder / ORIGINAL
        shards = tuple(sorted((folder / "text_encoder").glob("model*.safetensors")))
        weights = (original,) if original.is_file() else shards
        tokenizers = [folder / name for name in TOKENIZERS if (folder / name).is_dir()]
        if not weights or not tokenizers:
            gap = f"{ORIGINAL} nor text_encoder/model*.safetensors" if not weights else f"the folder {' nor '.join(TOKENIZERS)}"
            raise WeightsError(f"{folder} holds no umT5, neither {gap}; {WHERE}")
        told = re.fullmatch(r".+-of-(\d+)", weights[0].stem)
        if told and int(told[1]) != len(weights):
            raise WeightsError(
                f"{weights[0].parent} is half a umT5: {len(weights)} of {int(told[1])} files are there; fetch the rest"
            )
        return cls(weights=weights, tokenizer=tokenizers[0])

    def fingerprint(self) -> str:
        """Compute a digest of the tokeniser and of samples of the weights, hexadecimal; it does not depend on the folder."""
        digest = hashlib.sha256()
        for path in (*self.weights, *sorted(path for path in self.tokenizer.rglob("*") if path.is_file())):
            size_bytes = path.stat().st_size
            digest.update(f"{path.name} {size_bytes} ".encode())
            step = max(SAMPLE_BYTES, size_bytes // SAMPLES)
            with path.open("rb") as file:
                for start in range(0, size_bytes, step):
                    file.seek(start)
                    digest.update(file.read(SAMPLE_BYTES))
        return digest.hexdigest()


def key_names(config: Umt5Config) -> dict[str, str]:
    """Map the name of every tensor in transformers to the original one."""
    layer = {
        "layer.0.layer_norm": "norm1",
        **{f"layer.0.SelfAttention.{part}": f"attn.{part}" for part in "qkvo"},
        "layer.0.SelfAttention.relative_attention_bias": "pos_embedding.embedding",
        "layer.1.layer_norm": "norm2",
        "layer.1.DenseReluDense.wi_0": "ffn.gate.0",
        "layer.1.DenseReluDense.wi_1": "ffn.fc1",
        "layer.1.DenseReluDense.wo": "ffn.fc2",
    }
    names = {"shared": "token_embedding", "encoder.final_layer_norm": "norm"}
    for number in range(config.num_layers):
        names |= {f"encoder.block.{number}.{own}": f"blocks.{number}.{original}" for own, original in layer.items()}
    return {f"{own}.weight": f"{original}.weight" for own, original in names.items()}


class Umt5:
    """The encoder: cleaned prompts to rows; equal `identity`, equal rows. Weights are read when the first prompt comes.

    Args:
        files: weights and tokeniser.
        config: sizes.
        dtype: of weights and rows; bfloat16 is what was released.
        device: where it computes; None: where frames are made, see `place`.
        offload: the weights stay in the host's memory, and each layer is copied to the device while it runs.
    """

    def __init__(
        self,
        files: Umt5Files,
        config: Umt5Config | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = "cpu",
        offload: bool = True,
    ) -> None:
        self.files = files
        self.config = config or Umt5Config()
        self.dtype = dtype
        self.device = torch.device("cpu" if device is None else device)
        self.offload = offload
        self._free = device is None
        self._model: Any = None

    @property
    def length(self) -> int:
        return self.config.length

    @cached_property
    def identity(self) -> str:
        return f"umt5 {self.files.fingerprint()}"

    @cached_property
    def _tokenizer(self) -> Any:
        loader = _transformers().AutoTokenizer
        try:
            return loader.from_pretrained(str(self.files.tokenizer), local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise WeightsError(f"{self.files.tokenizer} holds no tokeniser ({reason}); copy it from the release again") from error

    def clean(self, prompt: str) -> str:
        return clean_prompt(prompt)

    def check(self, prompt: str) -> None:
        """Check a cleaned prompt.

        Raises:
            ConfigError: it has too many tokens. The official pipeline drops those at the end without a word.
        """
        self._tokens(prompt)

    def embed(self, prompts: Sequence[str]) -> list[Tensor]:
        """Encode cleaned prompts to rows [tokens, dim] on the CPU, without padding.

        Raises:
            ConfigError: a prompt has too many tokens.
            ImplUnavailableError: transformers is not installed.
            WeightsError: the files are damaged or of another model.
        """
        tokens = [self._tokens(prompt) for prompt in prompts]
        with self._beside(), self._at_work() as model, torch.inference_mode():
            rows = [self._rows(model, torch.tensor([row])) for row in tokens]
        with torch.inference_mode(False):  # ordinary tensors, for whoever goes on with them
            return [row.clone() for row in rows]

    @property
    def num_bytes(self) -> int:
        """Memory of the weights, bytes."""
        config = self.config
        layer = config.dim * (4 * config.attention_dim + 3 * config.ffn_dim + 2) + config.num_buckets * config.num_heads
        return self.dtype.itemsize * (config.vocabulary * config.dim + config.num_layers * layer + config.dim)

    def place(self, device: torch.device) -> None:
        """Choose a device for the encoder, if none was given: the one that makes frames, if the weights fit there.

        They stay there if they fit beside what is held and `SPARE_BYTES`; if only a layer fits, they are offloaded; else the CPU
        encodes.

        Args:
            device: what a stream holds there was allocated.
        """
        if not self._free:
            return
        self._free = False
        free = free_bytes(device)
        if free >= self.num_bytes + SPARE_BYTES:
            self.device, self.offload = device, False
        elif free >= self.num_bytes // self.config.num_layers + SPARE_BYTES // 4:
            self.device = device

    def _tokens(self, prompt: str) -> list[int]:
        found: list[int] = self._tokenizer(prompt, add_special_tokens=True, truncation=False)["input_ids"]
        if len(found) > self.length:
            raise ConfigError(f"prompt {prompt[:60]!r}... has {len(found)} tokens, {self.length} allowed; shorten it")
        return found

    def _rows(self, model: Any, ids: Tensor) -> Tensor:
        """Compute the rows of one prompt; token embeddings are looked up on the device of the table."""
        table = model.shared.weight
        given = F.embedding(ids.to(table.device), table).to(self.device)
        mask = torch.ones(ids.shape, dtype=torch.int64, device=self.device)
        rows: Tensor = model(inputs_embeds=given, attention_mask=mask).last_hidden_state[0]
        return rows.cpu()

    def _beside(self) -> AbstractContextManager[object]:
        """Return a context with a CUDA stream of its own, so that frames do not wait for a prompt; on a CPU it does nothing."""
        return torch.cuda.stream(torch.cuda.Stream(self.device)) if self.device.type == "cuda" else nullcontext()

    @contextmanager
    def _at_work(self) -> Iterator[Any]:
        """Give the model, whose layers are on its device: all of them, or each while it runs."""
        if self._model is None:
            self._model = self._read()
        with ExitStack() as stack:
            for layer in (*self._model.encoder.block, self._model.encoder.final_layer_norm) if self.offload else ():
                for hook in visiting(layer, self.device):
                    stack.callback(hook.remove)
            if self.device.type != "cpu" and not self.offload:
                away = {name: each for name, each in self._model.named_parameters() if each.device.type == "cpu"}
                for name, data in uploaded(away, self.device, self.dtype).items():
                    away[name].data = data
            yield self._model

    def _read(self) -> Any:
        transformers, config = _transformers(), self.config
        asked = transformers.UMT5Config(
            vocab_size=config.vocabulary,
            d_model=config.dim,
            d_kv=config.attention_dim // config.num_heads,
            d_ff=config.ffn_dim,
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            relative_attention_num_buckets=config.num_buckets,
            relative_attention_max_distance=config.max_distance,
            feed_forward_proj="gated-gelu",
        )
        with on_meta():
            model = transformers.UMT5EncoderModel(asked)
        expected = {name: tensor for name, tensor in model.state_dict().items() if name != "encoder.embed_tokens.weight"}
        found = self._weights(expected)
        model.load_state_dict(found | {"encoder.embed_tokens.weight": found["shared.weight"]}, assign=True)
        model.encoder.embed_tokens = model.shared
        return model.requires_grad_(False).eval()

    def _weights(self, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read the tensors under the names of transformers, in the encoder's dtype."""
        tensors: dict[str, Tensor] = {}
        for path in self.files.weights:
            tensors |= read_tensors(path)
        names = key_names(self.config)
        if "token_embedding.weight" not in tensors:
            names = {own: own for own in names}
            tied = tensors.pop("encoder.embed_tokens.weight", None)
            if tied is not None:
                tensors.setdefault("shared.weight", tied)
        found = match(expected, tensors, names, self.files.weights[0])
        return {own: tensor.to(self.dtype) for own, tensor in found.items()}


def visiting(layer: nn.Module, device: torch.device) -> tuple[RemovableHandle, RemovableHandle]:
    """Add hooks that copy a layer's weights to a device while the layer runs; remove the handles to end this."""
    home = {parameter: parameter.data for parameter in layer.parameters()}

    def enter(*_: object) -> None:
        for parameter, data in home.items():
            parameter.data = data.to(device)

    def leave(*_: object) -> None:
        for parameter, data in home.items():
            parameter.data = data

    return layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave, always_call=True)


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, bytes; 0 for another device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def check_installed() -> None:
    """Check that transformers is there. It is imported when a prompt is first encoded: that takes over a second.

    Raises:
        ImplUnavailableError: it is not.
    """
    if find_spec("transformers") is None:
        raise _unusable("transformers is not installed")


def _unusable(why: str) -> ImplUnavailableError:
    return ImplUnavailableError("umt5", f"the text encoder needs transformers, and {why}; {INSTALL}")


def _transformers() -> Any:
    if why := broken("transformers"):
        raise _unusable(why)
    return import_module("transformers")
