"""LoRA files in the spellings of several projects, and the scale of their updates."""

from __future__ import annotations

import copy
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

from spellings import DIFFUSERS_LAYER, LINEARS, WAN, Tensors, lora_tensors, write_longlive
from strobe.core.errors import ConfigError, WeightsError
from strobe.core.tolerances import tolerance
from strobe.models.lora import Lora, LoraPair, attach, combined, merge
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.weights import read_lora
from strobe.models.wan.weights.checkpoint import diffusers_name, find_lora
from tiny_pipelines import wan

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")


@pytest.fixture
def base(original: Tensors) -> CausalWan:
    dit = CausalWan(WAN).requires_grad_(False).eval()
    dit.load_state_dict(original)
    return dit


def lora_of(original: Tensors, seed: int = 0) -> Lora:
    made = {name: LoraPair(down=down, up=up) for name, (down, up) in lora_tensors(original, seed=seed).items()}
    return Lora(name=f"lora {seed}", weights_hash=str(seed) * 64, pairs=made)


def flow(dit: CausalWan) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x, text = torch.randn(1, 3, 16, 4, 8, generator=generator), torch.randn(1, 12, 24, generator=generator)
    rows = dit.modulation(torch.tensor([[600.0]]))
    out: Tensor = dit(x, rows, dit.text_kv(text), dit.rope((0, 1, 2), dit.grid(x)))
    return out


def spelling(name: str, layout: str) -> str:
    """The name of a linear layer in a layout."""
    number, linear = name.split(".", 2)[1:]
    return f"blocks.{number}.{DIFFUSERS_LAYER[linear]}" if layout == "diffusers" else name


class TestReading:
    def test_longlive_beside_its_base(self, original: Tensors, tmp_path: Path) -> None:
        found = find_lora(write_longlive(tmp_path, original))
        assert found == tmp_path / "lora.pt"
        lora, expected = read_lora(found), lora_tensors(original)
        assert lora.pairs.keys() == expected.keys() and len(lora.pairs) == 2 * len(LINEARS) == 20
        for name, (down, up) in expected.items():
            pair = lora.pairs[name]
            assert torch.equal(pair.down, down) and torch.equal(pair.up, up) and pair.scale == 1.0
        assert lora.name == "lora.pt" and lora.num_params == sum(d.numel() + u.numel() for d, u in expected.values())
        assert find_lora(tmp_path / "longlive_base.pt") is None

    @pytest.mark.parametrize("home", ["diffusion_model.", "lora_unet_"])
    @pytest.mark.parametrize("halves", [("lora_A", "lora_B"), ("lora_down", "lora_up"), ("lora_A.default", "lora_B.default")])
    @pytest.mark.parametrize("layout", ["original", "diffusers"])
    def test_other_spellings(self, original: Tensors, tmp_path: Path, halves: tuple[str, str], layout: str, home: str) -> None:
        """Kohya's names have underscores in place of points."""
        pairs, outside = lora_tensors(original), ("head.head", "time_projection.1", "text_embedding.0")
        spelled = {spelling(name, layout): pair for name, pair in pairs.items()}
        spelled |= {name: (torch.ones(1, 3), torch.ones(2, 1)) for name in outside if home == "lora_unet_"}
        tensors = {}
        for name, (down, up) in spelled.items():
            layer = home + (name.replace(".", "_") if home == "lora_unet_" else name)
            tensors |= {
                f"{layer}.{halves[0]}.weight": down,
                f"{layer}.{halves[1]}.weight": up,
                f"{layer}.alpha": torch.tensor(8.0),
            }
        save_file(tensors, tmp_path / "style.safetensors")
        lora = read_lora(tmp_path / "style.safetensors")
        assert lora.pairs.keys() == pairs.keys() | {*(outside if home == "lora_unet_" else ())}
        assert all(pair.scale == (8.0 if name in outside else 2.0) for name, pair in lora.pairs.items())  # alpha 8 over rank 4


class TestMerging:
    def test_small_updates_of_bfloat16_weights_are_added_in_float32(self) -> None:
        pair = LoraPair(down=torch.full((1, 1), 1.0), up=torch.full((1, 1), 2.0**-9))
        assert pair.merged(torch.ones(1, 1, dtype=torch.bfloat16)).item() == 1 + 2.0**-9

    def test_a_lora_of_another_model(self, original: Tensors, base: CausalWan) -> None:
        lora = lora_of(original)
        wrong = Lora(name="style", weights_hash="", pairs={**lora.pairs, "blocks.7.ffn.0": lora.pairs["blocks.0.ffn.0"]})
        for use in (lambda: attach(base, [wrong], base), lambda: merge(copy.deepcopy(base), [wrong], base)):
            with pytest.raises(WeightsError, match=r"style does not fit this model: 1 of 21 layers differ; blocks.7.ffn.0 is no"):
                use()
        narrow = LoraPair(down=torch.zeros(4, 40), up=torch.zeros(48, 4))
        wrong = Lora(name="style", weights_hash="", pairs={"blocks.0.ffn.2": narrow})
        with pytest.raises(WeightsError, match=r"blocks.0.ffn.2 is \[48, 128\], the LoRA's is \[48, 40\]; give one that"):
            attach(base, [wrong], base)
        wrong = Lora(name="style", weights_hash="", pairs={}, diffs={"blocks.0.norm3.weight": torch.ones(3)})
        with pytest.raises(WeightsError, match=r"1 of 1 layers differ; blocks.0.norm3.weight is \[48\], the LoRA's is \[3\]"):
            merge(base, [wrong], base)
        assert flow(base).isfinite().all()


