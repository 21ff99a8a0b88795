"""Trained gates: found where the model was loaded from, checked, used as a hand calculation says, never dropped in silence."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import strobe
from strobe.core.errors import ConfigError, WeightsError
from strobe.integrations.diffusers import sparsify
from tiny_pipelines import GRID, WIDTH, gates, hunyuan, ltx2, wan


@pytest.mark.parametrize("tile", [None, (4, 4, 4)])
def test_the_coarse_output_is_weighed_and_added(tile: tuple[int, int, int] | None) -> None:
    """Of the first layer alone, by hand: out = dense + (W x + b) * softmax(mean q . mean k) mean v, tile over tile."""
    case, given = wan(1), gates()
    block, caught = case.model.blocks[0], []
    hook = block.attn1.register_forward_hook(lambda _, args, out: caught.append((args[0], args[3], out)))
    with sparsify(case.model, sparsity=0.0, gates=given, tile=tile) as handle:
        case.run()
        assert {row.tile for row in handle.report().layers} == {(4, 4, 4)} and all(row.gated for row in handle.report().layers)
    hook.remove()
    hidden, (cos, sin), found = caught[0]

    attn, layout = block.attn1, strobe.tile_layout(GRID, (4, 4, 4))
    q, k, v = (layer(hidden) for layer in (attn.to_q, attn.to_k, attn.to_v))
    q, k = attn.norm_q(q), attn.norm_k(k)
    q, k, v = (each.unflatten(2, (2, 12)) for each in (q, k, v))

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.complex(cos[..., 0::2], sin[..., 1::2])).flatten(-2)

    q, k = turned(q), turned(k)
    dense = torch.nn.functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)
    tile_of = layout.rows() // layout.block
    means = [torch.stack([each[:, tile_of == n].mean(1) for n in range(layout.num_tiles)], dim=2) for each in (q, k, v)]
    coarse = torch.softmax(means[0] @ means[1].transpose(-1, -2) * 12**-0.5, dim=-1) @ means[2]  # [B, H, N, D]
    weight, bias = given["blocks.0.to_gate_compress.weight"], given["blocks.0.to_gate_compress.bias"]
    gate = (hidden @ weight.T + bias).unflatten(2, (2, 12))
    wanted = attn.to_out[0]((dense + gate * coarse.transpose(1, 2)[:, tile_of]).flatten(2))
    assert (found - wanted).abs().max() <= 1e-5
    assert (found - attn.to_out[0](dense.flatten(2))).abs().max() > 1e-2, "the gate matters"


@pytest.mark.parametrize("place", ["tensors", "file", "folder", "pipeline folder", "auto"])
def test_gates_are_found(place: str, tmp_path: Path) -> None:
    case, given = wan(1), gates()
    with sparsify(case.model, sparsity=0.5, gates=given):
        wanted = case.run()
    folder = tmp_path / "transformer"
    case.model.save_pretrained(folder)
    file = folder / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | given, file)
    source = {"tensors": given, "file": file, "folder": str(folder), "pipeline folder": tmp_path, "auto": "auto"}[place]
    model = type(case.model).from_pretrained(folder) if place == "auto" else case.model
    dense = model(**case.arguments).sample
    with sparsify(model, sparsity=0.5, gates=source) as handle:
        assert torch.equal(model(**case.arguments).sample, wanted)
        assert "trained gate" in str(handle.report())
        assert {name for name in model.state_dict() if "gate" in name} == set(given), "saved, it is a checkpoint of FastWan again"
    assert torch.equal(model(**case.arguments).sample, dense)
    assert not [name for name in model.state_dict() if "gate" in name]


def test_the_sparsity_is_the_one_they_were_trained_with() -> None:
    with torch.device("meta"):
        case = wan(1, heads=12, head_dim=128)
    given = {f"blocks.{number}.to_gate_compress.weight": torch.zeros(()).expand(1536, 1536) for number in range(3)}
    with sparsify(case.model, gates=given) as handle:
        row = handle.report(grid=(20, 48, 80)).layers[0]
    assert (row.selected, row.tiles) == (240, 1200), "1 - 0.8"


def test_a_dense_layer_keeps_its_gate() -> None:
    case, given = wan(1), gates()
    with sparsify(case.model, sparsity=0.0, gates=given):
        wanted = case.run()
    with sparsify(case.model, sparsity=0.5, gates=given, dense_layers=3) as handle:
        assert torch.equal(case.run(), wanted)
        assert {(row.runs, row.gated) for row in handle.report().layers} == {("dense", True)}


def test_gates_per_head_are_another_thing(tmp_path: Path) -> None:
    """LTX-2.3 has weights of the same name, a row per head, which diffusers loads as to_gate_logits."""
    per_head = {
        f"transformer_blocks.{number}.attn1.to_gate_compress.{kind}": torch.zeros(shape)
        for number in range(2)
        for kind, shape in (("weight", (2, WIDTH)), ("bias", (2,)))
    }
    with pytest.raises(WeightsError, match="a gate on the result of attention"):
        sparsify(ltx2().model, sparsity=0.5, gates=per_head)
    case = ltx2(gated_attn=True)
    with pytest.raises(WeightsError, match="holds no to_gate_compress"):
        sparsify(case.model, sparsity=0.5, gates=per_head)
    case.model.save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | per_head, file)
    model = type(case.model).from_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="quality not measured"), sparsify(model, sparsity=0.5) as handle:
        assert not any(row.gated for row in handle.report().layers), "no gate of the coarse attention is there"


def test_gates_of_ltx2_are_used() -> None:
    case = ltx2()
    dense = case.run()
    with sparsify(case.model, sparsity=0.5, gates=gates(2, blocks="transformer_blocks")):
        assert (case.run() - dense).abs().max() > 1e-3


def test_gates_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    model, given = wan(1).model, gates()
    lacking = {name: tensor for name, tensor in given.items() if not name.startswith("blocks.2")}
    stray = given | {"head.to_gate_compress.weight": torch.zeros(1)}
    (tmp_path / "empty").mkdir()
    for wrong, words in (
        (gates(width=36), r"the weight of layer 0 .* has shape \(36, 36\), this model takes \(24, 24\)"),
        (gates(layers=4), "have one for layer 3; the model has 3 layers"),
        (lacking, r"lack one for 1 layers \(first 2\)"),
        (stray, "'head.to_gate_compress.weight' in the tensors given belongs to no layer"),
        (tmp_path / "empty", "holds no to_gate_compress"),
        (tmp_path / "nowhere", "does not exist"),
    ):
        with pytest.raises(WeightsError, match=words) as error:
            sparsify(model, sparsity=0.5, gates=wrong)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="HunyuanVideoTransformer3DModel has no place for those of the tensors given"):
        sparsify(hunyuan().model, sparsity=0.5, gates=gates(4, blocks="transformer_blocks"))
    with pytest.raises(ConfigError, match="not known for a model of width 24; give sparsity="):
        sparsify(model, gates=given)
    with pytest.raises(ConfigError, match="gates: got a int, expected 'auto'"):
        sparsify(model, sparsity=0.5, gates=3)  # type: ignore[arg-type]
    assert not [name for name in model.state_dict() if "gate" in name], "nothing was left behind"
    model.blocks[1].to_gate_compress = torch.nn.Linear(WIDTH, WIDTH)
    with pytest.raises(ConfigError, match="the transformer holds a to_gate_compress that would not be used"):
        sparsify(model, sparsity=0.5)
    with pytest.raises(ConfigError, match="the block of blocks.1.attn1.processor has a to_gate_compress already"):
        sparsify(model, sparsity=0.5, gates=given)
    assert not hasattr(model.blocks[0], "to_gate_compress"), "nothing was left behind"


def test_a_repository_is_looked_up_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    """A transformer that was loaded by name says its name; what was fetched of it lies in the cache, and nothing is fetched."""
    case, folder = wan(1), tmp_path / "transformer"
    case.model.save_pretrained(folder)
    file = folder / "diffusion_pytorch_model.safetensors"
    save_file(load_file(file) | gates(), file)
    case.model.register_to_config(_name_or_path="somebody/something")
    cache = mock.patch("strobe.integrations.diffusers.gates.snapshot_download", return_value=str(tmp_path))
    with cache as looked_up, sparsify(case.model, sparsity=0.5) as handle:
        assert all(row.gated for row in handle.report().layers)
    looked_up.assert_called_once_with("somebody/something", local_files_only=True)
    with pytest.warns(UserWarning, match="quality not measured"), sparsify(case.model, sparsity=0.5) as handle:
        assert not any(row.gated for row in handle.report().layers), "it is not in the cache"


def test_a_gate_on_another_device_is_an_error() -> None:
    case = wan(1)
    with sparsify(case.model, sparsity=0.5, gates=gates()):
        case.model.blocks[1].to_gate_compress.to("meta")
        with pytest.raises(strobe.ShapeError, match=r"blocks.1.attn1.processor: the gate is on meta, the tokens are on"):
            case.run()


def test_the_gates_keep_the_dtype_of_the_model() -> None:
    case = wan(1)
    case.model.to(torch.bfloat16)
    arguments = {name: each.to(torch.bfloat16) if each.is_floating_point() else each for name, each in case.arguments.items()}
    with sparsify(case.model, sparsity=0.5, gates=gates()):
        assert case.run(**arguments).dtype == torch.bfloat16
        assert case.model.blocks[0].to_gate_compress.weight.dtype == torch.bfloat16
