"""Make a Wan pipeline of diffusers sparse, see what each layer runs and what that saves: `python examples/diffusers_wan.py`.

Without `--weights` the components are random: nothing is downloaded, and nothing is said of quality. They are tiny, or with
`--full` the transformer has the size of Wan 2.1. With a folder of Wan 2.1 or 2.2 (`WanPipeline.save_pretrained`) the same lines
make that pipeline sparse.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

import strobe
from strobe.integrations.diffusers import sparsify

TINY = {"num_attention_heads": 2, "attention_head_dim": 32, "num_layers": 2, "text_dim": 16, "freq_dim": 16, "ffn_dim": 64}
FULL = {
    "1.3b": {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960},
    "14b": {"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824},
}


def random_pipeline(size: str | None, device: str) -> WanPipeline:
    """A pipeline of Wan's classes with random weights; of full size in bfloat16."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if size is None else torch.bfloat16)
    with torch.device(device):
        transformer = WanTransformer3DModel(**(TINY if size is None else FULL[size])).eval()
        vae = AutoencoderKLWan(base_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    torch.set_default_dtype(torch.float32)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    return WanPipeline(tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler, transformer=transformer)


def pixels(text: str) -> tuple[int, int]:
    """Height and width of `96x160`."""
    sides = [int(side) if side.isdecimal() else 0 for side in text.split("x")]
    if len(sides) != 2 or any(side < 16 or side % 16 for side in sides):
        raise argparse.ArgumentTypeError(f"got {text}, expected height and width in multiples of 16, such as 96x160")
    return sides[0], sides[1]


def device(text: str) -> str:
    """A device that is there."""
    try:
        torch.empty(0, device=text)
    except (AssertionError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {str(error).splitlines()[0]}") from error
    return text


def main() -> None:
    """Make a clip dense and sparse, and print where the time went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="folder of a Wan pipeline")
    parser.add_argument("--full", choices=sorted(FULL), help="random weights of full size")
    parser.add_argument("--prompt", default="a red circle moving left")
    parser.add_argument("--size", type=pixels, default="96x160", help="pixels in height and width")
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument("--compile", action="store_true", help="compile every layer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    if options.weights is not None and not Path(options.weights).is_dir():
        parser.error(f"--weights {options.weights}: no such folder; give one with model_index.json, as save_pretrained writes it")
    if options.weights is None:
        pipe = random_pipeline(options.full, options.device)
        text = {"prompt_embeds": torch.randn(1, 512, pipe.transformer.config.text_dim), "guidance_scale": 1.0}
    else:
        pipe = WanPipeline.from_pretrained(options.weights, torch_dtype=torch.bfloat16).to(options.device)
        text = {"prompt": options.prompt}
    pipe.set_progress_bar_config(disable=True)
    if options.compile:
        pipe.transformer.compile_repeated_blocks(fullgraph=True)
    height, width = options.size
    sizes = {"height": height, "width": width, "num_frames": options.frames, "num_inference_steps": options.steps}

    def clip() -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return pipe(**text, **sizes, generator=generator, output_type="latent").frames

    dense = clip()
    with sparsify(pipe, sparsity=options.sparsity, dense_steps=[0]) as handle:
        sparse = clip()
        sys.stdout.write(f"{handle.report()}\n\n")
        sys.stdout.write(f"{strobe.explain(pipe)}\n\n")
        sys.stdout.write(f"{strobe.probe(handle, clip, rounds=options.rounds, device=options.device)}\n\n")
    again = clip()
    sys.stdout.write(
        f"latents: {(sparse - dense).abs().mean():.1e} apart in the mean; restored: {bool((again == dense).all())}\n"
    )


if __name__ == "__main__":
    main()
