"""Checkpoints in every spelling and container are read whole, or refused with what is wrong."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from spellings import (
    DIFFUSERS_CONFIG,
    ORIGINAL_CONFIG,
    WAN,
    WRITERS,
    Tensors,
    lora_tensors,
    peft,
    read_checkpoint,
    to_diffusers,
    write_diffusers,
    write_krea,
    write_longlive,
    write_original,
    write_original_sharded,
    write_self_forcing,
)
from strobe.core.errors import WeightsError
from strobe.models.wan.config import SIZES
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.weights import open_checkpoint
from strobe.models.wan.weights.checkpoint import find_files


class TouchedError(BaseException):
    """Raised where tensors would be read; no reader takes it for a damaged file."""


class TestSpellings:
    @pytest.mark.parametrize("spelling", WRITERS)
    def test_all_give_the_same_tensors_and_say_what_was_read(self, original: Tensors, tmp_path: Path, spelling: str) -> None:
        found = read_checkpoint(WRITERS[spelling](tmp_path, original), WAN)
        state = found.dit.state_dict()
        assert state.keys() == original.keys()
        assert all(torch.equal(state[name], tensor) for name, tensor in original.items())
        assert not any(p.requires_grad or p.is_meta for p in found.dit.parameters()) and not found.dit.training
        parts = {"self_forcing": "generator_ema", "fsdp": "generator", "longlive": "generator"}
        files = {"self_forcing": "self_forcing_dmd.pt", "longlive": "longlive_base.pt"}
        assert found.part == parts.get(spelling, "") and files.get(spelling, found.files[0].name) == found.files[0].name
        assert len(found.files) == (2 if spelling in ("original_sharded", "diffusers") else 1) and len(found.weights_hash) == 64

    def test_the_hash_is_of_the_content(self, original: Tensors, tmp_path: Path) -> None:
        first = read_checkpoint(write_krea(tmp_path, original), WAN).weights_hash
        assert read_checkpoint(tmp_path, WAN).weights_hash == first
        write_krea(tmp_path, original | {"head.head.bias": original["head.head.bias"] + 1})
        assert read_checkpoint(tmp_path, WAN).weights_hash != first


class TestSizes:
    @pytest.mark.parametrize("config", [ORIGINAL_CONFIG, DIFFUSERS_CONFIG], ids=["original", "diffusers"])
    def test_they_are_read_from_config_json(self, original: Tensors, tmp_path: Path, config: dict[str, Any]) -> None:
        write_original(tmp_path, original)
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = read_checkpoint(tmp_path).dit.config
        assert found == replace(WAN, text_len=config.get("text_len", 512))  # diffusers does not state the length

    def test_another_model_than_asked_for(self, original: Tensors, tmp_path: Path) -> None:
        write_original(tmp_path, original)
        with pytest.raises(WeightsError, match=r"is another model than was asked for: num_layers 2 instead of 30, ffn_dim 128"):
            read_checkpoint(tmp_path, SIZES["wan-1.3b"])

    def test_without_config_json_the_width_decides(self, original: Tensors, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match=r"is 48 wide, which is none of wan-1.3b \(1536\), wan-14b \(5120\)"):
            read_checkpoint(write_krea(tmp_path, original))
        (tmp_path / "config.json").write_text('{"architectures": ["Something"]}')
        with pytest.raises(WeightsError, match="which is none of"):
            read_checkpoint(tmp_path)

    @pytest.mark.parametrize(("name", "layers", "params"), [("wan-1.3b", 30, 1_418_996_800), ("wan-14b", 40, 14_288_491_584)])
    def test_full_sizes_have_the_published_number_of_parameters(self, name: str, layers: int, params: int) -> None:
        with torch.device("meta"):
            dit = CausalWan(SIZES[name])
        assert sum(parameter.numel() for parameter in dit.parameters()) == params
        assert len(dit.state_dict()) == 27 * layers + 15
        assert dit.config.head_dim == 128 and dit.config.rope_pairs == (22, 21, 21)


def zeros(*names: str) -> Tensors:
    return {name: torch.zeros(1) for name in names}


LFS = b"version https://git-lfs\noid sha256:0"
FFN, SCALE = "blocks.0.ffn.0.weight", "blocks.0.ffn.0.scale_weight"
SAFE = "a.safetensors"
REFUSED: list[tuple[str, Any, str]] = [
    ("Wan2.1_VAE.pth", b"", r"holds no transformer \(it holds: Wan2.1_VAE.pth\); expected diffusion_pytorch_model"),
    ("a.pt", LFS, "is a pointer that Git LFS left .* run git lfs pull"),
    (SAFE, LFS, "run git lfs pull"),
    (SAFE, b"<html>404: not found</html>", r"no safetensors file \(it has no list of tensors\); fetch it"),
    (SAFE, (2).to_bytes(8, "little") + b"[]", "it has no list of tensors"),
    (SAFE, (9).to_bytes(8, "little") + b'{"a": {}}', "it has no list of tensors"),
    ("config.json", b"{", r"config\.json is damaged or not JSON"),
    ("config.json", b"[]", r"config\.json holds no JSON object"),
    ("config.json", b'{"num_heads": 5, "dim": 48}', r"config\.json does not describe a Wan transformer"),
    ("config.json", b'{"num_heads": "two", "dim": 48}', r"config\.json does not describe a Wan transformer"),
    ("config.json", b'{"num_heads": 0, "dim": 48}', r"config\.json does not describe a Wan transformer"),
    ("config.json", b'{"num_heads": 2, "patch_size": [2, 2]}', r"config\.json does not describe a Wan transformer"),
    ("a.pt", [torch.zeros(3)], "holds a list, not tensors by name"),
    ("a.pt", {"step": 3}, "holds no tensors"),
    (
        "a.pt",
        lambda own: {"model": own, "model_ema": own},
        "holds several models: model, model_ema; keep the one that should run",
    ),
    (SAFE, zeros("encoder.weight", "decoder.weight"), r"no Wan transformer .* \(its tensors: decoder.weight, enc"),
    (SAFE, zeros("dit.head.head.weight", "text.words.weight", "vae.a"), "a bundled model; give --model with its folder"),
    (SAFE, zeros("encoder.conv1.weight", "decoder.conv1.weight"), "is an autoencoder; .* with --vae"),
    (SAFE, zeros("encoder.conv_in.weight", "decoder.conv_in.weight"), "is an autoencoder; .* with --vae"),
    (SAFE, zeros("token_embedding.weight", "blocks.0.attn.q.weight"), "is a text encoder; .* its folder with --release"),
    (SAFE, zeros("shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight"), "is a text encoder"),
    (
        SAFE,
        lambda own: own | zeros("blocks.0.cross_attn.k_img.weight"),
        r"image-to-video model \(it has .*.cross_attn.k_img.weight\)",
    ),
    (SAFE, lambda own: peft(lora_tensors(own)), "is a LoRA, not a base model"),
    (SAFE, lambda own: peft(lora_tensors(own)) | zeros("some.note"), "is a LoRA, not a base model"),
    (
        SAFE,
        lambda own: own | zeros("model.head.head.bias"),
        "'head.head.bias' and 'model.head.head.bias' in one checkpoint are the",
    ),
    (SAFE, lambda own: own | {FFN: own[FFN].to(torch.int8)}, f"holds whole numbers without a scale .{FFN}"),
    (SAFE, lambda own: own | {SCALE: torch.ones(1)}, f"fits no eight-bit {FFN}; scales of one number"),
    (SAFE, lambda own: own | {FFN: own[FFN].to(torch.float8_e5m2), SCALE: torch.ones(3)}, "has a scale .* .3. that fits"),
]
"""The name of a file, its bytes or what is saved in it, made of the model's own tensors or not, and what is said of it."""


