"""Scales of LoRA files, wherever alpha stands: against PEFT's own layers in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanPipeline
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.lora import Lora
from strobe.models.wan.weights import read_lora
from strobe.models.wan.weights.checkpoint import diffusers_name
from tiny_pipelines import wan

ELEMENT = tolerance("element", "float64")
Q = "diffusion_model.blocks.0.self_attn.q"
SETTINGS: dict[str, dict[str, Any]] = {
    "alpha": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"attn1.to_q": 4}, "alpha_pattern": {"attn2.to_k": 3, r"blocks\.1\.attn2\.to_v": 5}},
    "anchored": {"rank_pattern": {"^blocks.0.attn1.to_q": 3}, "alpha_pattern": {"^blocks.1.attn1.to_k": 1}},
    "both": {"use_rslora": True, "rank_pattern": {"to_q": 4}, "alpha_pattern": {"to_v": 6}},
}


def settings(**changes: Any) -> LoraConfig:
    given = {"r": 2, "lora_alpha": 8, "target_modules": ["to_q", "to_k", "to_v"], "init_lora_weights": False}
    return LoraConfig(**(given | changes))


def trained(adapter: str = "default", **changes: Any) -> Any:
    torch.manual_seed(3)
    model = wan(1).model.double()
    model.add_adapter(settings(**changes), adapter_name=adapter)
    return model.double()


def deltas(model: Any, adapter: str = "default") -> dict[str, Tensor]:
    """What PEFT adds to each weight, by diffusers' name."""
    found = ((name, module) for name, module in model.named_modules() if hasattr(module, "get_delta_weight"))
    return {name: module.get_delta_weight(adapter) for name, module in found}


def equal(lora: Lora, expected: dict[str, Tensor]) -> None:
    mine = {
        diffusers_name(f"{name}.weight"): pair.scale * pair.up.double() @ pair.down.double() for name, pair in lora.pairs.items()
    }
    mine |= {diffusers_name(name): diff.double() for name, diff in lora.diffs.items()}
    assert {name.removesuffix(".weight") for name in mine} == expected.keys() and expected
    for name, delta in expected.items():
        torch.testing.assert_close(mine[f"{name}.weight"], delta, rtol=0, atol=ELEMENT)


def pair(layer: str = Q, rank: int = 2) -> dict[str, Tensor]:
    return {f"{layer}.lora_A.weight": torch.ones(rank, 24), f"{layer}.lora_B.weight": torch.ones(24, rank)}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
class TestAgainstPeft:
    def test_in_the_header_as_diffusers_saves_it(self, changes: dict[str, Any], tmp_path: Path) -> None:
        model = trained(**changes)
        WanPipeline.save_lora_weights(
            tmp_path,
            transformer_lora_layers=get_peft_model_state_dict(model),
            transformer_lora_adapter_metadata=model.peft_config["default"].to_dict(),
        )
        lora = read_lora(tmp_path / "pytorch_lora_weights.safetensors")
        equal(lora, deltas(model))
        assert "from lora_adapter_metadata in its header" in lora.account

    def test_in_the_header_without_a_prefix(self, changes: dict[str, Any], tmp_path: Path) -> None:
        """As one model's `save_lora_adapter` writes it."""
        model = trained(**changes)
        model.save_lora_adapter(tmp_path)
        equal(read_lora(tmp_path / "pytorch_lora_weights.safetensors"), deltas(model))

    def test_beside_the_file_as_peft_saves_it(self, changes: dict[str, Any], tmp_path: Path) -> None:
        torch.manual_seed(3)
        model = get_peft_model(wan(1).model.double(), settings(**changes), adapter_name="style").double()
        model.save_pretrained(tmp_path)
        lora = read_lora(tmp_path / "style" / "adapter_model.safetensors")
        equal(lora, deltas(model.base_model.model, "style"))
        assert "from adapter_config.json beside it" in lora.account
        named = {
            name.replace(".lora_A.", ".lora_A.style.").replace(".lora_B.", ".lora_B.style."): tensor
            for name, tensor in load_file(tmp_path / "style" / "adapter_model.safetensors").items()
        }
        save_file(named, tmp_path / "style" / "named.safetensors")
        equal(read_lora(tmp_path / "style" / "named.safetensors"), deltas(model.base_model.model, "style"))


def test_the_scale_is_told_and_belongs_to_the_identity(tmp_path: Path) -> None:
    file = tmp_path / "style.safetensors"
    save_file(pair() | pair("diffusion_model.blocks.0.self_attn.k", 4), file)
    alone = read_lora(file)
    assert alone.account == "style.safetensors: scale 1: no alpha in the file, its header or beside it"
    found = {}
    for alpha in (8, 16):
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": alpha, "rank_pattern": {"k": 4}, "use_rslora": True}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        found[alpha] = read_lora(file)
    assert [each.scale for each in found[8].pairs.values()] == pytest.approx([8 / math.sqrt(4), 8 / math.sqrt(2)])
    assert len({alone.weights_hash, *(each.weights_hash for each in found.values())}) == 3
    assert found[8].at(0.5).account == (
        "style.safetensors at 0.5: scale 4 (1 layers): alpha 8 / sqrt(rank 4), rslora, from adapter_config.json beside it; "
        "scale 5.657 (1 layers): alpha 8 / sqrt(rank 2), rslora, from adapter_config.json beside it"
    )


