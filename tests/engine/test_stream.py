"""Frame blocks of a tiny model: whatever the route, the same frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.core.errors import ShapeError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock

NONE = Knobs(**{each.name: False for each in fields(Knobs)})


def larger(tiny: Model) -> Model:
    """The same model at a frame size whose latent frames fill tiles."""
    return replace(tiny, defaults=replace(tiny.defaults, frame_size=(128, 128)))


def play(session: Session, num_blocks: int, **options: Any) -> list[FrameBlock]:
    return list(session.stream(num_blocks, **options))


def latents(blocks: list[FrameBlock]) -> Tensor:
    return torch.cat([block.latents for block in blocks], dim=1)


def frames(blocks: list[FrameBlock]) -> Tensor:
    return torch.cat([block.samples for block in blocks], dim=1)


def same(first: list[FrameBlock], second: list[FrameBlock]) -> bool:
    return torch.equal(latents(first), latents(second)) and torch.equal(frames(first), frames(second))


class TestFrames:
    def test_blocks_have_the_documented_shapes(self, make: Callable[..., Session]) -> None:
        first, second = play(make(), 2)
        assert first.frames.shape == (9, 32, 32, 3) and second.frames.shape == (12, 32, 32, 3)
        assert first.frames.dtype == torch.uint8 and first.latents.shape == (1, 3, 4, 4, 4)
        assert (second.index, second.prompt, second.prompts) == (1, "red circle", ("red circle",)) and second.elapsed_ns > 0

    @pytest.mark.parametrize("preset", ["quality", "balanced"])
    def test_frames_may_be_drawn_on(self, make: Callable[..., Session], preset: str) -> None:
        session, expected = make(preset=preset), play(make(preset=preset), 3)
        got = []
        for block in session.stream(3):
            got.append(block.frames.clone())
            block.frames[:, :8] = 255
        assert all(torch.equal(one, other.frames) for one, other in zip(got, expected, strict=True))

    @pytest.mark.parametrize(
        "knobs", [Knobs(), replace_knobs(Knobs(), block_decode=False), replace_knobs(Knobs(), overlap_decode=False)]
    )
    def test_streamed_frames_equal_one_decode_of_everything(
        self, make: Callable[..., Session], tiny: Model, knobs: Knobs
    ) -> None:
        blocks = play(make(preset=EngineConfig(knobs=knobs)), 5)
        whole = (tiny.vae.decode(latents(blocks)) * 255).round().permute(0, 1, 3, 4, 2)
        assert (frames(blocks).float() - whole).abs().max() <= 1  # a rounding step

    def test_one_stream_equals_several_calls(self, make: Callable[..., Session]) -> None:
        whole = make()
        pieces = make()
        parts = [*play(pieces, 1), *play(pieces, 3), next(iter(pieces.stream())), *play(pieces, 2)]
        assert same(play(whole, 7), parts)

    def test_seconds_count_from_here(self, make: Callable[..., Session]) -> None:
        session = make()
        assert sum(len(block.frames) for block in session.stream(seconds=1.0)) == 21
        assert sum(len(block.frames) for block in session.stream(seconds=1.5)) == 24

    def test_seed_prompt_and_sample_matter(self, make: Callable[..., Session]) -> None:
        base = latents(play(make(), 2))
        for other in (make(seed=1), make("blue square"), make(samples=(1,))):
            assert (latents(play(other, 2)) - base).abs().max() > 1e-3


class TestCaches:
    @pytest.mark.parametrize("positions", ["absolute", "rebased"])
    @pytest.mark.parametrize(("window", "sink"), [(12, 3), (8, 3), (6, 1), (6, 3), (5, 0), (3, 0), (4, 1)])
    def test_ring_equals_rolling(self, make: Callable[..., Session], window: int, sink: int, positions: Any) -> None:
        config = EngineConfig(window=window, sink=sink, positions=positions, timesteps=(1000, 500))
        ring, rolling = (make(preset=replace(config, knobs=replace_knobs(NONE, ring_cache=on))) for on in (True, False))
        switch = [Switch(frame_block=6, prompt="blue square")]
        torch.testing.assert_close(
            latents(play(ring, 9, switches=switch)),
            latents(play(rolling, 9, switches=switch)),
            rtol=0,
            atol=tolerance("stream", "float32"),
        )

    def test_rebased_equals_absolute_until_frames_are_evicted(self, make: Callable[..., Session]) -> None:
        absolute, rebased = (
            latents(play(make(preset=EngineConfig(window=12, sink=3, positions=positions)), 6))
            for positions in ("absolute", "rebased")
        )
        torch.testing.assert_close(absolute[:, :12], rebased[:, :12], rtol=0, atol=tolerance("element", "float32"))
        assert (absolute[:, 15:] - rebased[:, 15:]).abs().max() > 1e-5

    def test_a_window_that_holds_everything_needs_no_eviction(self, make: Callable[..., Session]) -> None:
        small, large = (latents(play(make(preset=EngineConfig(window=window, sink=3)), 4)) for window in (12, 30))
        torch.testing.assert_close(small, large, rtol=0, atol=tolerance("element", "float32"))

    def test_rebased_streams_stay_finite_far_out(self, make: Callable[..., Session]) -> None:
        """A stream that begins at frame 999,999 equals one that begins at frame 99: only distances count."""
        near, far = make(preset=EngineConfig(window=8, sink=3)), make(preset=EngineConfig(window=8, sink=3))
        results = []
        for session, block in ((near, 33), (far, 333_333)):
            play(session, 1)
            snapshot = session.snapshot()
            history = snapshot.state.history[:, [0] * 8]  # a full window, which nothing derives again here
            moved = replace(
                snapshot,
                state=replace(snapshot.state, next_block=block, history=history),
                cache=replace(snapshot.cache, end=3 * block),
            )
            session.restore(moved)
            stream = session._stream
            noise = stream._draw
            stream._draw = lambda index, noise=noise, block=block: noise(index - block)  # type: ignore[method-assign]
            results.append(latents(play(session, 6)))
        assert results[1].isfinite().all()
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=tolerance("stream far away", "float32"))


class TestKnobs:
    @pytest.mark.parametrize("knob", [each.name for each in fields(Knobs)])
    def test_no_knob_changes_the_result(self, make: Callable[..., Session], knob: str) -> None:
        on, off = (make(preset=EngineConfig(knobs=replace_knobs(NONE, **{knob: value}))) for value in (True, False))
        switch = [Switch(frame_block=5, prompt="blue square")]
        torch.testing.assert_close(
            latents(play(on, 7, switches=switch)),
            latents(play(off, 7, switches=switch)),
            rtol=0,
            atol=tolerance("stream", "float32"),
        )

    @pytest.mark.parametrize("name", PRESETS)
    def test_every_preset_streams_over_a_switch(self, make: Callable[..., Session], tiny: Model, name: str) -> None:
        model = larger(tiny) if name == "sparse" else tiny
        config = replace(PRESETS[name](), simulate=True)
        blocks = play(make(preset=config, model=model), 7, switches=[Switch(frame_block=3, prompt="blue square")])
        assert latents(blocks).isfinite().all() and blocks[3].prompt == "blue square"

    def test_quality_and_balanced_agree(self, make: Callable[..., Session]) -> None:
        baseline, quality, balanced = (latents(play(make(preset=name), 6)) for name in ("baseline", "quality", "balanced"))
        torch.testing.assert_close(quality, baseline, rtol=0, atol=tolerance("stream", "float32"))
        torch.testing.assert_close(balanced, quality, rtol=0, atol=tolerance("stream", "float32"))


class TestLockstep:
    def test_each_sample_is_the_stream_it_would_be_alone(self, make: Callable[..., Session]) -> None:
        prompts = ("red circle", "blue square", "green circle")
        together = play(make(prompts, samples=(0, 1, 7)), 6, switches=[Switch(frame_block=3, prompt="moving red")])
        for index, sample in enumerate((0, 1, 7)):
            alone = play(make(prompts[index], samples=(sample,)), 6, switches=[Switch(frame_block=3, prompt="moving red")])
            torch.testing.assert_close(latents(together)[index], latents(alone)[0], rtol=0, atol=tolerance("stream", "float32"))
        assert together[0].prompts == prompts and together[0].prompt == "red circle\nblue square\ngreen circle"
        with pytest.raises(ShapeError, match="3 samples"):
            _ = together[0].frames
