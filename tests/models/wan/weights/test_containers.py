"""Checkpoints that are stored in another way than as their tensors: in eight bits with scales, or inside a training state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spellings import WAN, Tensors, read_checkpoint
from strobe.core.errors import WeightsError
from strobe.models.wan.weights import open_checkpoint


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

    def test_what_is_refused(self, original: Tensors, tmp_path: Path) -> None:
        name, file = "blocks.0.ffn.0.weight", tmp_path / "a.safetensors"
        for given, words in (
            ({name: original[name].to(torch.int8)}, "holds whole numbers without a scale .blocks.0.ffn.0.weight"),
            ({"blocks.0.ffn.0.scale_weight": torch.ones(1)}, "fits no eight-bit blocks.0.ffn.0.weight; scales of one number"),
            (
                {name: original[name].to(torch.float8_e5m2), "blocks.0.ffn.0.scale_weight": torch.ones(3)},
                "has a scale .* .3. that fits",
            ),
        ):
            save_file(original | given, file)
            with pytest.raises(WeightsError, match=words):
                read_checkpoint(file, WAN)


class TestNested:
    @pytest.mark.parametrize("around", ["model", "state_dict", "ema"])
    def test_a_model_among_other_things(self, original: Tensors, tmp_path: Path, around: str) -> None:
        optimizer = {"state": {0: {"step": torch.ones(()), "exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 1e-4}]}
        torch.save({around: original, "optimizer": optimizer, "step": 1000}, tmp_path / "model.pt")
        found = read_checkpoint(tmp_path, WAN)
        assert (
            all(torch.equal(found.dit.state_dict()[name], tensor) for name, tensor in original.items()) and found.part == around
        )

    def test_deeper(self, original: Tensors, tmp_path: Path) -> None:
        torch.save({"state_dict": {"net": original}}, tmp_path / "model.pt")
        assert read_checkpoint(tmp_path, WAN).part == "state_dict.net"

    def test_several_are_not_guessed(self, original: Tensors, tmp_path: Path) -> None:
        torch.save({"model": original, "model_ema": original}, tmp_path / "model.pt")
        with pytest.raises(WeightsError, match="holds several models: model, model_ema; keep the one that should run"):
            read_checkpoint(tmp_path, WAN)


class TestMapped:
    @pytest.mark.parametrize("suffix", ["safetensors", "pt"])
    def test_a_file_is_read_in_its_own_dtype_and_stays_where_it_is(self, original: Tensors, tmp_path: Path, suffix: str) -> None:
        half = {name: tensor.bfloat16() for name, tensor in original.items()}
        file = tmp_path / f"half.{suffix}"
        if suffix == "pt":
            torch.save({"generator": half}, file)
        else:
            save_file(half, file)
        opened = open_checkpoint(file, WAN)
        state = opened.read().dit.state_dict()
        assert opened.copied_bytes == 0
        assert all(state[name].dtype == torch.bfloat16 and torch.equal(state[name], tensor) for name, tensor in half.items())
        maps = Path("/proc/self/maps")
        if maps.exists():
            spans = [line.split()[0].split("-") for line in maps.read_text().splitlines() if line.endswith(file.name)]
            held = [(int(first, 16), int(last, 16)) for first, last in spans]
            assert held and all(any(first <= t.data_ptr() < last for first, last in held) for t in state.values())
