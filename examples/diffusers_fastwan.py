"""Run FastWan's three steps in diffusers with its trained gates: `python examples/diffusers_fastwan.py --weights FOLDER`.

The folder is one of FastVideo's FastWan2.1 checkpoints. diffusers alone drops its gates and has no sampler for it. Without
`--weights` a tiny checkpoint in the same layout is made first, with random weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from safetensors.torch import load_file, save_file

from strobe.integrations.diffusers import sparsify
from strobe.integrations.diffusers.fastwan import FastWanPipeline


def make_checkpoint(folder: Path) -> None:
    """Save a tiny pipeline, and gates beside the weights of its transformer, as FastWan has them."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "attention_head_dim": 32, "num_layers": 2, "text_dim": 16, "freq_dim": 16, "ffn_dim": 64}
    transformer = WanTransformer3DModel(**sizes)
    vae = AutoencoderKLWan(base_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    scheduler = FlowMatchEulerDiscreteScheduler()
    WanPipeline(tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler, transformer=transformer).save_pretrained(folder)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    gates = {f"blocks.{layer}.to_gate_compress.weight": torch.randn(64, 64) / 64 for layer in range(2)}
    gates |= {f"blocks.{layer}.to_gate_compress.bias": torch.zeros(64) for layer in range(2)}
    save_file(load_file(file) | gates, file)


def main() -> None:
    """Make a clip in three steps and say what ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="folder of a FastWan checkpoint")
    parser.add_argument("--prompt", default="a red circle moving left")
    parser.add_argument("--size", default="96x160", help="pixels in height and width; FastWan2.1 1.3B was trained at 448x832")
    parser.add_argument("--frames", type=int, default=17, help="FastWan2.1 was trained with 61")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    height, width = (int(side) for side in options.size.split("x"))
    sizes = {"height": height, "width": width, "num_frames": options.frames}
    with tempfile.TemporaryDirectory() as made:
        if options.weights is None:
            make_checkpoint(Path(made))
            loaded = WanPipeline.from_pretrained(made, tokenizer=None, text_encoder=None)
            text, sparsity = {"prompt_embeds": torch.randn(1, 7, 16)}, 0.8
        else:
            loaded = WanPipeline.from_pretrained(options.weights, torch_dtype=torch.bfloat16)
            text, sparsity = {"prompt": options.prompt}, "auto"  # what it was trained with
        pipe = FastWanPipeline.of(loaded)
        pipe.to(options.device).set_progress_bar_config(disable=True)
        with sparsify(pipe, sparsity=sparsity) as handle:
            video = pipe(**text, **sizes, generator=torch.Generator().manual_seed(1), output_type="pt").frames
            sys.stdout.write(f"{handle.report()}\n")
        steps = ", ".join(map(str, pipe.scheduler.timesteps.tolist()))
        sys.stdout.write(f"{tuple(video.shape)} frames after the timesteps {steps}\n")


if __name__ == "__main__":
    main()