class TestWhatIsRefused:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="no file or folder"):
            read_checkpoint(tmp_path / "nowhere", WAN)
        with pytest.raises(WeightsError, match=r"holds no transformer \(it holds: nothing\); expected diffusion_pytorch_model"):
            read_checkpoint(tmp_path, WAN)

    @pytest.mark.parametrize(("file", "content", "words"), REFUSED)
    def test_a_file_that_is_no_transformer(self, original: Tensors, tmp_path: Path, file: str, content: Any, words: str) -> None:
        path, given = tmp_path / file, content(original) if callable(content) else content
        config = WAN if file != "config.json" else None
        if config is None:
            write_original(tmp_path, original)
        if isinstance(given, bytes):
            path.write_bytes(given)
        else:
            torch.save(given, path) if path.suffix == ".pt" else save_file(given, path)
        with pytest.raises(WeightsError, match=words):
            read_checkpoint(tmp_path, config)

    def test_several_checkpoints(self, original: Tensors, tmp_path: Path) -> None:
        write_krea(tmp_path, original)
        write_self_forcing(tmp_path, original)
        with pytest.raises(WeightsError, match=r"several checkpoints: krea-realtime-video-14b.safetensors, self_forcing_dmd.pt;"):
            read_checkpoint(tmp_path, WAN)
        read_checkpoint(tmp_path / "krea-realtime-video-14b.safetensors", WAN)

    @pytest.mark.parametrize("write", [write_original_sharded, write_diffusers])
    def test_half_a_checkpoint(self, original: Tensors, tmp_path: Path, write: Any) -> None:
        folder = write(tmp_path, original)
        next(folder.glob("**/*-00002-of-00002.safetensors")).unlink()
        with pytest.raises(WeightsError, match=r"half a checkpoint: 1 of 2 files missing; fetch: .*-00002-of-00002.safetensors"):
            read_checkpoint(folder, WAN)

    def test_shards_without_their_index(self, original: Tensors, tmp_path: Path) -> None:
        write_original_sharded(tmp_path, original)
        (tmp_path / "diffusion_pytorch_model.safetensors.index.json").unlink()
        for _ in range(2):
            with pytest.raises(WeightsError, match=r"-of-00002.safetensors has no index; fetch the .safetensors.index.json"):
                read_checkpoint(tmp_path, WAN)
            (tmp_path / "diffusion_pytorch_model-00001-of-00002.safetensors").unlink(missing_ok=True)

    @pytest.mark.parametrize(("write", "suffix"), [(write_original, ".safetensors"), (write_longlive, ".pt")])
    @pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
    def test_half_a_file(self, original: Tensors, tmp_path: Path, write: Any, suffix: str, share: float) -> None:
        folder = write(tmp_path, original)
        file = next(file for file in folder.glob(f"*{suffix}") if not file.name.startswith("lora"))
        whole = file.stat().st_size
        held = int(share * whole)
        file.write_bytes(file.read_bytes()[:held])
        with pytest.raises(WeightsError) as caught:
            read_checkpoint(folder, WAN)
        said = str(caught.value)
        assert said.startswith(str(file)) and said.endswith("fetch it again") and len(said) < len(str(file)) + 100
        if not share:
            assert "is empty" in said
        elif suffix == ".pt":
            assert f"is half a file: it ends after {held:,} bytes" in said
        elif share > 0.1:  # the list of tensors is there
            assert f"is half a file: {held:,} of {whole:,} bytes are there" in said
        else:
            assert "its list of tensors is not all there" in said

    def test_files_are_checked_without_their_tensors(
        self, original: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read(path: Path) -> None:
            raise TouchedError(f"{path} was read")

        monkeypatch.setattr("strobe.models.checkpoint.load_file", read)
        folder = write_original_sharded(tmp_path, original)
        opened = open_checkpoint(folder, WAN)
        assert opened.dit.config == WAN and all(tensor.is_meta for tensor in opened.source.tensors.values())
        with pytest.raises(WeightsError, match="with its 96 tensors: 27 missing: blocks.2"):
            (folder / "config.json").unlink()
            open_checkpoint(folder / "diffusion_pytorch_model.safetensors.index.json", replace(WAN, num_layers=3))
        with pytest.raises(TouchedError, match=r"00001-of-00002.safetensors was read"):
            opened.read()

    def test_what_main_memory_cannot_map_is_not_called_damaged(
        self, original: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read(path: Path) -> None:
            raise RuntimeError(f"unable to mmap 285 bytes from file <{path}>: Cannot allocate memory (12)")

        monkeypatch.setattr("strobe.models.checkpoint.load_file", read)
        with pytest.raises(WeightsError, match=r"of [\d,]+ bytes cannot be mapped into main memory; free some"):
            read_checkpoint(write_krea(tmp_path, original), WAN)

    def test_all_kinds_of_differences_are_counted(self, original: Tensors, tmp_path: Path) -> None:
        tensors = {name: tensor for name, tensor in original.items() if not name.startswith("blocks.1.cross")}
        tensors["patch_embedding.weight"] = torch.zeros(48, 8, 1, 2, 2)
        tensors["extra.weight"] = torch.zeros(3)
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(WeightsError) as caught:
            read_checkpoint(tmp_path, WAN)
        names = ", ".join(f"blocks.1.cross_attn.{name}" for name in ("k.bias", "k.weight", "norm_k.weight", "norm_q.weight"))
        assert str(caught.value).endswith(
            f"is not a transformer (2 layers, 48 wide) with its 69 tensors: 10 missing: {names}, and 6 more; 1 unexpected: "
            "extra.weight; 1 of another shape: patch_embedding.weight (48, 8, 1, 2, 2) for (48, 16, 1, 2, 2); give the "
            "whole checkpoint as it was published"
        )

    @pytest.mark.parametrize("name", ["model-00001-of-00001.safetensors", "wan.safetensors"])
    def test_a_whole_file_by_any_name(self, original: Tensors, tmp_path: Path, name: str) -> None:
        save_file(original, tmp_path / name)
        assert find_files(tmp_path) == (tmp_path / name,)

    def test_an_index_by_another_name(self, original: Tensors, tmp_path: Path) -> None:
        names, halves = sorted(original), ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        for half, file in enumerate(halves):
            save_file({name: original[name] for name in names[half::2]}, tmp_path / file)
        table = {name: halves[place % 2] for place, name in enumerate(names)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
        assert {file.name for file in find_files(tmp_path)} == {*halves}

    @pytest.mark.parametrize("layout", ["original", "diffusers"])
    def test_one_released_size_for_another(self, original: Tensors, tmp_path: Path, layout: str) -> None:
        """Where every shape differs, a list would hide what it is."""
        file = tmp_path / "model.safetensors"
        wide = {name: torch.zeros(1536) for name in original if name.endswith(".norm_q.weight")}
        spelled = original | wide | {"patch_embedding.bias": torch.zeros(1536)}
        save_file(to_diffusers(spelled) if layout == "diffusers" else spelled, file)
        with pytest.raises(WeightsError) as caught:
            read_checkpoint(tmp_path, SIZES["wan-14b"])
        assert str(caught.value) == (
            f"{file} looks like wan-1.3b (30 layers, 1536 wide), not wan-14b (40 layers, 5120 wide); give --model wan-1.3b"
        )
        save_file(original, file)
        with pytest.raises(WeightsError, match=r"like a transformer of 2 layers, 48 wide, not wan-14b .*; give a checkpoint"):
            read_checkpoint(tmp_path, SIZES["wan-14b"])

    def test_pickles_with_code_are_not_run(self, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        for number, file in enumerate((tmp_path / "a" / "zip.pt", tmp_path / "b" / "plain.pt", tmp_path / "c" / "bare.pt")):
            file.parent.mkdir()
            if number < 2:
                torch.save({"generator": Trap(ran)}, file, _use_new_zipfile_serialization=number == 0)
            else:
                file.write_bytes(pickle.dumps({"generator": Trap(ran)}, protocol=2))
            with pytest.raises(WeightsError, match="would have to run code to be read"):
                read_checkpoint(file.parent, WAN)
        assert not ran.exists()
        assert pickle.loads(pickle.dumps(Trap(ran))) is None and ran.exists()  # the trap works


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class TestEightBits:
    """Checkpoints whose matrices are FP8 with scales beside them."""

    @pytest.mark.parametrize("spelled", ["scale_weight", "weight_scale"])
    @pytest.mark.parametrize("per_row", [False, True])
    def test_they_are_what_they_stand_for(self, original: Tensors, tmp_path: Path, spelled: str, per_row: bool) -> None:
        given, expected = {"scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)}, dict(original)
        for name, tensor in original.items():
            home = f"model.diffusion_model.{name}"
            given[home] = tensor
            if tensor.dim() == 2:
                largest = tensor.abs().amax(1, keepdim=True) if per_row else tensor.abs().max()
                scale = largest / torch.finfo(torch.float8_e4m3fn).max
                given[home] = (tensor / scale).to(torch.float8_e4m3fn)
                given[home.removesuffix("weight") + spelled] = scale
                given[home.removesuffix("weight") + "scale_input"] = torch.ones(1)
                expected[name] = given[home].float() * scale
        save_file(given, tmp_path / "wan_fp8_scaled.safetensors")
        state = read_checkpoint(tmp_path, WAN).dit.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
        worst = max((state[name] - tensor).abs().max() / tensor.abs().max() for name, tensor in original.items())
        assert worst < 2**-4  # half a unit of three bits of mantissa: without the scales it would be far off


@pytest.mark.parametrize("around", ["model", "state_dict", "ema", "state_dict.net"])
def test_a_model_among_other_things(original: Tensors, tmp_path: Path, around: str) -> None:
    optimizer = {"state": {0: {"step": torch.ones(()), "exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 1e-4}]}
    outer, _, inner = around.partition(".")
    model = {inner: original} if inner else original
    torch.save({outer: model, "optimizer": optimizer, "step": 1000}, tmp_path / "model.pt")
    found = read_checkpoint(tmp_path, WAN)
    assert all(torch.equal(found.dit.state_dict()[name], tensor) for name, tensor in original.items())
    assert found.part == around


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_is_read_in_its_own_dtype_and_stays_where_it_is(original: Tensors, tmp_path: Path, suffix: str) -> None:
    half = {name: tensor.bfloat16() for name, tensor in original.items()}
    file = tmp_path / f"half.{suffix}"
    if suffix == "pt":
        torch.save({"generator": half}, file)
    else:
        save_file(half, file)
    opened = open_checkpoint(file, WAN)
    state = opened.read().state_dict()
    assert opened.copied_bytes == 0
    assert all(state[name].dtype == torch.bfloat16 and torch.equal(state[name], tensor) for name, tensor in half.items())
    maps = Path("/proc/self/maps")
    if maps.exists():
        spans = [line.split()[0].split("-") for line in maps.read_text().splitlines() if line.endswith(file.name)]
        held = [(int(first, 16), int(last, 16)) for first, last in spans]
        assert held and all(any(first <= t.data_ptr() < last for first, last in held) for t in state.values())
