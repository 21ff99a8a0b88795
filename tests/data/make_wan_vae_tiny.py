"""Writes `wan_vae_tiny.safetensors`: weights, inputs and outputs of diffusers' `AutoencoderKLWan`, small and random.

Needs `pip install diffusers`. The file holds the weights under the names of diffusers and, in its metadata, the name of each in
the original checkpoint (`Wan2.1_VAE.pth`), checked against diffusers' own converter. Weights and inputs are float16, outputs
float32. Latents are as the encoder gives them, not normalised.
"""

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors.torch import save_file

PATH = Path(__file__).parent / "wan_vae_tiny.safetensors"
SIZES = {"base_dim": 2, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "temperal_downsample": [False, True, True]}
"""The released model, but for its width and channels."""


def random_model() -> AutoencoderKLWan:
    """The model with weights that float16 holds exactly, large enough for the past and the attention to matter."""
    torch.manual_seed(7)
    model = AutoencoderKLWan(**SIZES, latents_mean=[0.0] * 4, latents_std=[1.0] * 4).eval()
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape)
        if name.endswith("gamma"):
            values = 1 + values / 4
        elif name.endswith("weight"):
            values = (0.4 if "decoder.conv_out" in name else 1.2) * values * parameter[0].numel() ** -0.5
        else:
            values = values / 8
        parameter.data.copy_(values.half())
    return model


def original_names(own: dict[str, torch.Tensor]) -> dict[str, str]:
    """Name in diffusers to name in the original checkpoint. Source: the official `wan/modules/vae.py`."""
    block = {"0.gamma": 0, "2.weight": 0, "2.bias": 0, "3.gamma": 0, "6.weight": 0, "6.bias": 0}
    names = [f"{conv}.{end}" for conv in ("conv1", "conv2") for end in ("weight", "bias")]
    for part, stages, count in (("encoder", "downsamples", 11), ("decoder", "upsamples", 15)):
        names += [f"{part}.{place}.{end}" for place in ("conv1", "head.2") for end in ("weight", "bias")]
        names += [f"{part}.head.0.gamma", f"{part}.middle.1.norm.gamma"]
        names += [f"{part}.middle.1.{layer}.{end}" for layer in ("to_qkv", "proj") for end in ("weight", "bias")]
        for place in ("middle.0", "middle.2", *(f"{stages}.{number}" for number in range(count))):
            names += [f"{part}.{place}.residual.{end}" for end in block]
            names += [
                f"{part}.{place}.{kind}.{end}" for kind in ("shortcut", "resample.1", "time_conv") for end in ("weight", "bias")
            ]
    found: dict[str, str] = {}
    for name in names:
        (converted,) = convert_wan_vae_to_diffusers({name: torch.zeros(())})
        if converted in own:
            assert converted not in found, converted
            found[converted] = name
    assert found.keys() == own.keys(), sorted(own.keys() ^ found.keys())
    return found


@torch.no_grad()
def main() -> None:
    """Run encoder and decoder and write all of it."""
    model = random_model()
    weights = model.state_dict()
    inputs = {"frames": (torch.rand(1, 3, 13, 16, 24) * 2 - 1).half(), "latents": torch.randn(1, 4, 4, 2, 3).half()}
    outputs = {
        "encoded": model.encode(inputs["frames"].float()).latent_dist.mode(),
        "decoded": model.decode(inputs["latents"].float()).sample,
    }
    tensors = {f"weights.{name}": tensor.half() for name, tensor in weights.items()} | inputs | outputs
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        PATH,
        {"original": json.dumps(original_names(weights), separators=(",", ":"))},
    )


if __name__ == "__main__":
    main()
