"""Whatever is done to sessions, in whatever order: they stream what a new session streams that is told everything from the start,
and that is never copied, saved or rewound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from fault_snapshots import numbers
from strobe.core.errors import SessionError
from strobe.engine.config import EngineConfig, Knobs
from strobe.engine.model import Model
from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot, read_snapshot
from strobe.engine.stream import FrameBlock
from strobe.models.lora import Lora
from tiny_model import lora

FAST = EngineConfig(timesteps=(1000, 500), window=6, sink=2)
CONFIGS = {
    "ring": FAST,
    "sink renewed": replace(FAST, keep_sink=False),
    "absolute, sink renewed": replace(FAST, keep_sink=False, positions="absolute"),
    "rolling": replace(FAST, knobs=Knobs(ring_cache=False)),
    "eight bits, sink renewed": replace(FAST, kv_format="int8", keep_sink=False),
    "half of the past": replace(FAST, sparsity=0.5),
    "late frames": replace(FAST, knobs=Knobs(late_frames=True)),
    "LoRA beside the weights": replace(FAST, knobs=Knobs(merge_lora=False, fused_qkv=False)),
}
PROMPTS = ("red circle", "blue square", "green moving circle")
LONGEST = 7
"""Frame blocks of a stream; the window is full after two."""

Step = tuple[object, ...]
ACTS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(
        st.just("prompt"), st.sampled_from(PROMPTS), st.sampled_from(["recache", "soft", "interpolate"]), st.integers(1, 3)
    ),
    st.tuples(st.just("lora"), st.sampled_from([1, 2, None]), st.sampled_from([1.0, 0.5])),
    st.just(("fork",)),
    st.sampled_from([("snapshot",), ("snapshot", "saved")]),
    st.tuples(st.sampled_from(["restore", "reopen"]), st.integers(0, 1)),
    st.tuples(st.just("restart"), st.sampled_from(PROMPTS)),
)
STREAMS: st.SearchStrategy[tuple[Step, ...]] = st.sampled_from([(), (("one",),), (("stream", 1),)])


@dataclass
class Live:
    """A session, and what a new one has to be told to be where it is.

    Args:
        lora: which one runs, and how strongly; None: none.
        shared: it was forked or is a fork.
    """

    session: Session
    steps: tuple[Step, ...] = ()
    lora: Step | None = None
    shared: bool = False


@dataclass(frozen=True)
class Kept:
    """A snapshot, and what goes with it."""

    snapshot: Snapshot
    steps: tuple[Step, ...]
    lora: Step | None


def do(session: Session, step: Step, loras: dict[int, Lora]) -> list[FrameBlock]:
    """Tell a session one thing; returns what it streams."""
    what, *rest = step
    if what == "prompt":
        text, mode, over = rest
        session.prompt(text, mode=mode, over=over)  # type: ignore[arg-type]
    elif what == "lora":
        number, strength = rest
        session.use_lora(None if number is None else loras[number], strength=strength)  # type: ignore[arg-type, index]
    elif what == "one":  # of a stream without end: late frames are left under way
        return [next(iter(session.stream()))]
    else:
        return list(session.stream(rest[0]))  # type: ignore[arg-type]
    return []


class Operations(RuleBasedStateMachine):
    """Sessions of one configuration and seed, and the snapshots that were taken of them. All is one rule: of several, hypothesis
    leaves some out of an example, and here what goes wrong takes three or four of them."""

    def __init__(self, model: Model, loras: dict[int, Lora], folder: Path, known: dict[object, list[FrameBlock]]) -> None:
        super().__init__()
        self.model, self.loras, self.folder, self.known = model, loras, folder, known
        self.live: list[Live] = []
        self.kept: list[Kept] = []

    @initialize(config=st.sampled_from(sorted(CONFIGS)), blocks=st.integers(0, 3))
    def open(self, config: str, blocks: int) -> None:
        self.config = CONFIGS[config]
        if self.config.sparsity:  # half a tile a frame
            self.model = replace(self.model, defaults=replace(self.model.defaults, frame_size=(64, 128)))
        self.live = [Live(self.fresh())]
        self.tell(self.live[0], ("prompt", PROMPTS[0], "recache", 1))
        if blocks:
            self.tell(self.live[0], ("stream", blocks))

    @rule(which=st.integers(0, 2), act=ACTS, then=STREAMS)
    def act(self, which: int, act: Step, then: tuple[Step, ...]) -> None:
        live, what = self.live[which % len(self.live)], act[0]
        if what == "lora" and live.shared:
            with pytest.raises(SessionError, match="forks share their weights"):
                do(live.session, act, self.loras)
        elif what in ("lora", "prompt"):
            self.tell(live, act)
        elif what == "restart":
            self.restarted(live, str(act[1]))
        elif what == "snapshot":
            self.kept = [*self.kept[-1:], self.snapshot(live, saved="saved" in act)]
        elif what == "fork":
            live.shared = True
            live = self.another(Live(live.session.fork(), live.steps, live.lora, shared=True))
        elif self.kept:
            chosen = self.kept[act[1] % len(self.kept)]  # type: ignore[operator]
            live = self.another(self.reopened(chosen)) if what == "reopen" else self.restored(live, chosen)
        self.go_on(live, then)

    def teardown(self) -> None:
        for live in [*self.live, *map(self.reopened, self.kept)]:
            self.go_on(live, [("stream", 1)])
            live.session.close()

    def fresh(self) -> Session:
        return Session(preset=self.config, model=self.model, device="cpu")

    def tell(self, live: Live, step: Step) -> list[FrameBlock]:
        found = do(live.session, step, self.loras)
        live.steps = (*live.steps, step)
        if step[0] == "lora":
            live.lora = None if step[1] is None else step[1:]
        return found

    def replayed(self, steps: tuple[Step, ...]) -> tuple[Session, list[FrameBlock]]:
        """A session that was told everything, and what it streamed at the last step."""
        session, found = self.fresh(), []
        for step in steps:
            found = do(session, step, self.loras)
        return session, found

    def go_on(self, live: Live, steps: Iterable[Step]) -> None:
        """Stream, and compare."""
        for step in steps if live.session.next_block < LONGEST else ():
            found, key = self.tell(live, step), (self.config, live.steps)
            if key not in self.known:
                self.known[key] = self.replayed(live.steps)[1]
            for mine, other in zip(found, self.known[key], strict=True):
                assert (mine.index, mine.prompts) == (other.index, other.prompts)
                assert torch.equal(mine.latents, other.latents), float((mine.latents - other.latents).abs().max())
                assert torch.equal(mine.samples, other.samples)

    def another(self, live: Live) -> Live:
        self.live.append(live)
        for gone in self.live[:-3]:
            gone.session.close()
        self.live = self.live[-3:]
        return live

    def reopened(self, chosen: Kept) -> Live:
        """A snapshot in a new session, as in another process."""
        live = Live(self.fresh())
        if chosen.lora is not None:
            self.tell(live, ("lora", *chosen.lora))
        return self.restored(live, chosen)

    def restored(self, live: Live, chosen: Kept) -> Live:
        if live.lora == chosen.lora:
            live.session.restore(chosen.snapshot)
            live.steps = chosen.steps
        else:
            with pytest.raises(SessionError, match="other weights"):
                live.session.restore(chosen.snapshot)
        return live

    def restarted(self, live: Live, prompt: str) -> None:
        """The session begins again; not with another LoRA than its model's."""
        if live.lora is not None:
            with pytest.raises(SessionError, match="LoRAs of its own"):
                live.session.restart(prompt)
        else:
            live.session.restart(prompt)
            live.steps = (("prompt", prompt, "recache", 4),)

    def snapshot(self, live: Live, saved: bool) -> Kept:
        """A snapshot, compared with that of a session that was told everything."""
        snapshot, expected = live.session.snapshot(), self.replayed(live.steps)[0].snapshot()
        if saved:
            path = self.folder / "saved"
            snapshot.save(path)
            snapshot = read_snapshot(path, torch.device("cpu"))
        assert numbers(snapshot) == numbers(expected)
        mine, other = snapshot._tensors(), expected._tensors()
        assert mine.keys() == other.keys()
        assert [name for name in mine if not torch.equal(mine[name], other[name])] == []
        return Kept(snapshot, live.steps, live.lora)


@pytest.mark.rest
def test_operations_cross(tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `make hunt` 25 times as many."""
    monkeypatch.setattr("strobe.engine.session.check_room", lambda *args, **how: None)  # half of what opening a session takes
    loras = {number: lora(tiny, number) for number in (1, 2)}
    run_state_machine_as_test(
        partial(Operations, tiny, loras, tmp_path, {}),
        settings=settings(max_examples=settings().max_examples // 8, stateful_step_count=12),
    )
