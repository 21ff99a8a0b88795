"""Make the video attention of LTX-2 sparse, in its transformer as diffusers has it: `python examples/diffusers_ltx2.py --full`.

The weights are random, so nothing is said of quality. `--full` takes the model's full size, 19 billion parameters; without it the
model is tiny. Attention of the audio, between audio and video, and to the text stays dense. With real weights give the pipeline:
`sparsify(LTX2Pipeline.from_pretrained(...))`.
"""

from __future__ import annotations

import argparse
import sys

import torch
from diffusers import LTX2VideoTransformer3DModel

import strobe
from strobe.integrations.diffusers import sparsify

TINY = {
    "num_attention_heads": 2, "attention_head_dim": 32, "cross_attention_dim": 64, "audio_num_attention_heads": 2,
    "audio_attention_head_dim": 16, "audio_cross_attention_dim": 32, "num_layers": 2, "caption_channels": 16,
}  # fmt: skip


def main() -> None:
    """Run one forward dense and sparse, and print where the time went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the model's full size, in bfloat16")
    parser.add_argument("--size", default="256x256", help="pixels in height and width; 32 of them are a token")
    parser.add_argument("--frames", type=int, default=33, help="8 n + 1 pixel frames")
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument("--compile", action="store_true", help="compile every layer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    height, width = (int(side) // 32 for side in options.size.split("x"))
    times, audio, words = (options.frames - 1) // 8 + 1, options.frames, 1024 if options.full else 8
    dtype = torch.bfloat16 if options.full else torch.float32
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(options.device), torch.no_grad():
        model = LTX2VideoTransformer3DModel(**({} if options.full else TINY), rope_type="split").eval()
        channels, text = model.config.in_channels, model.config.caption_channels
        arguments = {
            "hidden_states": torch.randn(1, times * height * width, channels),
            "audio_hidden_states": torch.randn(1, audio, channels),
            "encoder_hidden_states": torch.randn(1, words, text),
            "audio_encoder_hidden_states": torch.randn(1, words, text),
            "timestep": torch.full((1,), 500.0),
            "num_frames": times,
            "height": height,
            "width": width,
            "audio_num_frames": audio,
        }

        def forward() -> torch.Tensor:
            return model(**arguments, return_dict=False)[0]

        if options.compile:
            model.compile_repeated_blocks(fullgraph=True)
        with sparsify(model, sparsity=options.sparsity) as handle:
            forward()
            sys.stdout.write(
                f"{handle.report()}\n\n{strobe.probe(handle, forward, rounds=options.rounds, device=options.device)}\n"
            )


if __name__ == "__main__":
    main()
