"""Make the video attention of HunyuanVideo 1.5 sparse, as diffusers has it: `python examples/diffusers_hunyuan.py --full`.

The weights are random, so nothing is said of quality. `--full` takes the model's full size; without it the model is tiny. Dense
is measured twice: diffusers' own attention builds a mask of all pairs of tokens, ours (`--sparsity 0`) leaves the padding of the
text out instead. With real weights give the pipeline: `sparsify(HunyuanVideo15Pipeline.from_pretrained(...))`.
"""

from __future__ import annotations

import argparse
import sys

import torch
from diffusers import HunyuanVideo15Transformer3DModel

import strobe
from strobe.integrations.diffusers import sparsify

TINY = {
    "num_attention_heads": 2, "attention_head_dim": 32, "num_layers": 2, "num_refiner_layers": 1, "text_embed_dim": 16,
    "text_embed_2_dim": 8, "image_embed_dim": 8, "rope_axes_dim": (8, 12, 12),
}  # fmt: skip


def main() -> None:
    """Run one forward dense and sparse, and print where the time went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the model's full size, in bfloat16")
    parser.add_argument("--size", default="128x128", help="pixels in height and width; 16 of them are a token")
    parser.add_argument("--frames", type=int, default=17, help="4 n + 1 pixel frames")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--compile", action="store_true", help="compile every layer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    height, width = (int(side) // 16 for side in options.size.split("x"))
    times = (options.frames - 1) // 4 + 1
    words, glyphs, patches = (1000, 256, 729) if options.full else (8, 5, 3)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if options.full else torch.float32)
    with torch.device(options.device), torch.no_grad():
        model = HunyuanVideo15Transformer3DModel(**({} if options.full else TINY)).eval()
        config = model.config
        arguments = {
            "hidden_states": torch.randn(1, config.in_channels, times, height, width),
            "timestep": torch.full((1,), 500.0),
            "encoder_hidden_states": torch.randn(1, words, config.text_embed_dim),
            "encoder_attention_mask": (torch.arange(words) < words // 4)[None].long(),
            "encoder_hidden_states_2": torch.randn(1, glyphs, config.text_embed_2_dim),
            "encoder_attention_mask_2": torch.zeros(1, glyphs, dtype=torch.long),
            "image_embeds": torch.zeros(1, patches, config.image_embed_dim),
        }

        def forward() -> torch.Tensor:
            return model(**arguments, return_dict=False)[0]

        if options.compile:
            model.compile_repeated_blocks(fullgraph=True)
        for sparsity in options.sparsity:
            with sparsify(model, sparsity=sparsity) as handle:
                forward()
                sys.stdout.write(
                    f"{handle.report()}\n\n{strobe.probe(handle, forward, rounds=options.rounds, device=options.device)}\n\n"
                )


if __name__ == "__main__":
    main()
