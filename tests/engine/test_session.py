"""A session: prompts in, frames out, at once or one frame block late; parts that sessions share."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from strobe.core import spans
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.model import Model
from strobe.engine.prompts import Mode, Switch
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from tiny_model import PASTS, Make, latents, lora, with_past

SPARSE = EngineConfig(timesteps=(1000, 500), window=9, sink=2, sparsity=0.7)
EIGHT_BITS = [
    EngineConfig(window=6, sink=1, linear_format="fp8", simulate=True, **formats)  # type: ignore[arg-type]
    for formats in ({"kv_format": "int8"}, {"kv_format": "fp8"}, {"attention_format": "int8"})
]


def play(session: Session, num_blocks: int, **options: Any) -> list[FrameBlock]:
    return list(session.stream(num_blocks, **options))


def frames(blocks: list[FrameBlock]) -> Tensor:
    return torch.cat([block.samples for block in blocks], dim=1)


SETTINGS = EngineConfig(window=9, sink=3, timesteps=(1000, 500))
CONFIGS = {late: replace(SETTINGS, knobs=Knobs(late_frames=late)) for late in (False, True)}
SWITCHES = (
    Switch(frame_block=2, prompt="blue square"),
    Switch(frame_block=4, prompt="green circle", mode="interpolate", over=2),
    Switch(frame_block=6, prompt="moving red"),
)


def both(make: Make, **options: Any) -> tuple[Session, Session]:
    """The same session with frames at once, and late."""
    at_once, late = (make(preset=config, **options) for config in CONFIGS.values())
    assert late.config.knobs.late_frames and not at_once.config.knobs.late_frames
    return at_once, late


def same_blocks(first: Sequence[FrameBlock], second: Sequence[FrameBlock]) -> bool:
    return len(first) == len(second) and all(
        (one.index, one.prompts) == (other.index, other.prompts)
        and torch.equal(one.latents, other.latents)
        and torch.equal(one.samples, other.samples)
        for one, other in zip(first, second, strict=True)
    )


def test_an_interpolation_goes_on_from_where_another_is(make: Make, tiny: Model) -> None:
    red, blue, green = (tiny.text.encode([prompt]) for prompt in ("red circle", "blue square", "green circle"))
    session, found = make(), []
    switches = [
        Switch(frame_block=1, prompt="blue square", mode="interpolate", over=4),
        Switch(frame_block=3, prompt="green circle", mode="interpolate", over=2),
    ]
    for _ in session.stream(6, switches=switches):
        assert session._stream.state.blend is not None
        blend = session._stream.state.blend
        found.append((blend.start, blend.target, blend.steps(4)))
    expected = [(red, red, 4), (red, blue, 1), (red, blue, 2), (blue, green, 2), (blue, green, 4), (blue, green, 4)]
    for (start, target, steps), (from_text, to_text, num_steps) in zip(found, expected, strict=True):
        assert torch.equal(start, from_text) and torch.equal(target, to_text) and steps == num_steps


def test_what_a_stream_yields_and_holds_is_shown_in_a_line(make: Make) -> None:
    """A notebook prints the last value of a cell: shapes, not pixels."""
    session = make()
    block = next(iter(session.stream(1)))
    shown = repr(block)
    assert (
        f"index=0, samples=uint8 {list(block.samples.shape)} on cpu, latents=float32 {list(block.latents.shape)} on cpu" in shown
    )
    assert "prompts=('red circle',)" in shown and "tensor(" not in shown
    assert "next_block=1, prompts=('red circle',)" in repr(session.snapshot()) and "tensor(" not in repr(session.snapshot())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_program_sets_for_torch_leaves_its_streams_as_they_are(
    make: Make, tiny: Model, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    with_lora = replace(tiny, loras=(lora(tiny),))
    alone = play(make(model=with_lora), 3)
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        assert same_blocks(play(make(model=with_lora), 3), alone)
        for preset in (EngineConfig(), EngineConfig(attention_format="int8")):
            with torch.inference_mode():
                session = make(preset=preset)
                play(session, 1)
            snapshot, second = session.snapshot(), play(session, 1)
            session.restore(snapshot)
            assert same_blocks(play(session, 1), second)


class TestSnapshots:
    @pytest.mark.parametrize("before", [0, 2, 9])
    @pytest.mark.parametrize(
        ("past", "options"),
        [
            *(("kept", {"preset": each}) for each in ("baseline", "balanced", "turbo", *EIGHT_BITS, SPARSE)),
            *((past, {"preset": EngineConfig()}) for past in PASTS),
            ("shots", {"preset": EngineConfig(kv_format="int8")}),
            ("kept", {"preset": EngineConfig(window=8), "start": torch.linspace(-1, 1, 4 * 64).view(4, 4, 4, 4)}),
            ("kept", {"preset": EngineConfig(window=8, strength=0.9), "start": torch.linspace(-1, 1, 9 * 64).view(9, 4, 4, 4)}),
        ],
    )
    def test_replay_fork_and_resume_are_bit_equal(
        self, make: Make, tiny: Model, tmp_path: Path, past: str, options: dict[str, Any], before: int
    ) -> None:
        """Also in eight bits, where some of the past is left out: of frames of two tiles, and with a clip still to come."""
        model, mode = with_past(tiny, past), "shot" if past == "shots" else "recache"
        if options["preset"] is SPARSE:
            model = replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 192)))
        early, switches = (
            [Switch(frame_block=at, prompt="blue square", mode=mode) for at in places]  # type: ignore[arg-type]
            for places in ((1, 3), (before + 2,))
        )
        session = make(model=model, **options)
        list(islice(session.stream(switches=early), before))  # late frames are under way then
        session.prompt("green square", mode="interpolate", over=3)
        snapshot, fork = session.snapshot(), session.fork()
        snapshot.save(tmp_path / "state.safetensors")
        expected = play(session, 6, switches=switches)
        session.restore(snapshot)
        resumed = Session.resume(tmp_path / "state.safetensors", model=model, device="cpu")
        for other in (session, fork, resumed):
            assert other.next_block == before
            assert same_blocks(play(other, 6, switches=switches), expected)
        assert [entry.name for entry in tmp_path.iterdir()] == ["state.safetensors"]

    def test_numbers_of_numpy_are_numbers(self, make: Make, tiny: Model, tmp_path: Path) -> None:
        session = make(seed=np.int64(3), samples=np.arange(2), preset=EngineConfig(window=np.int64(8), shift=np.float32(5)))
        assert same_blocks(play(session, 1), play(make(seed=3, samples=range(2), preset=EngineConfig(window=8)), 1))
        session.prompt("blue square", mode="interpolate", over=np.int64(2))
        session.snapshot().save(tmp_path / "state")
        assert same_blocks(play(Session.resume(tmp_path / "state", model=tiny, device="cpu"), 1), play(session, 1))

    def test_a_snapshot_goes_on_in_another_dtype(self, make: Make, tiny: Model, tmp_path: Path) -> None:
        """As when a snapshot of a CPU, float32, is resumed on a GPU, bfloat16."""
        session, wide = make(preset=EngineConfig(dtype="bfloat16")), make(preset=EngineConfig(dtype="float32"))
        for each in (session, wide):
            play(each, 5)
        session.restore(replace(wide.snapshot(), identity=session._identity))
        (narrow,), (expected,) = play(session, 1), play(wide, 1)
        assert narrow.index == 5
        torch.testing.assert_close(narrow.latents, expected.latents, rtol=0, atol=tolerance("stream", "bfloat16"))

    @pytest.mark.parametrize(
        ("options", "what"),
        [({"seed": 3}, "seed"), ({"preset": "turbo"}, "configuration: {'timesteps'"), ({"samples": (1,)}, "samples")],
    )
    def test_a_foreign_snapshot_is_refused(self, make: Make, options: dict[str, Any], what: str) -> None:
        session, other = make(), make(**options)
        play(session, 1)
        with pytest.raises(SessionError, match=what):
            other.restore(session.snapshot())
        assert play(other, 1)[0].index == 0


class TestTrouble:
    @pytest.mark.parametrize(
        ("past", "preset"),
        [("kept", "baseline"), *(("kept", each) for each in CONFIGS.values()), ("rolling", EngineConfig())],
        ids=["frame by frame", "at once", "late", "rolling"],
    )
    @pytest.mark.parametrize("stage", ["flow", "write", "decode"])
    @pytest.mark.parametrize("block", [0, 5])
    def test_a_block_that_fails_is_made_again(
        self, make: Make, tiny: Model, past: str, preset: Any, stage: str, block: int
    ) -> None:
        """Twice; one that was made and not decoded is still to come."""
        switches = [Switch(frame_block=5, prompt="blue square")]
        session, whole = (make(preset=preset, model=with_past(tiny, past)) for _ in range(2))
        expected, got, failed = play(whole, 7, switches=switches), list[FrameBlock](), list[str]()
        stream: Any = session._stream
        place, name = (stream._decoder, "_push") if stage == "decode" else (stream._dit, stage)
        work = getattr(place, name)

        def fail(given: Tensor, *rest: Any) -> Any:
            result, latents = work(given, *rest), expected[block].latents[:, : given.shape[1]]
            if len(failed) < 2 and (torch.equal(given, latents) if stage == "decode" else stream.state.next_block == block):
                failed.append(stage)
                raise KeyboardInterrupt
            return result

        setattr(place, name, fail)
        while len(got) < 7:
            left = [switch for switch in switches if switch.frame_block >= stream.state.next_block]
            try:
                for each in session.stream(7 - len(got), switches=left):
                    got.append(each)
            except KeyboardInterrupt:
                assert session.next_block == len(got)
                if stage != "decode":
                    with pytest.raises(SessionError, match="half-way"):
                        session.snapshot()
        assert len(failed) == 2 and same_blocks(got, expected)

    def test_a_refused_prompt_leaves_the_old_one(self, make: Make) -> None:
        session = make()
        for wrong, words in (("a red circl", "unknown word 'a'"), ("red circel", "did you mean 'circle'"), ("", "0 words")):
            with pytest.raises(ConfigError, match=words):
                session.prompt(wrong)
        with pytest.raises(ConfigError, match="did you mean 'soft'"):
            session.prompt("red circle", mode="sofft")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="2 prompts for 1 samples"):
            session.prompt(["red circle", "blue circle"])
        running = session.stream(1)
        for wrong in (["red circle", "blue circle"], [], "red circel"):
            with pytest.raises(ConfigError):
                session.restart(wrong, seed=1)
        assert same_blocks([*running, *play(session, 1)], play(make(), 2))

    def test_streams_that_cannot_be(self, make: Make) -> None:
        session = make()
        play(session, 3)
        switch = Switch(frame_block=2, prompt="blue square")
        for options, words in (
            ({"num_blocks": 0}, "num_blocks >= 1"),
            ({"seconds": -1.0}, "seconds > 0"),
            ({"seconds": float("inf")}, "leave the length out"),
            ({"num_blocks": 1, "seconds": 1.0}, "not both"),
            ({"num_blocks": 4, "switches": [switch]}, "never take effect"),
            ({"num_blocks": 4, "switches": [replace(switch, frame_block=7)]}, r"makes frame blocks 3\.\.6"),
            ({"num_blocks": 4, "switches": [replace(switch, frame_block=4, prompt="yellow")]}, "unknown word"),
        ):
            with pytest.raises(ConfigError, match=words):
                session.stream(**options)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"preset": "balnced"}, "did you mean 'balanced'"),
            ({"samples": ()}, "range"),
            ({"samples": (1, 1)}, "different"),
            ({"samples": 3}, "whole numbers"),
            ({"samples": (0.0,)}, "whole numbers"),
            ({"seed": 1.0}, "seed 1.0 .* whole numbers"),  # another film than that of 1
            ({"seed": None}, "whole numbers"),
            ({"preset": EngineConfig(shift=float("nan"))}, "shift nan"),
            ({"device": "tpu"}, "allowed: auto"),
            ({"model": "shape"}, "did you mean 'shapes'"),
        ],
    )
    def test_sessions_that_cannot_be(self, make: Make, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            make(**options)

    def test_a_stream_needs_a_prompt(self, make: Make) -> None:
        session = make(None)
        with pytest.raises(SessionError, match="no prompt yet"):
            play(session, 1)
        session.prompt("red circle")
        assert same_blocks(play(session, 2), play(make(), 2))

    def test_a_cancelled_stream_stays_ended(self, make: Make) -> None:
        session = make()
        old, unused = session.stream(), session.stream()
        next(old)
        session.cancel()
        new = session.stream(2)
        assert next(old, None) is None and next(unused, None) is None
        assert [block.index for block in new] == [1, 2]

    def test_two_streams_do_not_take_turns(self, make: Make) -> None:
        """Each would skip the switches that fall on the other's frame blocks."""
        session = make()
        first = session.stream(6, switches=[Switch(frame_block=2, prompt="blue square")])
        late = session.stream(3, switches=[Switch(frame_block=1, prompt="blue square")])
        next(first)
        play(session, 2)
        for stale in (first, late):
            with pytest.raises(SessionError, match="on to frame block 3; call stream"):
                next(stale)
        assert play(session, 1)[0].index == 3

    def test_a_rewound_stream_goes_on(self, make: Make) -> None:
        session = make()
        running = session.stream(4)
        next(running)
        snapshot, second = session.snapshot(), next(running)
        session.restore(snapshot)
        assert same_blocks([second], [next(running)])

    def test_a_closed_session_is_closed(self, make: Make) -> None:
        with make() as session:
            running = session.stream()
            next(running)
        session.close()
        assert list(running) == []
        for use in (session.stream, session.snapshot, session.fork, lambda: session.prompt("red circle")):
            with pytest.raises(SessionError, match="closed"):
                use()

    def test_closing_right_after_the_check_waits_for_what_begins(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        session = make()
        play(session, 1)
        check = session._check_open
        monkeypatch.setattr(session, "_check_open", lambda: (check(), session.close()))  # as another thread may
        assert session.snapshot().next_block == 1 and not hasattr(session._stream, "_cache")

    def test_two_threads_do_not_share_a_block(self, make: Make) -> None:
        session = make()
        inside, leave = threading.Event(), threading.Event()
        work = session._stream._dit.flow

        def wait(*arguments: Any) -> Any:
            inside.set()
            leave.wait(120)
            return work(*arguments)

        session._stream._dit.flow = wait  # type: ignore[method-assign]
        got: list[FrameBlock] = []
        thread = threading.Thread(target=lambda: got.extend(session.stream(2)))
        thread.start()
        assert inside.wait(120)
        with pytest.raises(SessionError, match="another thread"):
            play(session, 1)
        assert session.prompt("blue square").frame_block == 1
        leave.set()
        thread.join(120)
        assert [block.prompt for block in got] == ["red circle", "blue square"]


class TestFrames:
    @pytest.mark.parametrize("options", [{}, {"prompt": ("red circle", "blue circle"), "samples": (0, 3)}], ids=["one", "two"])
    def test_they_are_those_that_come_at_once(self, make: Make, options: dict[str, Any]) -> None:
        at_once, late = both(make, **options)
        expected, got = (list(each.stream(8, switches=SWITCHES)) for each in (at_once, late))
        assert same_blocks(expected, got) and len({block.prompt for block in got}) == 4

    def test_several_calls_are_one_stream(self, make: Make) -> None:
        at_once, late = both(make)
        expected, got = list(at_once.stream(9)), []
        got += late.stream(1)
        for block in late.stream():
            got.append(block)
            if block.index == 3:
                break
        assert late.next_block == 4 and late._stream.state.next_block == 5
        got += late.stream(2)
        assert late.next_block == 6 and late._stream.state.next_block == 6  # the last of so many makes none ahead
        got += [next(iter(late.stream())), *late.stream(2)]
        assert same_blocks(expected, got)

    def test_work_is_counted_once(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a clock that only the transformer moves, by 1000 ns a pass: two a frame block."""
        _, late = both(make)
        flow, passes = late._stream._dit.flow, []

        def counted(*arguments: Any) -> Tensor:
            passes.append(1000)
            return flow(*arguments)

        late._stream._dit.flow = counted  # type: ignore[method-assign]
        monkeypatch.setattr("strobe.engine.stream.perf_counter_ns", lambda: sum(passes))
        times = [block.elapsed_ns for block in late.stream(6)]
        assert times == [4000, 2000, 2000, 2000, 2000, 0]  # first two frame blocks, at last nothing but the wait for frames


class TestOrder:
    def watched(self, session: Session) -> list[str]:
        """What happens in the stream, in order; a decode ends when its frames are there."""
        events: list[str] = []
        stream, decoder = session._stream, session._stream._decoder
        flow, start = stream._dit.flow, decoder.start

        def noted_flow(*arguments: Any) -> Tensor:
            events.append(f"flow {stream.state.next_block}")
            return flow(*arguments)

        def noted_start(*arguments: Any) -> Any:
            number = stream.state.next_block
            events.append(f"decode {number}")
            pieces = start(*arguments)

            def wait() -> Any:
                events.append(f"frames {number}")
                yield from pieces

            return wait()

        stream._dit.flow, decoder.start = noted_flow, noted_start  # type: ignore[method-assign]
        return events

    def test_a_frame_block_is_decoded_while_the_next_is_made(self, make: Make) -> None:
        at_once, late = both(make)
        events = [self.watched(each) for each in (at_once, late)]
        for each in (at_once, late):
            list(each.stream(3))
        made = [["flow 0", "flow 0"], ["flow 1", "flow 1"], ["flow 2", "flow 2"]]
        assert events[0] == [event for number in range(3) for event in (*made[number], f"decode {number}", f"frames {number}")]
        assert events[1] == [
            *(*made[0], "decode 0"),
            *(*made[1], "frames 0", "decode 1"),  # never two at a time
            *(*made[2], "frames 1", "decode 2", "frames 2"),
        ]

    def test_a_prompt_acts_one_frame_block_later(self, make: Make) -> None:
        at_once, late = both(make)
        for session, expected in ((at_once, 3), (late, 4)):
            prompts = []
            for block in session.stream(6):
                if block.index == 2:
                    ack = session.prompt("blue square")
                    assert (ack.frame_block, ack.prompts, ack.mode) == (expected, ("blue square",), "recache")
                    assert session.prompts == ("red circle",)
                prompts.append(block.prompt)
            assert prompts == ["red circle"] * expected + ["blue square"] * (6 - expected)

    def test_a_switch_of_a_frame_block_that_was_made_is_refused(self, make: Make) -> None:
        _, late = both(make)
        for block in late.stream():
            if block.index == 2:
                break
        with pytest.raises(ConfigError, match=r"never take effect: this stream makes frame blocks 4\.\.5"):
            late.stream(3, switches=[Switch(frame_block=3, prompt="blue square")])
        blocks = list(late.stream(3, switches=[Switch(frame_block=4, prompt="blue square")]))
        assert [(block.index, block.prompt) for block in blocks] == [(3, "red circle"), (4, "blue square"), (5, "blue square")]


@pytest.mark.parametrize("block_decode", [True, False])
@pytest.mark.parametrize("overlap_decode", [True, False])
def test_a_frame_block_is_one_region_of_decoding(make: Make, block_decode: bool, overlap_decode: bool) -> None:
    names: list[str] = []

    class Names(spans.Recorder):
        def __call__(self, name: str, index: int | None) -> AbstractContextManager[object]:
            names.append(name)
            return nullcontext()

    session = make(preset=replace(SETTINGS, knobs=Knobs(block_decode=block_decode, overlap_decode=overlap_decode)))
    with spans.recording(Names()):
        list(session.stream(3))
    assert names.count(spans.VAE_DECODE) == names.count(spans.FRAME_BLOCK) == 3


class TestLateTrouble:
    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_frame_by_frame_it_goes_on_where_it_failed(self, make: Make, failing: int) -> None:
        config = replace(SETTINGS, knobs=Knobs(block_decode=False, overlap_decode=False))
        expected, session = list(make(preset=config).stream(4)), make(preset=config)
        decoder, decode = session._stream._decoder, session._stream._decoder._push
        calls: list[Tensor] = []

        def fail(latents: Tensor, state: Any) -> Any:
            calls.append(latents)
            if len(calls) == 4 + failing:  # of frame block 1
                raise MemoryError
            return decode(latents, state)

        decoder._push = fail  # type: ignore[method-assign]
        got = []
        with pytest.raises(MemoryError):
            got.extend(session.stream(4))
        assert session.next_block == len(got) == 1
        session.restore(session.snapshot())  # which decodes the rest
        got.extend(session.stream(3))
        assert same_blocks(expected, got) and [len(each[0]) for each in calls] == [1] * 13

    @pytest.mark.parametrize("block_decode", [True, False])
    @pytest.mark.parametrize("overlap_decode", [True, False])
    def test_frames_are_their_owners(self, make: Make, block_decode: bool, overlap_decode: bool) -> None:
        session = make(preset=replace(SETTINGS, knobs=Knobs(block_decode=block_decode, overlap_decode=overlap_decode)))
        for block in session.stream(2):
            block.frames[:] = 0
            assert not block.samples.is_inference() and not block.frames.any()

    def test_frame_by_frame_a_state_is_let_go_for_the_next(self, make: Make) -> None:
        """What a decoder remembers is held twice while it is made anew, and once between."""
        session = make(preset=replace(SETTINGS, knobs=Knobs(block_decode=False, overlap_decode=False)))
        decoder, decode = session._stream._decoder, session._stream._decoder._push
        states: list[list[weakref.ref[Tensor]]] = []
        held = []

        def watched(latents: Tensor, state: Any) -> Any:
            decoded = decode(latents, state)
            states.append([weakref.ref(memory) for memory in decoded.state[1] if memory is not None])
            held.append([any(memory() is not None for memory in each) for each in states].count(True))
            return decoded

        decoder._push = watched  # type: ignore[method-assign]
        list(session.stream(3))
        assert held == [1, *[2] * 8] and all(len(each) == len(states[0]) > 0 for each in states)

    def test_closing_amid_a_frame_block_makes_no_further_one(self, make: Make) -> None:
        at_once, late = both(make)
        flow, calls = late._stream._dit.flow, []

        def close_amid(*arguments: Any) -> Any:
            calls.append(late._stream.state.next_block)
            late.close()
            return flow(*arguments)

        late._stream._dit.flow = close_amid  # type: ignore[method-assign]
        assert same_blocks(list(at_once.stream(1)), list(late.stream()))
        worker = late._stream._decoder._worker
        assert set(calls) == {0} and worker is not None and worker._shutdown

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("step", [0, 1, 2])  # the last one is the clean-context pass
    def test_a_block_given_up_is_made_anew_under_the_prompt_that_came(self, make: Make, late: bool, step: int) -> None:
        """Frames are those of a session that was told beforehand, and the first that follow the prompt are not late."""
        expected = list(make(preset=CONFIGS[late]).stream(7, switches=[Switch(frame_block=4, prompt="blue square")]))
        session, got, made, checks = make(preset=CONFIGS[late]), [], [], []

        def came() -> bool:
            checks.append(session._stream.state.next_block)
            return checks.count(4) > step

        got += session.stream(give_up=came)
        assert checks.count(4) == step + 1 and session.next_block == (3 if late else 4)
        with pytest.raises(SessionError, match="frame block 4 was given up half-way"):
            session.snapshot()
        assert session.prompt("blue square").frame_block == 4
        for block in session.stream(7 - len(got), give_up=lambda: False):
            got.append(block)
            made.append(session._stream.state.next_block)
        assert same_blocks(expected, got)
        assert made[-3] == 5, "frames of the prompt are handed out before the next frame block is made"

    @pytest.mark.parametrize("mode", ["soft", "interpolate"])
    def test_a_prompt_whose_block_was_given_up_leaves_no_trace(self, make: Make, mode: Mode) -> None:
        """The past was derived under it: it is derived again under the prompt before."""
        sessions = make(), make()
        for session in sessions:
            list(session.stream(1))
        sessions[0].prompt("blue square")
        assert not list(sessions[0].stream(give_up=lambda: True))
        expected, got = ([session.prompt("green square", mode=mode), *session.stream(2)][1:] for session in sessions[::-1])
        assert (frames(expected).float() - frames(got).float()).abs().max() <= 1


NONE = Knobs(**{each.name: False for each in fields(Knobs)})


class TestDecoded:
    @pytest.mark.parametrize(
        "knobs", [Knobs(), replace_knobs(Knobs(), block_decode=False), replace_knobs(Knobs(), overlap_decode=False)]
    )
    def test_streamed_frames_equal_one_decode_of_everything(self, make: Make, tiny: Model, knobs: Knobs) -> None:
        blocks = play(make(preset=EngineConfig(knobs=knobs)), 5)
        whole = (tiny.vae.decode(latents(blocks)) * 255).round().permute(0, 1, 3, 4, 2)
        assert (frames(blocks).float() - whole).abs().max() <= 1  # a rounding step

    def test_seconds_count_from_what_comes_next(self, make: Make) -> None:
        for session in both(make):
            assert sum(len(block.frames) for block in session.stream(seconds=1.0)) == 21
            next(iter(session.stream()))
            assert sum(len(block.frames) for block in session.stream(seconds=1.5)) == 24


@pytest.mark.parametrize("knob", [each.name for each in fields(Knobs)])
def test_no_knob_changes_the_result(make: Make, knob: str) -> None:
    on, off = (make(preset=EngineConfig(knobs=replace_knobs(NONE, **{knob: value}))) for value in (True, False))
    switch = [Switch(frame_block=5, prompt="blue square")]
    torch.testing.assert_close(
        latents(play(on, 7, switches=switch)), latents(play(off, 7, switches=switch)), rtol=0, atol=tolerance("stream", "float32")
    )


def test_each_sample_is_the_stream_it_would_be_alone(make: Make) -> None:
    prompts = ("red circle", "blue square", "green circle")
    together = play(make(prompts, samples=(0, 1, 7)), 6, switches=[Switch(frame_block=3, prompt="moving red")])
    for index, sample in enumerate((0, 1, 7)):
        alone = play(make(prompts[index], samples=(sample,)), 6, switches=[Switch(frame_block=3, prompt="moving red")])
        torch.testing.assert_close(latents(together)[index], latents(alone)[0], rtol=0, atol=tolerance("stream", "float32"))
    assert together[0].prompts == prompts and together[0].prompt == "red circle\nblue square\ngreen circle"
    with pytest.raises(ShapeError, match="3 samples"):
        _ = together[0].frames


PROMPTS = ("red circle", "blue square", "green circle moving")


@pytest.fixture
def model(tiny: Model) -> Model:
    """The tiny model, with nothing prepared of it yet."""
    return replace(tiny)


def addresses(session: Session) -> set[int]:
    stream = session._stream
    return {tensor.data_ptr() for part in (stream._dit.dit, stream._decoder._vae) for tensor in part.state_dict().values()}


@pytest.mark.parametrize("preset", ["baseline", "balanced", EngineConfig(linear_format="int8")])
def test_sessions_share_storage_and_make_what_they_would_alone(
    make: Make, tiny: Model, model: Model, preset: str | EngineConfig
) -> None:
    alone = [
        latents(make(prompt, model=replace(tiny), preset=preset, seed=seed).stream(4)) for seed, prompt in enumerate(PROMPTS)
    ]
    sessions = [make(prompt, model=model, preset=preset, seed=seed) for seed, prompt in enumerate(PROMPTS)]
    assert addresses(sessions[0]) == addresses(sessions[1]) == addresses(sessions[2])
    streams = [session.stream(4) for session in sessions]
    blocks: list[list[Tensor]] = [[], [], []]
    for _ in range(4):  # in turns
        for found, stream in zip(blocks, streams, strict=True):
            found.append(next(stream).latents)
    for found, expected in zip(blocks, alone, strict=True):
        assert torch.equal(torch.cat(found, dim=1), expected)
    sessions[0].close()
    fifth = latents(make(PROMPTS[1], model=replace(tiny), preset=preset, seed=1).stream(5))[:, 12:]
    assert torch.equal(latents(sessions[1].stream(1)), fifth)


def test_another_configuration_has_weights_of_its_own(make: Make, model: Model) -> None:
    first, second = make(model=model, preset="balanced"), make(model=model, preset=EngineConfig(linear_format="int8"))
    assert not addresses(first) & addresses(second)
    third = make(model=model, preset=replace(EngineConfig(), name="another name"))
    assert addresses(first) == addresses(third)


@pytest.mark.parametrize("way", ["a session", "a fork"])
def test_a_lora_of_one_session_does_not_show_in_another(make: Make, model: Model, way: str) -> None:
    first = make(model=model)
    second = first.fork() if way == "a fork" else make(model=model)
    third = make(model=model)
    expected = latents(make(model=replace(model)).stream(6))
    found = [latents(second.stream(2))]
    third.use_lora(lora(model))
    styled = latents(third.stream(4))
    assert not addresses(third) & {p.data_ptr() for p in second._stream._dit.dit.parameters()}
    found.append(latents(second.stream(2)))
    first.close()
    fourth = make(model=model)
    fourth.use_lora(lora(model))
    assert torch.equal(latents(fourth.stream(4)), styled)
    found.append(latents(second.stream(2)))
    assert torch.equal(torch.cat(found, dim=1), expected) and not torch.equal(styled, expected[:, : styled.shape[1]])


def test_alone_a_session_changes_its_weights_in_place_and_nobody_finds_them(make: Make, model: Model) -> None:
    session = make(model=model)
    before = addresses(session)
    session.use_lora(lora(model))
    assert addresses(session) == before
    other = make(model=model)
    assert not addresses(other) & {p.data_ptr() for p in session._stream._dit.dit.parameters()}
    assert torch.equal(latents(other.stream(4)), latents(make(model=replace(model)).stream(4)))


def test_what_nobody_uses_is_let_go(make: Make, model: Model) -> None:
    session = make(model=model)
    config = session.config
    assert model.shelf.holds(config)
    session.close()
    del session
    gc.collect()
    assert not model.shelf.holds(config)


def test_room_is_asked_for_once(make: Make, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second session needs no room for weights that are there."""
    asked: list[int] = []
    monkeypatch.setattr("strobe.engine.memory.check", lambda parts, free, device: asked.append(sum(parts.values())))
    held = [make(model=model), make(model=model), make(model=replace(model))]
    weights = sum(parameter.nbytes for parameter in model.dit.parameters())
    assert len(held) == 3 and asked[0] == asked[2] and asked[0] - asked[1] >= weights > 0