@pytest.mark.parametrize("alpha", [torch.tensor(3.0), torch.tensor([3.0]), torch.tensor(3.0, dtype=torch.bfloat16)])
def test_tensors_say_it_themselves(alpha: Tensor, tmp_path: Path) -> None:
    save_file(pair() | {f"{Q}.alpha": alpha}, tmp_path / "style.safetensors")
    lora = read_lora(tmp_path / "style.safetensors")
    assert [each.scale for each in lora.pairs.values()] == [1.5]
    assert lora.account == "style.safetensors: scale 1.5: alpha 3 / rank 2, from its tensors alpha"


CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8}
REFUSED: list[tuple[dict[str, Tensor], dict[str, Any] | None, str]] = [
    (pair() | {f"{Q}.dora_scale": torch.ones(24, 1)}, None, r"is DoRA \('diffusion_model.*'\), a kind that is not supported"),
    ({f"{Q}.lora_magnitude_vector": torch.ones(24)}, None, "is DoRA"),
    ({f"{Q}.lora_magnitude_vector.style.weight": torch.ones(24)}, None, "is DoRA"),
    ({"lora_unet_blocks_0_self_attn_q.lokr_w1": torch.ones(2, 2)}, None, "is LoKr"),
    ({"lora_unet_blocks_0_self_attn_q.hada_w1_a": torch.ones(2, 2)}, None, "is LoHa"),
    ({"lora_unet_blocks_0_self_attn_q.lora_mid.weight": torch.ones(4, 4)}, None, "is LoCon with a Tucker core"),
    ({f"{Q}.lora_E": torch.ones(2, 1)}, None, "is AdaLoRA"),
    ({f"{Q}.oft_R.weight": torch.ones(2, 2)}, None, "is OFT or BOFT"),
    ({f"{Q}.ia3_l": torch.ones(24)}, None, "is IA3"),
    ({f"{Q}.lora_B.bias": torch.ones(24)}, None, "is a LoRA with biases"),
    (pair(rank=0), None, "layer blocks.0.self_attn.q has rank 0, which updates nothing"),
    (pair() | {f"{Q}.alpha": torch.tensor(float("nan"))}, None, "alpha of diffusion_model.* is nan, no strength"),
    (pair() | {f"{Q}.alpha": torch.tensor(float("inf"))}, None, "is inf, no strength"),
    (pair() | {f"{Q}.alpha": torch.ones(2)}, None, r"alpha of layer blocks.0.self_attn.q is \[2\], not one number"),
    (pair() | {f"{Q}.lora_B.weight": torch.full((24, 2), float("nan"))}, None, "lora_B.weight' holds NaN or infinity"),
    ({f"{Q}.diff": torch.full((24, 24), float("inf"))}, None, "diff' holds NaN or infinity"),
    (pair() | {f"{Q}.alpha": torch.tensor(2.0)}, CONFIG, "has scale 1 by its tensor alpha and 4 by alpha 8 / rank 2, from"),
    (pair(rank=3), CONFIG, "adapter_config.json beside it says rank 2 for .*, its tensors have rank 3"),
    (pair(), CONFIG | {"lora_alpha": float("nan")}, "adapter_config.json beside it is nan, no strength"),
    (pair(), CONFIG | {"use_dora": True}, "is DoRA, by adapter_config.json beside it, a kind that is not supported"),
    (pair(), CONFIG | {"peft_type": "LOHA"}, "is LOHA, by adapter_config.json"),
    (pair(), CONFIG | {"init_lora_weights": "pissa_niter_4"}, "began as pissa_niter_4, .*changed the base's weights too"),
    (pair(), {"r": 2}, "is no configuration of a LoRA .*lora_alpha"),
    (
        {name.replace("lora_A.", f"lora_A.{adapter}.").replace("lora_B.", f"lora_B.{adapter}."): tensor
         for adapter, layer in (("fox", "q"), ("style", "k")) for name, tensor in pair(f"blocks.0.self_attn.{layer}").items()},
        None,
        "holds the adapters fox, style; keep one",
    ),
    (pair("blocks.0.attn1.to_q") | pair("blocks.0.self_attn.q"), None, "has two tensors (up|down) of layer blocks.0.self_attn.q"),
]  # fmt: skip


@pytest.mark.parametrize(("tensors", "config", "words"), REFUSED)
def test_what_is_refused(tensors: dict[str, Tensor], config: dict[str, Any] | None, words: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "style.safetensors")
    if config is not None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=words):
        read_lora(tmp_path / "style.safetensors")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ("{", "lora_adapter_metadata in its header is no JSON"),
        (
            json.dumps({f"{part}.{key}": value for part in ("a", "b") for key, value in CONFIG.items()}),
            "speaks of a, b, and .* of none",
        ),
    ],
)
def test_headers_that_are_refused(metadata: str, words: str, tmp_path: Path) -> None:
    save_file(pair(), tmp_path / "style.safetensors", metadata={"lora_adapter_metadata": metadata})
    with pytest.raises(WeightsError, match=words):
        read_lora(tmp_path / "style.safetensors")


def test_each_transformer_has_the_settings_of_its_prefix(tmp_path: Path) -> None:
    """Wan2.2's two experts in one file; the rest of a name decides."""
    alphas = {"transformer": 8, "transformer_2": 2}
    flat = {f"{part}.{key}": value for part, alpha in alphas.items() for key, value in {**CONFIG, "lora_alpha": alpha}.items()}
    tensors = pair("transformer.blocks.0.attn1.to_q") | pair("transformer_2.blocks.0.attn1.to_q")
    save_file(tensors, tmp_path / "both.safetensors", metadata={"lora_adapter_metadata": json.dumps(flat)})
    found = {name: each.scale for name, each in read_lora(tmp_path / "both.safetensors").pairs.items()}
    assert found == {"blocks.0.self_attn.q": 4.0, "transformer_2.blocks.0.attn1.to_q": 1.0}