class TestFullUpdates:
    """Of weights, biases, norms, modulations and convolutions."""

    def test_full_updates(self, original: Tensors, base: CausalWan, tmp_path: Path) -> None:
        spelled = {
            "blocks.0.self_attn.q.diff": "blocks.0.self_attn.q.weight",
            "blocks.0.self_attn.q.diff_b": "blocks.0.self_attn.q.bias",
            "blocks.1.norm3.diff": "blocks.1.norm3.weight",
            "blocks.1.cross_attn.norm_k.diff": "blocks.1.cross_attn.norm_k.weight",
            "blocks.1.diff_m": "blocks.1.modulation",
            "head.diff_m": "head.modulation",
            "patch_embedding.diff_b": "patch_embedding.bias",
        }
        generator = torch.Generator().manual_seed(1)
        given = {theirs: torch.randn(original[own].shape, generator=generator) for theirs, own in spelled.items()}
        rank = {"patch_embedding.lora_down.weight": (2, 16, 1, 2, 2), "patch_embedding.lora_up.weight": (48, 2, 1, 1, 1)}
        given |= {name: torch.randn(shape, generator=generator) for name, shape in rank.items()}
        save_file({f"diffusion_model.{name}": tensor for name, tensor in given.items()}, tmp_path / "full.safetensors")
        lora = read_lora(tmp_path / "full.safetensors")
        assert not lora.pairs and len(lora.diffs) == 8
        expected = {name: tensor.double() for name, tensor in original.items()}
        for theirs, own in spelled.items():
            expected[own] = expected[own] + 0.5 * given[theirs].double()
        up, down = (given[f"patch_embedding.lora_{half}.weight"].double() for half in ("up", "down"))
        expected["patch_embedding.weight"] += 0.5 * torch.einsum("or,rcfyx->ocfyx", up.flatten(1), down)
        merged, beside = copy.deepcopy(base), copy.deepcopy(base)
        merge(merged, [lora.at(0.5)], base)
        for name, tensor in merged.state_dict().items():
            torch.testing.assert_close(tensor, expected[name].float(), rtol=0, atol=ROUNDING)
        attach(beside, [lora.at(0.5), lora_of(original)], base)
        merge(merged, [lora.at(0.5), lora_of(original)], base)
        torch.testing.assert_close(flow(beside), flow(merged), rtol=0, atol=ELEMENT)
        attach(beside, [], base)
        assert torch.equal(flow(beside), flow(base))


def test_loras_of_a_model_stay(original: Tensors) -> None:
    own, style, other = (lora_of(original, seed) for seed in range(3))
    assert combined([own], [style.at(0.5), other]) == (own, style.at(0.5), other)
    assert combined([own, style], [other, own.at(0.2)]) == (own.at(0.2), style, other)
    assert combined([own], []) == (own,) and str(own.at(0.2)) == "lora 0 at 0.2" and str(own) == "lora 0"
    with pytest.raises(ConfigError, match=r"LoRA lora 1 is given twice \(first as lora 1\); give it once"):
        combined([own], [style, style.at(0.5)])
    with pytest.raises(ConfigError, match="LoRA lora 1: nan is no strength"):  # torch takes NaN for 0 in some products
        style.at(math.nan)


EXACT = tolerance("element", "float64")
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
        torch.testing.assert_close(mine[f"{name}.weight"], delta, rtol=0, atol=EXACT)


def pair(layer: str = Q, rank: int = 2) -> dict[str, Tensor]:
    return {f"{layer}.lora_A.weight": torch.ones(rank, 24), f"{layer}.lora_B.weight": torch.ones(24, rank)}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
class TestAgainstPeft:
    def test_in_the_header_as_diffusers_saves_it(self, changes: dict[str, Any], tmp_path: Path) -> None:
        torch.manual_seed(3)
        model: Any = wan(1).model.double()
        model.add_adapter(settings(**changes), adapter_name="default")
        model.double()
        WanPipeline.save_lora_weights(
            tmp_path,
            transformer_lora_layers=get_peft_model_state_dict(model),
            transformer_lora_adapter_metadata=model.peft_config["default"].to_dict(),
        )
        lora = read_lora(tmp_path / "pytorch_lora_weights.safetensors")
        equal(lora, deltas(model))
        assert "from lora_adapter_metadata in its header" in lora.account
        model.save_lora_adapter(tmp_path / "model")  # without a prefix
        equal(read_lora(tmp_path / "model" / "pytorch_lora_weights.safetensors"), deltas(model))

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
    torch.save(pair() | {f"{Q}.alpha": float(alpha)}, tmp_path / "style.pt")  # a number, which a pickle may hold
    assert read_lora(tmp_path / "style.pt").account == lora.account.replace(".safetensors", ".pt")


CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8}
REFUSED: list[tuple[dict[str, Tensor], dict[str, Any] | str | None, str]] = [
    ({"head.head.weight": torch.ones(4)}, None, "is no LoRA: 'head.head.weight' is none of lora_A"),
    ({"blocks.0.ffn.0.lora_C": torch.ones(4)}, None, "'blocks.0.ffn.0.lora_C' is none of lora_A"),
    ({"diff": torch.ones(4)}, None, "'diff' is none"),
    ({"lora_te_text_model.alpha": torch.ones(())}, None, "layer lora_te_text_model has no matching pair"),
    ({f"{Q}.lora_B.weight": torch.ones(24, 2)}, None, r"layer blocks.0.self_attn.q has no matching pair .* only up \[24, 2\]"),
    (pair(), "{", "lora_adapter_metadata in its header is no JSON"),
    (pair(), json.dumps({f"{part}.{key}": value for part in "ab" for key, value in CONFIG.items()}), "of a, b, and .* none"),
    (pair() | {f"{Q}.dora_scale": torch.ones(24, 1)}, None, r"is DoRA \('diffusion_model.*'\), a kind that is not supported"),
    ({f"{Q}.lora_magnitude_vector.style.weight": torch.ones(24)}, None, "is DoRA"),
    ({"lora_unet_blocks_0_self_attn_q.hada_w1_a": torch.ones(2, 2)}, None, "is LoHa"),
    ({"lora_unet_blocks_0_self_attn_q.lora_mid.weight": torch.ones(4, 4)}, None, "is LoCon with a Tucker core"),
    ({f"{Q}.lora_E": torch.ones(2, 1)}, None, "is AdaLoRA"),
    ({f"{Q}.oft_R.weight": torch.ones(2, 2)}, None, "is OFT or BOFT"),
    ({f"{Q}.lora_B.bias": torch.ones(24)}, None, "is a LoRA with biases"),
    (pair(rank=0), None, "layer blocks.0.self_attn.q has rank 0, which updates nothing"),
    (pair() | {f"{Q}.alpha": torch.tensor(float("nan"))}, None, "alpha of diffusion_model.* is nan, no strength"),
    (pair() | {f"{Q}.alpha": torch.ones(2)}, None, r"alpha of layer blocks.0.self_attn.q is \[2\], not one number"),
    (pair() | {f"{Q}.lora_B.weight": torch.full((24, 2), float("nan"))}, None, "lora_B.weight' holds NaN or infinity"),
    ({f"{Q}.diff": torch.ones(24, 24), "blocks.0.attn1.to_q.diff": torch.ones(24, 24)}, None, "two full updates of blocks.0"),
    (pair() | {f"{Q}.lora_A.weight": torch.ones(2, 24, dtype=torch.int8)}, None, "lora_A.weight' is torch.int8, a quantised"),
    (pair() | {f"{Q}.alpha": torch.tensor(2.0)}, CONFIG, "has scale 1 by its tensor alpha and 4 by alpha 8 / rank 2, from"),
    (pair(rank=3), CONFIG, "adapter_config.json beside it says rank 2 for .*, its tensors have rank 3"),
    (pair(), CONFIG | {"lora_alpha": float("nan")}, "adapter_config.json beside it is nan, no strength"),
    (pair(), CONFIG | {"use_dora": True}, "is DoRA, by adapter_config.json beside it, a kind that is not supported"),
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
def test_what_is_refused(tensors: dict[str, Tensor], config: dict[str, Any] | str | None, words: str, tmp_path: Path) -> None:
    """A configuration is beside the file or, as text, in its header."""
    file = tmp_path / "style.safetensors"
    with pytest.raises(WeightsError, match=r"style.safetensors does not exist"):
        read_lora(file)
    save_file(tensors, file, metadata={"lora_adapter_metadata": config} if isinstance(config, str) else None)
    if isinstance(config, dict):
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=words):
        read_lora(file)


def test_each_transformer_has_the_settings_of_its_prefix(tmp_path: Path) -> None:
    """Wan2.2's two experts in one file; the rest of a name decides."""
    alphas = {"transformer": 8, "transformer_2": 2}
    flat = {f"{part}.{key}": value for part, alpha in alphas.items() for key, value in {**CONFIG, "lora_alpha": alpha}.items()}
    tensors = pair("transformer.blocks.0.attn1.to_q") | pair("transformer_2.blocks.0.attn1.to_q")
    save_file(tensors, tmp_path / "both.safetensors", metadata={"lora_adapter_metadata": json.dumps(flat)})
    found = {name: each.scale for name, each in read_lora(tmp_path / "both.safetensors").pairs.items()}
    assert found == {"blocks.0.self_attn.q": 4.0, "transformer_2.blocks.0.attn1.to_q": 1.0}
