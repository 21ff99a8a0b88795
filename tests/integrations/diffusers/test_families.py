"""Every family: all tiles selected is dense, fewer are what a mask of pairs gives, restore leaves everything as it was."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.processors import SparseProcessor
from tiny_pipelines import CASES, NUM_TOKENS, gates, hunyuan, ltx2, masked_attention, wan

ALL_TILES = 1e-12
"""A sparsity that skips no tile, and still goes through tiles."""


@pytest.mark.parametrize("name", CASES)
def test_all_tiles_selected_is_dense(name: str) -> None:
    case = CASES[name]()
    dense = case.run()
    for sparsity, tile in ((ALL_TILES, (4, 4, 4)), (ALL_TILES, "auto"), (0.0, "auto")):
        with sparsify(case.model, sparsity=sparsity, tile=tile) as handle:
            assert (case.run() - dense).abs().max() <= 1e-5
            rows = handle.report().layers
            assert len(rows) == case.layers and all(row.share == 1 for row in rows)
    assert torch.equal(case.run(), dense)


def in_video(name: str, queries: int, keys: int) -> bool:
    """Whether a call of so many queries and keys is one of a layer that becomes sparse."""
    whole = range(NUM_TOKENS, NUM_TOKENS + 20) if name.startswith("hunyuan") else (NUM_TOKENS,)
    return queries in whole and keys in whole


@pytest.mark.parametrize("name", CASES)
def test_sparse_is_attention_with_a_mask_of_pairs(name: str) -> None:
    case, tile, sparsity = CASES[name](), (3, 2, 4), 0.7
    dense = case.run()
    with masked_attention(tile, sparsity, partial(in_video, name)):
        wanted = case.run()
    with sparsify(case.model, sparsity=sparsity, tile=tile) as handle:
        found = case.run()
        assert {row.selected for row in handle.report().layers} == {4}, "of 12 tiles 0.3 * 12 = 3.6"
    assert (found - wanted).abs().max() <= 1e-5
    assert (found - dense).abs().max() > 1e-3, "the mask matters"


@pytest.mark.parametrize(("given", "frames"), [(2, (0, 1)), ((0, -1), (0, 4)), ((3, 1, -4), (1, 3))])
@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan", "hunyuan one length", "cosmos"])
def test_queries_of_dense_frames_see_every_token(name: str, given: Any, frames: tuple[int, ...]) -> None:
    case, tile, sparsity = CASES[name](), (3, 2, 4), 0.7
    with sparsify(case.model, sparsity=sparsity, tile=tile):
        without = case.run()
    with masked_attention(tile, sparsity, partial(in_video, name), frames):
        wanted = case.run()
    with sparsify(case.model, sparsity=sparsity, tile=tile, dense_frames=given) as handle:
        found = case.run()
        assert "queries of frames " in str(handle.report())
    assert (found - wanted).abs().max() <= 1e-5
    assert (found - without).abs().max() > 1e-3, "the frames matter"


@pytest.mark.parametrize("pool_skipped", [False, True])
@pytest.mark.parametrize("name", ["wan", "hunyuan", "cosmos"])
def test_a_video_of_dense_frames_is_dense(name: str, pool_skipped: bool) -> None:
    case = CASES[name]()
    dense = case.run()
    with sparsify(case.model, sparsity=0.7, dense_frames=5, pool_skipped=pool_skipped):
        assert (case.run() - dense).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["wan", "hunyuan", "cosmos from video"])
def test_gradients_of_dense_frames_are_those_of_a_mask_of_pairs(name: str) -> None:
    case, tile, sparsity = CASES[name](), (3, 2, 4), 0.7
    model = case.model.double().requires_grad_(True)
    arguments = {
        key: each.double() if torch.is_tensor(each) and each.is_floating_point() else each for key, each in case.arguments.items()
    }

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        model(**arguments, return_dict=False)[0].square().mean().backward()
        return {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}

    with masked_attention(tile, sparsity, partial(in_video, name), (0, 4)):
        wanted = gradients()
    with sparsify(model, sparsity=sparsity, tile=tile, dense_frames=(0, -1)):
        found = gradients()
    with sparsify(model, sparsity=sparsity, tile=tile):
        without = gradients()
    largest = max(each.norm() for each in wanted.values())
    assert found.keys() == wanted.keys()
    assert max((found[key] - each).norm() for key, each in wanted.items()) <= 1e-8 * largest, "an lse is float32"
    assert max((without[key] - each).norm() for key, each in wanted.items()) > 1e-4 * largest, "the frames matter"


def test_dense_frames_that_are_not_there_are_said() -> None:
    case = wan()
    for wrong, named in ((6, "5"), ((0, 5), "5"), ((-6,), "-6"), (99, "5, 6, 7 and 91 more")):
        with (
            sparsify(case.model, sparsity=0.5, dense_frames=wrong),
            pytest.raises(ConfigError, match=rf"dense_frames: got {named}, and the video has 5 frames of tokens, 0 to 4"),
        ):
            case.run()
    for kind in (-1, "first", True, (0.5,)):
        with pytest.raises(ConfigError, match=r"dense_frames: got .*, expected a number of them.*, or backward from -1"):
            sparsify(case.model, sparsity=0.5, dense_frames=kind)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gates: dense_frames has no place for those of"):
        sparsify(case.model, sparsity=0.5, dense_frames=1, gates=gates())


def processors_of(model: Any) -> dict[str, Any]:
    """Processors by module; Cosmos has no `attn_processors`."""
    return {name: each.processor for name, each in model.named_modules() if hasattr(each, "processor")}


def hooks_of(model: Any) -> dict[str, int]:
    """How many hooks of each kind a model has."""
    return {key: len(value) for key, value in vars(model).items() if "_hooks" in key and isinstance(value, dict)}


@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan 1.5", "cosmos"])
def test_restore_leaves_the_model_as_it_was(name: str) -> None:
    case = CASES[name]()
    model, before = case.model, case.run()
    processors, state = processors_of(model), {key: value.clone() for key, value in model.state_dict().items()}
    hooks = hooks_of(model)
    handle = sparsify(model, sparsity=0.5)
    case.run()
    ours = [name for name, each in processors_of(model).items() if isinstance(each, SparseProcessor)]
    assert len(ours) == case.layers
    handle.restore()
    handle.restore()
    assert processors_of(model) == processors
    assert hooks_of(model) == hooks
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(case.run(), before)


@pytest.mark.parametrize("perturbed", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_perturbation_means_what_it_means_in_diffusers(perturbed: tuple[float, float]) -> None:
    case = ltx2(gated_attn=True, perturbed_attn=True)
    changes: dict[str, Any] = {"spatio_temporal_guidance_blocks": [1], "perturbation_mask": torch.tensor(perturbed)}
    dense = case.run(**changes)
    assert (dense - case.run()).abs().max() > 1e-4 or perturbed == (1.0, 1.0)
    with sparsify(case.model, sparsity=ALL_TILES):
        assert (case.run(**changes) - dense).abs().max() <= 1e-5


def test_audio_and_cross_attention_stay_dense() -> None:
    case = ltx2(gated_attn=True)
    stock = dict(case.model.attn_processors)
    with sparsify(case.model, sparsity=0.5):
        changed = {name for name, each in case.model.attn_processors.items() if each is not stock[name]}
    assert changed == {f"transformer_blocks.{number}.attn1.processor" for number in range(2)}


def test_padding_of_the_text_is_left_out() -> None:
    case = hunyuan(5, 2)
    other = torch.where(case.arguments["encoder_attention_mask"].bool()[:, :, None], case.arguments["encoder_hidden_states"], 9.0)
    with sparsify(case.model, sparsity=0.5):
        assert (case.run(encoder_hidden_states=other) - case.run()).abs().max() <= 1e-6


def test_a_mask_that_is_written_to_is_counted_again() -> None:
    case = hunyuan(5, 5)
    with sparsify(case.model, sparsity=ALL_TILES):
        case.run()
        case.arguments["encoder_attention_mask"][:, 3:] = 0
        found = case.run()
    assert (found - case.run()).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["wan", "ltx-2", "hunyuan", "hunyuan 1.5", "cosmos"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]()
    case.model.to(dtype)
    changes = {key: each.to(dtype) for key, each in case.arguments.items() if torch.is_tensor(each) and each.is_floating_point()}
    changes |= {key: case.arguments[key] for key in ("timestep", "sigma") if name == "ltx-2"}
    dense = case.run(**changes).float()
    with sparsify(case.model, sparsity=ALL_TILES):
        found = case.run(**changes)
    assert found.dtype == dtype
    assert (found.float() - dense).norm() / dense.norm() < (0.03 if dtype == torch.bfloat16 else 0.004)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # what autocast makes of RMSNorm
@pytest.mark.parametrize("name", ["wan", "ltx-2.3", "hunyuan", "hunyuan 1.5", "cosmos"])
def test_autocast(name: str) -> None:
    """It leaves some norms in float32, so that queries and values come in two dtypes."""
    case = CASES[name]()
    with torch.autocast("cpu", torch.bfloat16):
        dense = case.run().float()
        with sparsify(case.model, sparsity=ALL_TILES):
            assert (case.run().float() - dense).norm() / dense.norm() < 0.01


def test_fused_projections() -> None:
    case = wan()
    dense = case.run()
    case.model.fuse_qkv_projections()
    with sparsify(case.model, sparsity=ALL_TILES):
        assert (case.run() - dense).abs().max() <= 1e-5
