"""A live stream whose viewer waits for nothing: prompts come from another thread while frames are shown at the model's rate.

    python examples/live_prompts.py
    python examples/live_prompts.py --model wan-1.3b --random-weights --words 100 --blocks 60

A frame is stalled if it comes after its time; what a viewer sees then is the frame before.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time

import strobe
from strobe.engine.family import Weights
from strobe.engine.load import load
from strobe.engine.prompts import PromptAck

SHAPES = ["a red circle moving left", "a blue square moving up", "a green star moving right quickly"]
BUFFER = 1
"""Frame blocks that are made before the first is shown, and that are ahead of the viewer at most."""


def prompts(words: int) -> list[str]:
    """Prompts for the bundled model, or of so many words each."""
    return (
        [" ".join(f"{name}{number}" for number in range(words)) for name in ("fox", "snow", "owl", "river")] if words else SHAPES
    )


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--preset", default="balanced")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--every", type=int, default=4, help="frame blocks between prompts")
    return parser.parse_args()


def main() -> None:
    """Stream, ask for prompts meanwhile, and count the frames that came late."""
    given = arguments()
    texts = prompts(given.words)
    model = load(given.model, Weights(random=True) if given.random_weights else None)
    acks: list[PromptAck] = []
    fps, frames, late, shown = model.defaults.fps, 0, 0, 0.0
    threads: list[threading.Thread] = []

    def ask(text: str) -> None:
        acks.append(session.prompt(text))

    with strobe.Session(texts[0], model=model, preset=given.preset) as session:
        for block in session.stream(given.blocks):
            now = time.perf_counter()
            if block.index == BUFFER:
                shown = now - frames / fps  # the first frames were held back until there is a buffer
            due = shown + frames / fps
            if block.index > BUFFER and now > due:
                late += math.ceil((now - due) * fps)
                shown += now - due
            frames += len(block.frames)
            if block.index and block.index % given.every == 0:
                text = texts[block.index // given.every % len(texts)] + (f" {block.index}" if given.words else "")
                threads.append(threading.Thread(target=ask, args=(text,)))
                threads[-1].start()
            if block.index >= BUFFER:
                time.sleep(max(0.0, shown + frames / fps - BUFFER * len(block.frames) / fps - time.perf_counter()))
        for thread in threads:
            thread.join()
        followed = [ack.wait() for ack in acks]
    found = {
        "model": model.name,
        "preset": given.preset,
        "frames": frames,
        "stalled_frames": late,
        "prompts_from_block": followed,
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
