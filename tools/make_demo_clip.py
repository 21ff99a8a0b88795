"""Writes `tests/data/demo_clip.mkv`: the clip of `strobe demo`, at about 51 dB of the frames made.

Run it after a change that is meant to change the clip.
"""

from pathlib import Path

import av
import torch

from strobe.cli.compare import ClipFlags
from strobe.engine.load import load
from strobe.engine.session import Session

PATH = Path(__file__).parents[1] / "tests" / "data" / "demo_clip.mkv"


def demo_frames() -> torch.Tensor:
    """Frames of the demo's clip on the CPU, uint8 [F, Y, X, 3]."""
    flags, model = ClipFlags(), load()
    script = flags.script(model.defaults)
    with Session(flags.prompt, model=model, seed=flags.seed, device="cpu") as session:
        return torch.cat([block.frames for block in session.stream(script.num_blocks, switches=script.switches)])


def main() -> None:
    with av.open(str(PATH), "w") as container:
        stream = container.add_stream("libx264rgb", rate=16, options={"qp": "12", "preset": "veryslow"})
        stream.width, stream.height, stream.pix_fmt = 128, 128, "rgb24"
        for frame in demo_frames().numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())


if __name__ == "__main__":
    main()
