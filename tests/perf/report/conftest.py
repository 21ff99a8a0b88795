"""A run folder as a real comparison leaves it: four variants, palindromes with drift, traced clips, quality, clips to look at."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from made_records import header_of, machine_of, span_of, workload_of
from strobe.perf.records import record as rec
from strobe.perf.records.store import RunWriter

BLOCKS, TRACED, SWITCHES, LAYERS = 12, (6, 3), (5, 9), 4
EVIL = "</script><script>alert(1)</script>|`x`\n\x1b[31m\u202e{{*_[a](http://b)"
PROMPTS = ("a red circle moving left", EVIL, "a blue square moving up")
OPS = {  # operator, share of the step, region inside a layer
    "attention": (("aten::native_layer_norm", 3), ("aten::addmm", 13), ("aten::copy_", 9), ("aten::mul", 6)),
    "attention_kernel": (("aten::_scaled_dot_product_flash_attention_for_cpu", 22),),
    "cross_attention": (("aten::addmm", 8), ("aten::bmm", 4)),
    "ffn": (("aten::addmm", 24), ("aten::gelu", 5)),
}


class Setting(NamedTuple):
    """One variant: milliseconds of a denoise step, steps, and how much of it is the attention kernel."""

    name: str
    step_ms: float
    steps: int
    window: int
    copies: float


SETTINGS = (
    Setting("baseline", 31.0, 4, 12, 1.0),
    Setting("balanced", 21.0, 4, 12, 0.3),
    Setting("turbo", 18.5, 3, 8, 0.3),
    Setting("ultra", 16.0, 2, 6, 0.3),
)


class TraceWriter:
    """A chrome trace as the profiler exports it; with `cuda`, every operator launches one kernel."""

    def __init__(self, cuda: bool, evil: bool) -> None:
        self.events: list[dict[str, Any]] = []
        self.cuda, self.evil, self.correlation, self.device_free = cuda, evil, 0, 0

    def add(self, cat: str, name: str, start: int, stop: int, pid: int | str = 1, tid: int | str = 7, **args: Any) -> None:
        times = {"ts": start / 1000, "dur": (stop - start) / 1000}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args})

    def region(self, name: str, start: int, stop: int) -> None:
        self.add("user_annotation", f"strobe::{name}", start, stop)

    def op(self, name: str, start: int, duration: int) -> int:
        self.add("cpu_op", name, start, start + duration)
        if self.cuda:
            self.correlation += 1
            self.add("cuda_runtime", "cudaLaunchKernel", start + 1000, start + 3000, correlation=self.correlation)
            begin = max(start + 5000, self.device_free)
            self.device_free = begin + duration
            kernel = f"void {name.removeprefix('aten::')}_kernel<float, 4>(float*)"
            self.add("kernel", kernel, begin, self.device_free, 0, 7, device=0, stream=7, correlation=self.correlation)
        return start + duration

    def layer(self, at: int, unit: float, copies: float, rng: random.Random) -> int:
        for region in ("attention", "cross_attention", "ffn"):
            start = at
            at += 4000
            for name, share in OPS[region]:
                times = copies if name == "aten::copy_" else 1
                at = self.op(name, at, int(share * unit * times * rng.uniform(0.95, 1.05))) + 3000
                if name == "aten::copy_":
                    inside = at
                    (kernel, part) = OPS["attention_kernel"][0]
                    at = self.op(kernel + (EVIL if self.evil else ""), at + 1500, int(part * unit * copies)) + 1500
                    self.region("attention_kernel", inside, at)
            self.region(region, start, at)
        return at

    def clip(self, setting: Setting, first: int, count: int) -> None:
        rng, at = random.Random(setting.name), 1_000_000
        unit = setting.step_ms * 1e6 / LAYERS / 94
        for block in range(first, first + count):
            start = at
            at = self.passes(setting, unit, rng, self.op("aten::normal_", at + 9000, 400_000))
            decode = at
            for _ in range(4):
                at = self.op("aten::convolution", at + 20_000, 5_000_000)
            self.region("vae_decode", decode, at)
            self.region(f"frame_block#{block}", start, at)
            at += 250_000

    def passes(self, setting: Setting, unit: float, rng: random.Random, at: int) -> int:
        for name in [*(f"denoise_step#{step}" for step in range(setting.steps)), "commit"]:
            start = at
            for _ in range(LAYERS):
                at = self.layer(at + 10_000, unit, setting.copies, rng)
            at = self.op("aten::add", at + 5000, 90_000)
            self.region(name, start, at)
            at += 15_000
        return at

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        text = json.dumps({"schemaVersion": 1, "traceEvents": self.events})
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def header(folder: Path, **changes: Any) -> rec.Header:
    clocks = rec.Clocks(source="sysfs", cpu_mhz=2600, governor="performance", load=0.4)
    machine = machine_of(device_name="Example CPU 9000", cpu_name="Example CPU 9000", memory_bytes=24 << 30, clocks=clocks)
    prompts = tuple(
        rec.PromptAt(frame_block=block, text=text, mode="recache" if block else "start")
        for block, text in zip((0, *SWITCHES), PROMPTS, strict=True)
    )
    workload = workload_of(BLOCKS, *SWITCHES, prompts=prompts, seed=7, height=128, width=128)
    names = tuple(setting.name for setting in SETTINGS)
    usual = {
        "run": folder.name, "git": rec.Git(commit="f94dcae0" * 5, dirty=False), "argv": ("strobe", "compare", *names),
        "machine": machine, "model": rec.Model(name="shapes", weights_sha256="ab" * 32, num_params=5_012_345),
        "workload": workload, "baseline": "baseline", "order": names + names[::-1],
    }  # fmt: skip
    return header_of(**usual | changes)


def variant(setting: Setting) -> rec.Variant:
    fast = setting.name != "baseline"
    calls = {
        "e2e": 1, "frame_block": BLOCKS, "denoise_step": BLOCKS * setting.steps, "commit": BLOCKS, "vae_decode": BLOCKS,
        "recache": 2, "text": 3, "attention_kernel": BLOCKS * (setting.steps + 1) * LAYERS,
    }  # fmt: skip
    knobs = (
        rec.Knob(name="ring_cache", value="on" if fast else "off", on=fast),
        rec.Knob(name="compile", value="off", on=False, reason="no compiler on this machine" if fast else ""),
        rec.Knob(name="timesteps", value=str(setting.steps), on=setting.steps < 4),
    )
    return rec.Variant(
        name=setting.name, preset=setting.name, knobs=knobs, attention_impl="sdpa", attention_reason="triton: no CUDA device",
        sparsity=0.0, window=setting.window, sink=3 if setting.window > 6 else 1, positions="rebased",
        timesteps=(1000.0, 750.0, 500.0, 250.0)[: setting.steps], shift=5.0, steps=setting.steps, dtype="float32",
        tokens_per_block=192, calls_per_stage=calls,
    )  # fmt: skip


class ClipWriter:
    """Spans of one clip, summed from its parts, with drift, noise and warm-up."""

    def __init__(self, setting: Setting, clip: int, order: int, palindrome: int | None, rng: random.Random) -> None:
        self.common = {"variant": setting.name, "clip": clip, "order": order, "palindrome": palindrome}
        self.setting, self.rng, self.spans, self.now = setting, rng, list[rec.Span](), 0
        self.scale = (1 + 0.002 * order) * (1.25 if palindrome is None else 1.0)

    def span(self, name: str, ms: float, index: int | None = None, parent: int | None = None) -> None:
        value = int(ms * 1e6 * self.scale * self.rng.uniform(0.995, 1.005))
        self.put(name, self.now, value, index, parent)
        self.now += value

    def put(self, name: str, start: int, value: int, index: int | None, parent: int | None) -> None:
        at = {"index": index, "parent": parent, "start_ns": start, "warmup": self.common["palindrome"] is None}
        self.spans.append(span_of(name=name, value_ns=value, **self.common | at))

    def records(self) -> list[rec.Record]:
        self.span("text", 2.0)
        for block in range(BLOCKS):
            start = self.now
            if block in SWITCHES:
                self.span("text", 2.0, parent=block)
                self.span("recache", 1.1 * self.setting.step_ms, parent=block)
            self.span("draw", 0.4, parent=block)
            for step in range(self.setting.steps):
                self.span("denoise_step", self.setting.step_ms, step, block)
            self.span("commit", 0.9 * self.setting.step_ms, parent=block)
            self.span("vae_decode", 20.1, parent=block)
            self.put("frame_block", start, self.now - start, block, None)
        self.put("e2e", 0, self.now + 40_000, None, None)
        phase = "warmup" if self.common["palindrome"] is None else "timed"
        return [*self.spans, rec.Clip(**self.common, phase=phase, num_spans=len(self.spans), peak_bytes=700 << 20)]


def quality(setting: Setting, rank: int) -> list[rec.Record]:
    against, equal = "quality, fp32, cpu", "every frame equals the reference"
    rows: tuple[tuple[str, float | None, str, str, str, str], ...] = (
        ("psnr", 38.0 - 3.1 * rank if rank else None, "dB", against, "higher", "" if rank else equal),
        ("ssim", 0.99 - 0.02 * rank, "", against, "higher", ""),
        ("prompt_accuracy", 0.97 - 0.015 * rank, "", "", "higher", ""),
        ("switch_latency", 1.0 + 0.25 * rank, "frame blocks", "", "lower", ""),
        ("flicker", 0.004 + 0.001 * rank, "", "", "lower", ""),
        ("lpips", None, "", against, "lower", "weights are not on this machine"),
    )
    return [
        rec.Quality(
            variant=setting.name, metric=metric, value=value, unit=unit, reference=reference, better=better, note=note,
            definition=f"the definition of {metric}", n=0 if metric == "lpips" else 141,
        )
        for metric, value, unit, reference, better, note in rows
    ]  # fmt: skip


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of run folders: `make_run(name, settings=..., cuda=..., evil=..., **header changes) -> folder`."""

    def make(
        name: str = "run-a",
        settings: tuple[Setting, ...] = SETTINGS,
        cuda: bool = False,
        evil: bool = False,
        traced: tuple[int, int] = TRACED,
        **changes: Any,
    ) -> Path:
        folder = tmp_path / name
        rng = random.Random(name)
        with RunWriter(folder) as writer:
            names = tuple(setting.name for setting in settings)
            writer.append(header(folder, **{"order": names + names[::-1], **changes}))
            write_clips(writer, settings, rng)
            for rank, setting in enumerate(settings):
                write_trace(writer, folder, setting, TraceWriter(cuda, evil), traced)
                writer.append(*quality(setting, rank))
                clip, caption = f"clips/{setting.name}.mp4", EVIL if evil else ""
                (folder / clip).parent.mkdir(exist_ok=True)
                (folder / clip).write_bytes(b"not a video")
                video = rec.Video(variant=setting.name, path=clip, sha256="0" * 64, frames=141, fps=16, caption=caption)
                writer.append(video)
            writer.append(rec.End(status="complete", date="2026-11-01T09:34:00Z", wall_ns=240_000_000_000))
        return folder

    return make


def write_clips(writer: RunWriter, settings: tuple[Setting, ...], rng: random.Random) -> None:
    order, counts = count(), {setting.name: count() for setting in settings}

    def one(setting: Setting, palindrome: int | None) -> None:
        writer.append(*ClipWriter(setting, next(counts[setting.name]), next(order), palindrome, rng).records())

    for setting in settings:
        one(setting, None)
        writer.append(variant(setting), rec.Excluded(variant=setting.name, span="clip", clip=None, indices=(0,), cause="warm-up"))
    for palindrome in range(3):
        for setting in (*settings, *settings[::-1]):
            one(setting, palindrome)


def write_trace(writer: RunWriter, folder: Path, setting: Setting, trace: TraceWriter, traced: tuple[int, int]) -> None:
    trace.clip(setting, *traced)
    path = folder / "traces" / f"{setting.name}.json.gz"
    trace.save(path)
    data = path.read_bytes()
    writer.append(
        rec.ClipTrace(
            variant=setting.name, clip=7, path=f"traces/{setting.name}.json.gz", sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data), first_block=traced[0], num_blocks=traced[1],
        )
    )  # fmt: skip
